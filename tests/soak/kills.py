"""Ranks that are killed at random moments of real runs, which must end as if nothing had happened.

A run is the train command of a paper on four ranks. One of them gets SIGKILL: between two steps or in one, while a
checkpoint is written, or in an evaluation. The command starts the ranks again from the last good checkpoint; its final
parameters, optimizer and metrics are held against those of a run that nobody disturbed, bit for bit.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open

from common.claims.origin import ROOT
from common.grid import Grid
from common.training.metrics import read_metrics

LAYOUTS = (Grid(tp=2, pp=2), Grid(dp=2, tp=2), Grid(dp=2, pp=2))
PHASES = ("step", "save", "evaluation")
STEPS, SAVE, EVALUATE = 20, 4, 5
KEPT = ("step", "loss", "lr", "grad_norm", "tokens", "skipped", "evaluation", "perplexity")
"""Of a line of metrics, what does not tell the time."""


@dataclass(frozen=True)
class Outcome:
    """Of one run. seconds: from the kill to the command's word of it. alike: equal to the undisturbed run, bit for bit."""

    layout: str
    phase: str
    rank: int
    status: int
    killed: bool
    seconds: float
    alike: bool


def command(grid: Grid, runs: Path, name: str) -> list[str]:
    return [sys.executable, "-m", "papers.interleaved_pipelining.train", "laptop", "--grid.tp", str(grid.tp), "--grid.pp",
            str(grid.pp), "--grid.dp", str(grid.dp), "--training.steps", str(STEPS), "--rate.total", str(STEPS),
            "--training.micro-batch", "1", "--training.save-every", str(SAVE), "--training.evaluate-every", str(EVALUATE),
            "--training.evaluate-sequences", "64", "--restarts", "3", "--runs", str(runs), "--id", name]


def start(grid: Grid, runs: Path, name: str) -> subprocess.Popen:
    return subprocess.Popen(command(grid, runs, name), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def disturbed(grid: Grid, phase: str, runs: Path, name: str, draw: random.Random, limit: float = 110.0) -> Outcome:
    """One run with one rank killed."""
    victim, told = draw.randrange(grid.world), threading.Event()
    process = start(grid, runs, name)
    heard: list[float] = []

    def listen() -> None:
        for line in process.stderr:
            if " failed: " in line and not heard:
                heard.append(time.monotonic())
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    end = time.monotonic() + limit
    moment(phase, runs / name, draw, lambda: process.poll() is None and time.monotonic() < end)
    pids = rank_processes(process.pid)
    killed = process.poll() is None and len(pids) == grid.world
    at = time.monotonic()
    if killed:
        os.kill(pids[victim], signal.SIGKILL)
    try:
        status = process.wait(max(end - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        process.kill()
        status = -signal.SIGKILL
    told.wait(5)
    alike = status == 0 and result(runs / name) == undisturbed(grid, runs)
    return Outcome(describe(grid), phase, victim, status, killed and bool(heard), heard[0] - at if heard else 0.0, alike)


def moment(phase: str, run: Path, draw: random.Random, going: Callable[[], bool]) -> None:
    """Waits for a random moment of that phase."""
    number = draw.randrange(1, (STEPS - 1) // (EVALUATE if phase == "evaluation" else SAVE))

    def reached() -> bool:
        if phase == "save":
            return any(run.glob(f"checkpoints/step-{number * SAVE:08d}*"))
        wanted = number * EVALUATE if phase == "evaluation" else number * SAVE - draw.randrange(SAVE)
        return any(f'"step": {wanted},' in line for line in lines(run / "metrics.jsonl"))

    while going() and not reached():
        time.sleep(0.002)
    time.sleep(draw.uniform(0, {"step": 0.2, "save": 0.02, "evaluation": 0.05}[phase]))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def rank_processes(launcher: int) -> list[int]:
    """The ranks of a launcher, oldest first: children of its fork server, which is a child of its own."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has gone meanwhile
    return sorted(pid for pid, parent in parents.items() if parents.get(parent) == launcher)


@cache
def undisturbed(grid: Grid, runs: Path) -> tuple:
    name = f"undisturbed-{describe(grid)}"
    _, errors = (process := start(grid, runs, name)).communicate()
    if process.returncode:
        raise RuntimeError(f"the undisturbed run failed: {errors}")
    return result(runs / name)


def describe(grid: Grid) -> str:
    return f"tp{grid.tp}-pp{grid.pp}-dp{grid.dp}"


def result(run: Path) -> tuple:
    """All tensors of the last checkpoint, as bytes, and all metrics that do not tell the time."""
    folder = run / "checkpoints" / f"step-{STEPS:08d}"
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name).view(torch.uint8).numpy().tobytes() for name in file.keys()}
    rows = [tuple(row.get(name) for name in KEPT) for row in read_metrics(run / "metrics.jsonl")]
    return tuple(sorted(tensors.items())), tuple(rows)


def campaign(runs: Path, count: int, seed: int) -> Iterator[Outcome]:
    """`count` runs over all phases and layouts in turn."""
    draw = random.Random(seed)
    for number in range(count):
        grid, phase = LAYOUTS[number // len(PHASES) % len(LAYOUTS)], PHASES[number % len(PHASES)]
        yield disturbed(grid, phase, runs, f"{number:03d}-{phase}", draw)
