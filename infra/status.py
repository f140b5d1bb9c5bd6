"""`python -m infra.status [--runs FOLDER] [--json]`: jobs and runs, how far each has come, and what the queue says."""

import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from common.training.command import guarded
from common.training.metrics import read_metrics
from common.training.progress import clock
from infra.slurm.local_cluster import use_running_cluster
from infra.slurm.send import FOLDER

PROGRAM = "python -m infra.status"
RECENT = 10
ASK_SECONDS = 30.0


@dataclass(frozen=True)
class Row:
    """One run, or a job that has none (yet). state: the queue's word, and its reason for one that waits; `done` for all
    steps, `ended` for a job that has left the queue, empty for a run that no job holds. left: of the job's time limit.
    loss: of the last step, nats a token. tokens_per_s: median of the last ten steps. age: seconds since the last."""

    name: str
    job: str = ""
    state: str = ""
    left: str = ""
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    age: float | None = None


def rows(runs: Path) -> list[Row]:
    """Of a folder of runs, by name. Raises ValueError for one that is not there or a damaged file in it."""
    if not runs.is_dir():
        raise ValueError(f"--runs {str(runs)!r} is not a folder")
    jobs = {folder.name: folder for folder in sorted((runs / FOLDER).glob("*")) if (folder / "job.json").is_file()}
    queue = _queue() if jobs else {}
    held: dict[str, tuple[str, dict[str, str]]] = {}
    found = []
    for name, folder in jobs.items():
        number = (folder / "id").read_text(encoding="utf-8") if (folder / "id").is_file() else ""
        place = _read(folder / "job.json")["run"]
        entry = number, queue.get(number, {"state": "ended", "left": ""})
        made = [path for path in _starts(Path(place)) if path.is_dir()] if place else []
        held |= {path.name: entry for path in made}
        if not made:
            found.append(Row(name, number, **entry[1]))
    for config in sorted(runs.glob("*/config.json")):
        number, job = held.get(config.parent.name, ("", {"state": "", "left": ""}))
        found.append(_run(config.parent, number, job))
    return sorted(found, key=lambda row: row.name)


def _starts(run: Path) -> list[Path]:
    """The run and those that a requeued job began anew."""
    return [run, *run.parent.glob(f"{run.name}-start*")]


def _run(run: Path, number: str, job: dict[str, str]) -> Row:
    steps = _read(run / "config.json").get("training", {}).get("steps")
    done = [row for row in read_metrics(run / "metrics.jsonl") if "loss" in row and "lr" in row]
    if not done:
        return Row(run.name, number, steps=steps, **job)
    last = done[-1]
    state = "done" if steps is not None and last["step"] >= steps and job["state"] in ("", "ended") else job["state"]
    return Row(run.name, number, state, job["left"], last["step"], steps, last["loss"],
               statistics.median(row["tokens_per_s"] for row in done[-RECENT:]),
               time.time() - (run / "metrics.jsonl").stat().st_mtime)


def _queue() -> dict[str, dict[str, str]]:
    """State and time left of this user's jobs by number; empty without SLURM. OSError where SLURM does not answer."""
    use_running_cluster()
    if shutil.which("squeue") is None:
        return {}
    done = subprocess.run(["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%L|%r"], capture_output=True,
                          text=True, timeout=ASK_SECONDS, check=False)
    if done.returncode:
        raise OSError(f"squeue failed: {done.stderr.strip()}")
    found = {}
    for line in done.stdout.splitlines():
        number, state, left, reason = line.split("|", 3)
        waits = f" ({reason})" if reason not in ("None", "") else ""
        found[number] = {"state": state.lower() + waits, "left": left if state == "RUNNING" else ""}
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from None


def _table(found: list[Row]) -> Table:
    table = Table("run", "job", "state", "left", box=None, pad_edge=False)
    for name in ("step", "loss", "tokens/s", "last step"):
        table.add_column(name, justify="right")
    for row in found:
        step = f"{row.step}/{row.steps}" if row.steps else ""
        table.add_row(row.name, row.job, row.state, row.left, step, "" if row.loss is None else f"{row.loss:.4f}",
                      "" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
                      "" if row.age is None else f"{clock(row.age)} ago")
    return table


def _show(runs: Path = Path("runs"), json_: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
          ) -> None:
    """Jobs and runs, how far each has come, and what the queue says.

    runs: folder of runs. json_: print JSON in place of a table.
    """
    found = rows(runs)
    if json_:
        print(json.dumps([asdict(row) for row in found], indent=1))
        return
    out = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
    out.print(_table(found) if found else f"no runs in {runs}")


if __name__ == "__main__":
    guarded(PROGRAM, lambda: tyro.cli(_show, prog=PROGRAM))
