"""What one's own cluster wants to be asked for: a file of infra/clusters/, of which each setting can be replaced."""

import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from common.training.config_json import from_json, to_json

CLUSTERS = Path(__file__).parents[1] / "clusters"
# --time in SLURM's own forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
_TIME = re.compile(r"(?:(?P<d>\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_FLAG = re.compile(r"[a-z][a-z0-9-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Set by this project, or by a setting of its own.
OWN_FLAGS = frozenset(
    "output error input open-mode signal requeue no-requeue array wrap export chdir parsable test-only wait "
    "job-name kill-on-bad-exit unbuffered label multi-prog container-image container-mounts ntasks n N J".split())


@dataclass(frozen=True)
class Container:
    """An image that every task runs in, through the pyxis plugin of srun."""

    image: str = ""
    """File or registry name; empty for none."""
    mounts: tuple[str, ...] = ()
    """host:container, beside the working folder, the job's and the run's, which are mounted under their own names."""
    python: str = "python3"
    """The interpreter inside the image."""


@dataclass(frozen=True)
class Settings:
    """Of one job. Empty texts and 0 leave a matter to SLURM's own defaults."""

    hardware: str = ""
    """Record of infra/hardware/ on which memory and time are planned; empty for no plan."""
    nodes: int = 0
    """0 for as many as the ranks need."""
    tasks_per_node: int = 0
    """Ranks of a node; 0 for all on one node, or all divided by nodes."""
    gpus_per_node: int = 0
    """GPUs of a node; a job of fewer ranks asks for one a rank."""
    cpus_per_task: int = 0
    memory: str = ""
    """Of a node, such as 64G."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time: str = ""
    """Limit of one start, such as 4:00:00 or 2-12:00:00."""
    warn_seconds: int = 120
    """So long before the limit every rank gets SIGUSR1, to save and to be requeued."""
    requeue: bool = True
    """Whether a job that was pre-empted, or whose node failed, waits in the queue again."""
    container: Container = field(default_factory=Container)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that every rank gets."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """More flags of sbatch, without the dashes; an empty value for a flag that has none."""
    srun: dict[str, str] = field(default_factory=dict)
    """More flags of srun, likewise."""

    def check(self) -> None:
        """Raises ValueError that names the setting whose value cannot be."""
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is int and value < 0:
                raise ValueError(f"{each.name}={value}: needs 0 or more")
            if isinstance(value, str):
                _check_text(each.name, value)
        if not 1 <= self.warn_seconds <= 65535:
            raise ValueError(f"warn_seconds={self.warn_seconds}: SLURM takes 1 to 65535")
        if self.time and not self.seconds:
            raise ValueError(f"time={self.time!r}: use H:MM:SS, D-HH:MM:SS or minutes")
        for name in ("sbatch", "srun"):
            _check_flags(name, getattr(self, name))
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise ValueError(f"environment {name!r}={value!r}: a name has letters, digits and _, a value no zero byte")
        for name, value in (("image", self.container.image), ("python", self.container.python),
                            *(("mounts", mount) for mount in self.container.mounts)):
            _check_text(f"container.{name}", value)
        if any(":" not in mount or "," in mount for mount in self.container.mounts):
            raise ValueError(f"container.mounts={list(self.container.mounts)}: each is HOST:CONTAINER, without a comma")

    @property
    def seconds(self) -> int | None:
        """The limit of one start; None where SLURM's own holds."""
        match = _TIME.fullmatch(self.time)
        if match is None:
            return None
        days, one, two, three = (None if part is None else int(part) for part in match.groups())
        if days is not None:
            return ((days * 24 + one) * 60 + (two or 0)) * 60 + (three or 0)
        if two is None:
            return one * 60
        return one * 60 + two if three is None else (one * 60 + two) * 60 + three

    def divided(self, ranks: int) -> tuple[int, int]:
        """(nodes, tasks of each) for so many ranks. Raises ValueError where they do not come out."""
        nodes, tasks = self.nodes, self.tasks_per_node
        if not nodes:
            tasks = min(tasks or ranks, ranks)
            nodes = -(-ranks // tasks)
        tasks = tasks or -(-ranks // nodes)
        if nodes * tasks != ranks:
            raise ValueError(f"{nodes} nodes x {tasks} tasks are {nodes * tasks} ranks, and the command has {ranks}: change "
                             "--nodes, --tasks-per-node or the layout (--grid of the recipe)")
        if self.gpus_per_node and tasks > self.gpus_per_node:
            raise ValueError(f"tasks_per_node={tasks} and gpus_per_node={self.gpus_per_node}: a rank has a GPU of its own, use "
                             f"at least {-(-ranks // self.gpus_per_node)} nodes")
        return nodes, tasks


def load(name: str) -> Settings:
    """The settings of a file of infra/clusters/ by its name, or of a .toml of one's own.

    Raises ValueError that names the file for one that is not there, an unknown setting or a wrong value.
    """
    path = Path(name) if name.endswith(".toml") else CLUSTERS / f"{name}.toml"
    known = sorted(each.stem for each in CLUSTERS.glob("*.toml"))
    if not name.endswith(".toml") and name not in known:
        raise ValueError(f"cluster {name!r} is unknown: use one of {', '.join(known)}, or a .toml file of your own")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        default = to_json(Settings())
        if isinstance(given.get("container"), dict):
            given["container"] = default["container"] | given["container"]
        found = from_json(Settings, default | given)
        found.check()
        return found
    except OSError as error:
        raise ValueError(f"cluster file {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"cluster file {str(path)!r}: {error}") from error


def _check_text(name: str, value: str) -> None:
    if not value.isprintable():
        raise ValueError(f"{name}={value!r}: a line break or control character cannot stand here")


def _check_flags(name: str, flags: dict[str, str]) -> None:
    for flag, value in flags.items():
        if not _FLAG.fullmatch(flag):
            raise ValueError(f"{name} flag {flag!r}: give the long name without dashes, such as reservation")
        if flag in OWN_FLAGS or flag.replace("-", "_") in Settings.__dataclass_fields__:
            raise ValueError(f"{name} flag {flag!r} is set already: use the setting of that meaning, if there is one")
        _check_text(f"{name}.{flag}", value)
