"""All ways to lay out and run a model on so many ranks, and why some cannot be.

Axes: tensor, pipeline and data size, schedule and chunks, micro-batch, sequence parallelism, recomputation, sharded
optimizer. What can be is decided by the checks that training makes. GPipe is left out: 1F1B takes as long and keeps less.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from common.grid import Grid
from common.models.config import check as check_model
from common.pipeline.schedules import make
from common.pipeline.stages import cuts
from common.training.recipe import Recipe
from data.samples import check_batch

POLICIES = ("none", "selective", "norm,activation", "attention.core,norm,activation", "full")
UNEVEN = 8  # chunks per rank up to which stages may be unequal; above, only what cuts the layers evenly


@dataclass
class Refusals:
    """Why layouts fell out: by reason, how many, and one example in words."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
        self.examples.setdefault(reason, example)


def layouts(base: Recipe, ranks: int, refused: Refusals) -> Iterator[Recipe]:
    """Recipes like `base`, its batch, model, kernels and precision kept, on `ranks` ranks.

    What cannot be goes to `refused`: tensor sizes, cuts and schedules once, whatever else there is to choose.
    """
    for tp in _divisors(ranks):
        if problem := _problem(check_model, base.model, tp):
            refused.add("tensor size", f"tp={tp}: {problem}")
            continue
        for pp in _divisors(ranks // tp):
            grid = Grid(tp=tp, dp=ranks // (tp * pp), pp=pp)
            for schedule, chunks in _schedules(base, grid.pp, refused):
                yield from _run(base, grid, schedule, chunks, refused)


def _run(base: Recipe, grid: Grid, schedule: str, chunks: int, refused: Refusals) -> Iterator[Recipe]:
    batch = base.training.batch
    if problem := _problem(check_batch, batch, grid.dp, 1):
        refused.add("batch", f"dp={grid.dp}: {problem}")
        return
    ways = [replace(base.execution, schedule=schedule, chunks=chunks, recompute=policy, sequence_parallel=cut,
                    sharded_optimizer=sharded)
            for cut in ((False, True) if grid.tp > 1 else (False,)) for policy in _policies(base, grid.tp, cut, refused)
            for sharded in ((False, True) if grid.dp > 1 else (False,))]
    for micro_batch in _divisors(batch // grid.dp):
        if problem := _unscheduled(schedule, grid.pp, chunks, batch // (grid.dp * micro_batch)):
            refused.add("schedule", f"pp={grid.pp}, {chunks} chunks: {problem}")
            continue
        training = replace(base.training, micro_batch=micro_batch)
        yield from (replace(base, grid=grid, execution=execution, training=training) for execution in ways)


def _policies(base: Recipe, tp: int, sequence_parallel: bool, refused: Refusals) -> Iterator[str]:
    for policy in POLICIES:
        if problem := _problem(check_model, base.model, tp, sequence_parallel, base.execution.kernels, policy):
            refused.add("policy", problem)
        else:
            yield policy


def _schedules(base: Recipe, pp: int, refused: Refusals) -> Iterator[tuple[str, int]]:
    """Schedules, and chunks per rank, that the layers can be cut for."""
    if problem := _problem(cuts, base.model.layers, pp):
        refused.add("pipeline cut", f"pp={pp}: {problem}")
        return
    yield "1f1b", 1
    if pp == 1:
        return
    yield "zb-h1", 1
    layers = base.model.depth
    for chunks in range(2, layers // pp + 1):
        if _problem(cuts, base.model.layers, pp * chunks) is None and (chunks <= UNEVEN or layers % (pp * chunks) == 0):
            yield "interleaved", chunks


def _problem(check, *arguments) -> str | None:
    """What a check has against its arguments."""
    try:
        check(*arguments)
    except ValueError as error:
        return str(error)
    return None


@cache
def _unscheduled(schedule: str, pp: int, chunks: int, micro_batches: int) -> str | None:
    return _problem(make, schedule, pp, chunks, micro_batches)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
