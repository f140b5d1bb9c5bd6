"""What a rank does once an iteration: sums of gradients over data ranks and between the ends, the norm, the update.

The order is that of common/parallel/gradients.py and common/training/step.py. Buckets of a chunk are sent as its last
backward pass fills them, one after the other; without overlap, when the rank's passes are done. Gradients that other ranks
of the model add to go after that sum.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.pipeline.simulate import Simulation
from common.pipeline.windows import RELEASING
from common.precision.policy import precision
from common.predict.pieces import Way, updates
from common.predict.price import Costs
from common.predict.stages import Stage
from common.trace.record import Operation
from common.training.step import Execution

DATA, TIED = "gradients over data ranks", "gradients of the tied embedding"
SMALL = 1024  # bytes; operations on less are on single numbers, and come once whatever the size of the model


@dataclass(frozen=True)
class Span:
    """Something that a rank does besides its actions; start and end in seconds of the iteration."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Ending:
    """sums: per pipeline rank, the messages of its gradients. ready: when every rank has all its sums. update: seconds of
    zeroing, norm, clipping and step; gather: of collecting parameters that other data ranks have updated."""

    sums: tuple[tuple[Span, ...], ...]
    ready: float
    update: float
    gather: float

    @property
    def end(self) -> float:
        return self.ready + self.update + self.gather


@dataclass(frozen=True)
class Load:
    """Elements of one pipeline rank. chunks: whose gradients go as soon as their chunk's backward is done; late: those
    that other ranks of the model add to first; tied: of late ones, those that both ends of the pipeline hold."""

    chunks: tuple[int, ...]
    late: int
    tied: int

    @property
    def total(self) -> int:
        return sum(self.chunks) + self.late


