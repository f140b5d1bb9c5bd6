"""The numbers of each step: JSON lines that survive a kill, TensorBoard, and a line on the terminal."""

import errno
import json
import math
import os
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from common.checkpoint.files import replaced
from common.training.progress import Progress

# Strict JSON has no word for these; they stand as strings.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class StepMetrics:
    """What one step measured, summed or averaged over all ranks.

    step: 1 for the first. loss: per counted token, in nats. lr: the rate that this step used. grad_norm:
    before clipping. tokens: of this step. tokens_per_s, mfu: of this step's wall time; mfu is model FLOPs
    over the machine's measured peak, None where no peak was measured. loss_scale: None without one.
    skipped: the update was left out (a gradient that is not finite). times: seconds by part of the step.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    tokens_per_s: float
    mfu: float | None = None
    loss_scale: float | None = None
    skipped: bool = False
    times: dict[str, float] = field(default_factory=dict)


class MetricsLog:
    """Writes a run's metrics on rank 0; on other ranks it does nothing.

    Every line is handed to the operating system whole, so a killed process loses at most the line that it
    was writing; readers drop an unfinished last line. Lines that a full disk refuses wait for room.
    """

    def __init__(self, path: Path, *, rank: int = 0, resume_at: int | None = None,
                 total_steps: int | None = None, tensorboard: Path | None = None,
                 stream: TextIO | None = None) -> None:
        """path: metrics.jsonl. resume_at: the checkpoint's step, after which lines are dropped; None for a
        new run. total_steps: for the time left. tensorboard: folder to write there too. stream: where
        progress goes, default standard output.

        Raises ValueError for a new run whose file has lines already, and for a file that is damaged.
        """
        self._file: int | None = None
        self._path, self._waiting, self._before = path, b"", []
        if rank != 0:
            return
        if resume_at is None and path.exists() and path.stat().st_size:
            raise ValueError(f"{str(path)!r} has metrics already: resume that run or start another")
        if resume_at is not None:
            drop_after(path, resume_at)
            done = read_metrics(path) if path.exists() else []
            self._before = [row["loss"] for row in done if "loss" in row and not row.get("skipped", True)]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._progress = Progress(resume_at or 0, total_steps, stream)
        self._tensorboard = _tensorboard_writer(tensorboard, resume_at) if tensorboard else None

    def step(self, metrics: StepMetrics) -> None:
        """One line for a step, and the progress shown."""
        if self._file is None:
            return
        values = asdict(metrics)
        self._write(values)
        self._progress.update(metrics.step, metrics.loss, metrics.tokens_per_s, metrics.mfu, metrics.skipped)
        self._plot("train", {name: value for name, value in values.items() if name != "step"}, metrics.step)

    def evaluation(self, step: int, name: str, values: dict[str, float]) -> None:
        """One line for an evaluation after `step`: {"step", "evaluation": name, its values}."""
        if self._file is None:
            return
        self._write({"step": step, "evaluation": name} | values)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
        self._progress.say(f"step {step}  {name}: {shown}")
        self._plot(name, values, step)

    def event(self, step: int, name: str, values: dict[str, Any]) -> None:
        """One line for something out of the ordinary: {"step", "event": name, its values}."""
        if self._file is None:
            return
        self._write({"step": step, "event": name} | values)
        shown = ", ".join(f"{key} {_short(value)}" for key, value in values.items())
        self._progress.say(f"step {step}  {name}: {shown}")

    def losses_before(self, count: int) -> list[float]:
        """Of the last steps that a run which goes on has done and not skipped, at most `count`."""
        return self._before[-count:]

    def close(self) -> None:
        """Raises OSError where lines are left that could not be written."""
        if self._file is None:
            return
        self._progress.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        self._flush()
        os.close(self._file)
        self._file = None
        if self._waiting:
            lines = self._waiting.count(b"\n")
            raise OSError(errno.ENOSPC, f"the last {lines} lines of metrics could not be written: make room on the disk of "
                                        f"{str(self._path)!r}")

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError) if kind else nullcontext():
            self.close()

    def _write(self, values: dict[str, Any]) -> None:
        line = json.dumps(_strict(values), allow_nan=False, ensure_ascii=False) + "\n"
        self._waiting += line.encode()
        self._flush()

    def _flush(self) -> None:
        """Writes what waits, whole or not at all: training goes on beside a full disk, and lines wait for room."""
        if not self._waiting:
            return
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, self._waiting)
            if written != len(self._waiting):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if os.fstat(self._file).st_size > size:
                os.ftruncate(self._file, size)
            self._progress.say(f"{self._path} cannot be written ({error.strerror}): its lines wait until it can")
        else:
            self._waiting = b""

    def _plot(self, group: str, values: dict[str, Any], step: int) -> None:
        if self._tensorboard is None:
            return
        for name, value in values.items():
            if isinstance(value, dict):
                self._plot(f"{group}/{name}", value, step)
            elif value is not None:
                self._tensorboard.add_scalar(f"{group}/{name}", float(value), step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics.jsonl, steps and evaluations, as written; an unfinished last line is left out.

    Raises ValueError for a damaged line before the last.
    """
    return [row for _, row in _rows(path)]


def drop_after(path: Path, step: int) -> None:
    """Remove what was written after `step`, and an unfinished last line; at any moment the file is whole."""
    if not path.exists():
        return
    kept = b"".join(line for line, row in _rows(path) if row["step"] <= step)
    if kept == path.read_bytes():
        return
    with replaced(path) as partial:
        partial.write_bytes(kept)


def _rows(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """(the line with its end, what it holds) of every whole line."""
    found = []
    *lines, _unfinished = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if type(row["step"]) is not int:
                raise ValueError("its step is no whole number")
            found.append((line + b"\n", {name: _loose(value) for name, value in row.items()}))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(path)!r}, line {number} is damaged: {line[:80]!r}") from error
    return found


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _loose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _tensorboard_writer(folder: Path, resume_at: int | None) -> Any:
    """Imported here because the import takes seconds. Points after the step resumed from are hidden."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=None if resume_at is None else resume_at + 1)
