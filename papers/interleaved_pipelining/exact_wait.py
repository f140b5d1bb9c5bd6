"""A stage whose compute is an exact wait, and iterations of the real executor over such stages.

Ranks that sleep need no processor, so eight of them run side by side on two cores as they would on eight devices: what
an iteration takes beyond the formula is the executor's own time and that of its messages. Shapes: B sequences, H hidden.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from common.grid import Grid
from common.layout import Layout
from common.models.language_model import CarryShape, LossTerm
from common.models.record import Record
from common.pipeline.execute import Pipeline
from common.pipeline.schedules import make
from infra.rank_context import RankContext

SEQUENCES, HIDDEN = 1, 64


@dataclass
class Times:
    """What one forward and one backward of a stage take, seconds. spent: what they really took so far."""

    forward: float
    backward: float
    spent: float = 0.0

    def pass_by(self, began: float, seconds: float) -> None:
        """Sleeps until `seconds` after `began` (time.perf_counter); the processor is free meanwhile."""
        left = began + seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)
        self.spent += time.perf_counter() - began


class _Wait(Function):
    """y = x w, element by element. Each direction computes first and then lets the rest of its time pass."""

    @staticmethod
    def forward(ctx, x_BH: Tensor, w_H: Tensor, times: Times) -> Tensor:
        began = time.perf_counter()
        ctx.save_for_backward(x_BH, w_H)
        ctx.times = times
        y_BH = x_BH * w_H
        times.pass_by(began, times.forward)
        return y_BH

    @staticmethod
    def backward(ctx, grad_BH: Tensor):
        began = time.perf_counter()
        x_BH, w_H = ctx.saved_tensors
        grads = grad_BH * w_H, (grad_BH * x_BH).sum(0), None
        ctx.times.pass_by(began, ctx.times.backward)
        return grads


class WaitingLayer(nn.Module):
    """The layer itself, tensor to tensor, for any executor. Its weight depends on the stage alone."""

    def __init__(self, stage: int, times: Times):
        super().__init__()
        self.times = times
        noise = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(stage))
        self.weight = nn.Parameter(1 + 0.1 * noise)

    def forward(self, x_BH: Tensor) -> Tensor:
        return _Wait.apply(x_BH, self.weight, self.times)


class WaitingStage(nn.Module):
    """A stage of the executor with one such layer; the loss is the sum of what the last stage hands on."""

    def __init__(self, stage: int, stages: int, times: Times):
        super().__init__()
        self.first, self.last, self.layer = stage == 0, stage == stages - 1, WaitingLayer(stage, times)

    def carry(self, record: Record) -> dict[str, CarryShape]:
        return {"x": CarryShape((SEQUENCES, HIDDEN), torch.float32, False)}

    def forward(self, record: Record, carry: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, LossTerm]]:
        y_BH = self.layer(record.tokens.float() if self.first else carry["x"])
        return ({}, {"sum": LossTerm(y_BH.sum(), torch.tensor(SEQUENCES))}) if self.last else ({"x": y_BH}, {})


def micro_batch(number: int) -> Record:
    """Its tokens (B, H) are the first stage's input."""
    tokens = torch.randint(1, 9, (SEQUENCES, HIDDEN), generator=torch.Generator().manual_seed(number))
    return Record(tokens, tokens, tokens > 0, tokens, samples=tuple(range(number, number + SEQUENCES)))


def total(terms: dict[str, LossTerm]) -> Tensor:
    return terms["sum"].sum


@dataclass(frozen=True)
class Point:
    """A schedule of p ranks with v chunks each and m micro-batches, and the seconds of one action."""

    schedule: str
    p: int
    v: int
    m: int
    forward: float
    backward: float

    @property
    def ideal(self) -> float:
        """t_id, seconds: what a rank computes."""
        return self.m * self.v * (self.forward + self.backward)

    @property
    def actions(self) -> int:
        """Of one rank."""
        return 2 * self.m * self.v


@dataclass(frozen=True)
class Share:
    """One rank's iteration: start and end of the clock that all ranks share; seconds in stages; of its processor."""

    start: float
    end: float
    waited: float
    processor: float


@dataclass(frozen=True)
class Iteration:
    """seconds: from the first rank's start to the last one's end. waited, processor: of the ranks, on average."""

    seconds: float
    waited: float
    processor: float

    @classmethod
    def of(cls, shares: Sequence[Share]) -> "Iteration":
        mean = [sum(getattr(share, name) for share in shares) / len(shares) for name in ("waited", "processor")]
        return cls(max(s.end for s in shares) - min(s.start for s in shares), *mean)


class Waiting:
    """This rank's waiting stages and their executor; times may change from run to run."""

    def __init__(self, layout: Layout, chunks: int):
        self.layout, self.chunks = layout, chunks
        self.times = Times(0.0, 0.0)
        p, rank = layout.size("pp"), layout.index("pp")
        self.stages = [WaitingStage(c * p + rank, p * chunks, self.times) for c in range(chunks)]
        self.pipeline = Pipeline(self.stages, layout)

    def run(self, point: Point) -> Share:
        """One iteration, all ranks at once."""
        self.times.forward, self.times.backward, self.times.spent = point.forward, point.backward, 0.0
        schedule = make(point.schedule, point.p, point.v, point.m)
        records = [micro_batch(i) for i in range(point.m)]
        if point.p > 1:
            dist.barrier()
        processor, start = time.process_time(), time.perf_counter()
        self.pipeline.run(schedule, records, total)
        end = time.perf_counter()
        return Share(start, end, self.times.spent, time.process_time() - processor)

    def plainly(self, point: Point) -> Share:
        """The same stages called one after the other by hand, on one rank without messages."""
        self.times.forward, self.times.backward, self.times.spent = point.forward, point.backward, 0.0
        records = [micro_batch(i) for i in range(point.m)]
        processor, start = time.process_time(), time.perf_counter()
        for record in records:
            carry, terms = {}, {}
            for stage in self.stages:
                carry, terms = stage(record, carry)
            total(terms).backward()
        end = time.perf_counter()
        return Share(start, end, self.times.spent, time.process_time() - processor)


def on_rank(context: RankContext, points: Sequence[Point], repeats: int) -> list[list[Share]]:
    """This rank's iterations of each point, after one that opens the connections and is not counted."""
    layout = Layout(Grid(pp=context.size), context.rank)
    by_chunks: dict[int, Waiting] = {}
    found = []
    for point in points:
        if point.v not in by_chunks:
            by_chunks[point.v] = Waiting(layout, point.v)
            by_chunks[point.v].run(Point(point.schedule, point.p, point.v, point.p, 0.0, 0.0))
        found.append([by_chunks[point.v].run(point) for _ in range(repeats)])
    return found


def iterations(points: Sequence[Point], repeats: int) -> dict[Point, list[Iteration]]:
    """Every point on new gloo ranks of this machine, as many as it has pipeline ranks."""
    from infra.launch import run_local

    found: dict[Point, list[Iteration]] = {}
    for p in sorted({point.p for point in points}):
        mine = [point for point in points if point.p == p]
        seconds = repeats * sum(2 * (point.m + p) * point.v * (point.forward + point.backward) for point in mine)
        by_rank = run_local(on_rank, p, mine, repeats, timeout=120 + 2 * seconds)
        for i, point in enumerate(mine):
            found[point] = [Iteration.of(shares) for shares in zip(*(rank[i] for rank in by_rank), strict=True)]
    return found