class Update:
    """Of one recipe's model, execution and grid, priced."""

    def __init__(self, model: LanguageModelConfig, execution: Execution, grid: Grid, costs: Costs):
        self.model, self.execution, self.grid, self.costs = model, execution, grid, costs
        self.types = precision(execution.precision)
        self.shares = grid.size("dp", "cp")
        self.sharded = execution.sharded_optimizer and self.shares > 1

    def loads(self, stages: Sequence[Stage]) -> list[Load]:
        """Of every pipeline rank."""
        pp, found = self.grid.pp, []
        table = math.ceil(self.model.vocab / self.grid.tp) * self.model.hidden
        for rank in range(pp):
            mine = stages[rank::pp]
            ends = self.model.tied and pp > 1 and rank in (0, pp - 1)
            tied = table if ends else 0
            late = [stage.shared + (tied if i == (0 if rank == 0 else len(mine) - 1) else 0)
                    for i, stage in enumerate(mine)]
            found.append(Load(tuple(s.parameters - x for s, x in zip(mine, late, strict=True)), sum(late), tied))
        return found

    def ending(self, played: Simulation, loads: Sequence[Load]) -> Ending:
        ends = [float(end[-1]) for end in played.end]
        both = max(ends[0], ends[-1])  # the ends of the pipeline meet
        sums = tuple(tuple(self._sums(played, rank, load, both)) for rank, load in enumerate(loads))
        ready = max(max([end, *(span.end for span in spans)]) for end, spans in zip(ends, sums, strict=True))
        return Ending(sums, ready, max(map(self.update, loads)), max(map(self.gather, loads)))

    def after(self, loads: Sequence[Load]) -> tuple[float, float]:
        """Seconds from the end of the passes to the end of the iteration, and of sums that can run beside the last backward
        passes and come on top as far as they do not. For ranking layouts before they are simulated."""
        def sums(elements: Sequence[int]) -> float:
            return sum(takes for each in elements for takes in self._bucket_times(each))

        late = max(self._tied(load) + sums((load.late,)) for load in loads)
        beside = max(sums(load.chunks) for load in loads)
        after = late + max(map(self.update, loads)) + max(map(self.gather, loads))
        return (after, beside) if self.execution.overlaps("dp") else (after + beside, 0.0)

    def _ranks(self, rank: int) -> tuple[int, ...]:
        return self.grid.group(self.grid.rank(pp=rank), "dp", "cp")

    def _bucket_times(self, elements: int) -> Iterator[float]:
        """Seconds of each message that sums so many gradients over data ranks."""
        if self.shares == 1 or not elements:
            return
        count = math.ceil(elements / max(self.execution.bucket, 1)) if elements > self.execution.bucket else 1
        name = "reduce_scatter" if self.sharded else "all_reduce"
        sent = self.types.gradients if self.execution.reduce_in == "main" else self.types.parameters
        takes = self.costs.message(name, elements * sent.itemsize / count, self._ranks(0))
        for _ in range(count):
            yield takes

    def _tied(self, load: Load) -> float:
        if not load.tied:
            return 0.0
        ends = self.grid.group(0, "pp")
        return self.costs.message("all_reduce", load.tied * self.types.gradients.itemsize, (ends[0], ends[-1]))

    def _sums(self, played: Simulation, rank: int, load: Load, both: float) -> Iterator[Span]:
        """Buckets that are not under way when the passes are done begin after the sum over both ends of the pipeline."""
        end, overlap = float(played.end[rank][-1]), self.execution.overlaps("dp")
        met = max(end, both) + self._tied(load) if load.tied else end
        if load.tied:
            yield Span(TIED, max(end, both), met)
        free = 0.0 if overlap else met
        for chunk, start, done in _last_backwards(played, rank):
            times = list(self._bucket_times(load.chunks[chunk]))
            for i, takes in enumerate(times):
                filled = start + (i + 1) / len(times) * (done - start)
                begin = max(free, filled)
                free = begin + takes
                yield Span(DATA, begin, free)
        free = max(free, met)
        for takes in self._bucket_times(load.late):
            yield Span(DATA, free, free := free + takes)

    @cached_property
    def _step(self) -> tuple[tuple[Operation, ...], int]:
        return updates(self.model, self.model.layers.units[0], replace(
            Way.of(self.execution, self.grid.tp, 1, "none"), sequence_parallel=False))

    def update(self, load: Load) -> float:
        """Zeroing, norm, clipping and step. Under loss scaling, gradients are divided by the scale as well."""
        size = self.types.gradients.itemsize
        zero = Operation("aten.zero_", "optimizer", "", ((load.total,),), ((load.total,),), "float32", 0, 0, load.total * size)
        mine = load.total / (self.shares if self.sharded else 1)
        traced, elements = self._step
        seconds = self.costs.operation(zero)
        for operation in traced:
            if operation.read + operation.written < SMALL:
                seconds += self.costs.operation(operation)
                continue
            part = _scaled(operation, mine / load.total)
            again = 2 if operation.name == "aten.mul_" and self.execution.precision == "fp16" else 1
            seconds += again * self.costs.operation(part) * load.total / elements
        if self.grid.world > 1:
            seconds += self.costs.message("all_reduce", 8, range(self.grid.world))
        return seconds

    def gather(self, load: Load) -> float:
        if not self.sharded:
            return 0.0
        size = load.total * self.types.parameters.itemsize
        count = max(1, math.ceil(load.total / self.execution.bucket))
        return count * self.costs.message("all_gather", size / count, self._ranks(0))


def _scaled(operation: Operation, part: float) -> Operation:
    return replace(operation, read=round(operation.read * part), written=round(operation.written * part))


def _last_backwards(played: Simulation, rank: int) -> list[tuple[int, float, float]]:
    """Of each chunk of a rank: (chunk, start, end) of the last action that completes its gradients, in their order."""
    actions = played.schedule.actions[rank]
    releasing = np.flatnonzero(np.isin(actions[:, 0], list(RELEASING)))
    last = {int(actions[i, 1]): int(i) for i in releasing}
    return [(chunk, float(played.start[rank][i]), float(played.end[rank][i])) for chunk, i in sorted(last.items(), key=lambda x: x[1])]
