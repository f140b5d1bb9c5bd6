"""What srun starts for every rank: reads the job's file, and becomes the command. Standard library alone.

Everything a user named comes from the file, so that no shell reads it, and is there again after a requeue.
"""

import json
import os
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Does not return."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    os.chdir(job["directory"])
    environment = os.environ | job["environment"] | {"PYTHONPATH": str(folder / "snapshot"), "PYTHONSAFEPATH": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(_threads(job["tasks_per_node"])))
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    words = [job["module"], *_again(job, restarts)]
    os.execve(sys.executable, [sys.executable, "-m", *words], environment)


def _threads(tasks_per_node: int) -> int:
    given = os.environ.get("SLURM_CPUS_PER_TASK")
    return int(given) if given else max(1, len(os.sched_getaffinity(0)) // tasks_per_node)


def _again(job: dict, restarts: int) -> list[str]:
    """The command's arguments; after a requeue those that go on with the run, as far as it came.

    A run that was ended before its first checkpoint begins anew under another name. Only starts before this one are
    looked at, so that all ranks decide alike.
    """
    if job["run"] is None or job["resumes"] or not restarts:
        return job["arguments"]
    earlier = [Path(_name(job["run"], count)) for count in range(restarts)]
    for run in reversed(earlier):
        if _has_checkpoint(run):
            return ["--resume", str(run), "--launch", "slurm"]
    anew = Path(_name(job["run"], restarts)).name
    return [*job["arguments"], "--id", anew]


def _has_checkpoint(run: Path) -> bool:
    return any(each.parent.suffix != ".partial" for each in run.glob("checkpoints/*/manifest.json"))


def _name(run: str, restarts: int) -> str:
    return f"{run}-start{restarts + 1}" if restarts else run


if __name__ == "__main__":
    main(Path(sys.argv[1]))
