"""Memory of every pipeline rank over an iteration, term by term, each with how sure it is.

exact: counted on the objects of the real code at the real size. predicted: follows from the schedule or from traces of
parts. assumed: of libraries below this project, from what others measured.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.grid import Grid
from common.pipeline.schedule import Schedule
from common.pipeline.windows import FORWARD, in_flight
from common.precision.policy import precision
from common.predict.machine import Accelerator
from common.predict.stages import Stage
from common.training.step import Execution

EXACT, PREDICTED, ASSUMED = "exact", "predicted", "assumed"
CONTEXT = 0.6e9
"""Bytes of a CUDA context with PyTorch's kernels: over 1,000 MB when all are loaded, about 300 MB when loaded as needed,
from CUDA 11.7 on (https://github.com/pytorch/pytorch/issues/107667); between the two."""
PROCESS = 0.4e9
"""Bytes of a Python process with PyTorch loaded, on a CPU."""
GROUP, PAIR = 0.55e9, 0.1e9
"""Bytes that NCCL takes for a group with collectives inside a node of A100, 544 to 688 MB
(https://github.com/NVIDIA/nccl/issues/964); and, by its buffers of 4 MiB on a few channels each way, for a group of two."""
PRODUCT_WORKSPACE = 33.6e6
"""Bytes of cuBLAS's workspace: 32 MiB are recommended from Hopper on, 8.1 MiB before (cuBLAS, cublasSetWorkspace)."""
MESSAGES = 4
"""Messages between stages that a rank may hold: each way, one that has arrived or is on its way, and one that leaves."""
FRAGMENTATION = 0.05
"""Share of what comes and goes that is lost between blocks of the caching allocator, which rounds large ones up to 2 MiB
and cannot join those that live for different times. Parameters and optimizer lie in a few large ones and lose none."""


@dataclass(frozen=True)
class Term:
    """bytes of one kind. certainty: exact, predicted or assumed. group: what it belongs to."""

    group: str
    name: str
    bytes: float
    certainty: str


@dataclass(frozen=True)
class RankMemory:
    """One pipeline rank at its peak. in_flight: micro-batches that each chunk then holds. apart: fragmentation."""

    rank: int
    in_flight: tuple[int, ...]
    terms: tuple[Term, ...]
    apart: float

    @property
    def total(self) -> float:
        """Without fragmentation."""
        return sum(term.bytes for term in self.terms)

    @property
    def needed(self) -> float:
        return self.total + self.apart

    def by_group(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for term in self.terms:
            found[term.group] += term.bytes
        return dict(found)


@dataclass(frozen=True)
class Memory:
    """ranks: of the pipeline, in order; all tensor and data ranks are alike. limit: bytes that a process can have."""

    ranks: tuple[RankMemory, ...] = field(repr=False)
    limit: float

    @property
    def peak(self) -> RankMemory:
        return max(self.ranks, key=lambda rank: rank.needed)

    @property
    def fits(self) -> bool:
        """Fragmentation included."""
        return self.peak.needed <= self.limit


@dataclass(frozen=True)
class Moment:
    """When a rank holds the most: micro-batches in flight in each chunk, and what the pass that runs holds beyond."""

    in_flight: tuple[int, ...]
    passing: int


def peaks(schedule: Schedule, stages: Sequence[Stage]) -> list[Moment]:
    """For each rank, from the order of its actions."""
    return [max(_curve(schedule, stages, rank), key=lambda found: found[0])[1] for rank in range(schedule.ranks)]


def held(schedule: Schedule, stages: Sequence[Stage], rank: int) -> np.ndarray:
    """Bytes kept for backward after each action of a rank, (actions,)."""
    kept = np.array([stages[schedule.stage(rank, c)].kept for c in range(schedule.chunks)])
    return in_flight(schedule, rank) @ kept


def _curve(schedule: Schedule, stages: Sequence[Stage], rank: int) -> Iterator[tuple[float, Moment]]:
    """The largest sum of kept and passing bytes while each chunk runs."""
    mine = [stages[schedule.stage(rank, c)] for c in range(schedule.chunks)]
    kept = np.array([stage.kept for stage in mine])
    after = in_flight(schedule, rank)
    during = np.where((schedule.actions[rank][:, 0] == FORWARD)[:, None], after, np.vstack([after[:1] * 0, after[:-1]]))
    for chunk, stage in enumerate(mine):
        running = np.flatnonzero(schedule.actions[rank][:, 1] == chunk)
        at = running[(during[running] @ kept).argmax()]
        yield float(during[at] @ kept) + stage.moment, Moment(tuple(during[at].tolist()), stage.moment)


def rank_memory(rank: int, stages: Sequence[Stage], moment: Moment, execution: Execution, grid: Grid,
                accelerator: Accelerator, border: int) -> RankMemory:
    """stages: the chunks of this pipeline rank. border: bytes of a message between stages on this rank."""
    terms = [Term("parameters and optimizer", name, size, EXACT) for name, size in state(stages, execution, grid).items()]
    kept: Counter[str] = Counter()
    for stage, times in zip(stages, moment.in_flight, strict=True):
        for name, size in stage.saved.items():
            kept[name] += times * size
    activations = [Term("activations", name, size, EXACT) for name, size in kept.items() if size]
    passing = [Term("temporaries", "forward and backward of one micro-batch", moment.passing, PREDICTED)]
    if grid.pp > 1:
        activations.append(Term("messages", "between stages", MESSAGES * border, PREDICTED))
    loose = sum(term.bytes for term in (*activations, *passing))
    return RankMemory(rank, moment.in_flight, (*terms, *activations, *passing, *libraries(grid, accelerator)),
                      FRAGMENTATION * loose)


def state(stages: Sequence[Stage], execution: Execution, grid: Grid) -> dict[str, float]:
    """Bytes that stay from step to step, by kind.

    With a sharded optimizer a data rank has its part of main weights and moments, and beside the whole main gradients its
    part of their sums (common/parallel/gradients.py); buckets are padded by less than one element for each data rank.
    """
    found: Counter[str] = Counter()
    for stage in stages:
        found.update(stage.state)
    shares = grid.size("dp", "cp")
    if execution.sharded_optimizer and shares > 1:
        elements, types = sum(stage.parameters for stage in stages), precision(execution.precision)
        main = 0 if types.main == types.parameters else types.main.itemsize
        found["main weights"] = main * elements / shares
        for name in ("first moments", "second moments"):
            found[name] = types.main.itemsize * elements / shares
        found["gradients, this rank's sums"] = types.gradients.itemsize * elements / shares
    return {name: size for name, size in found.items() if size}


def libraries(grid: Grid, accelerator: Accelerator) -> Iterator[Term]:
    if not accelerator.tiles:
        yield Term("libraries", "process", PROCESS, ASSUMED)
        return
    yield Term("libraries", "CUDA context", CONTEXT, ASSUMED)
    yield Term("libraries", "workspace of matrix products", PRODUCT_WORKSPACE, ASSUMED)
    groups = [grid.tp > 1, grid.size("dp", "cp") > 1, grid.world > 1]
    if any(groups):
        yield Term("libraries", "NCCL, groups", sum(groups) * GROUP, ASSUMED)
    if grid.pp > 1:
        yield Term("libraries", "NCCL, neighbours", 4 * PAIR, ASSUMED)
