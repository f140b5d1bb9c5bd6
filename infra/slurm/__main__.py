"""`python -m infra.slurm install | start | status | stop`: a SLURM cluster of several nodes on this machine."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from infra.slurm.local_cluster import ClusterError, LocalCluster, default_folder, install

PROGRAM = "python -m infra.slurm"


def command(what: Annotated[Literal["install", "start", "status", "stop"], tyro.conf.Positional], nodes: int = 2,
            folder: Path | None = None) -> None:
    """A SLURM cluster of several nodes on this machine, to try submission and for the tests.

    what: install Debian's packages (the only one that changes the system), start, status, or stop.
    nodes: for start. folder: of the cluster's own files, default slurm-<uid> among temporary files.
    """
    cluster = LocalCluster((folder or default_folder()).absolute())
    if what == "install":
        install()
        print("SLURM and munge are installed")
    elif what == "start":
        cluster.start(nodes)
        print(f"{nodes} nodes are up; for SLURM's own commands: export SLURM_CONF={cluster.conf}")
    elif what == "stop":
        was = cluster.running
        cluster.stop()
        print("stopped" if was else f"no cluster runs in {cluster.folder}")
    else:
        states = cluster.states() if cluster.running else []
        print(f"nodes: {', '.join(states)}; SLURM_CONF={cluster.conf}" if states else f"no cluster runs in {cluster.folder}")


def main() -> None:
    try:
        tyro.cli(command, prog=PROGRAM)
    except (ValueError, ClusterError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError) else 1)


if __name__ == "__main__":
    main()
