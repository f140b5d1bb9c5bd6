"""Iterations of small pipelines that really compute, one thread for each of two ranks, and their stages by themselves.

Runs alternate: each round runs every recipe once, in a rotated order, so that a processor whose speed drifts does not
decide which of two is faster. Shapes: B micro-batch, S sequence, H hidden.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from common.layout import Layout
from common.models.record import Record, random_records
from common.trace.live import Live
from common.training.recipe import Recipe
from common.training.step import Training, build, forward_backward
from infra.rank_context import RankContext

WARM_UP = 2  # rounds that are not counted


def micro_batches(recipe: Recipe, count: int) -> list[Record]:
    return random_records(recipe.model.vocab, recipe.model.sequence, recipe.training.micro_batch, count)


@dataclass
class Measured:
    """Of one recipe on one rank. spans: (start, end) of each iteration, by the clock that both ranks share. alone: seconds
    of forward and backward of one micro-batch of this rank's stage, nothing sent. peak: most bytes of live tensors."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    peak: int = 0


def stage_alone(training: Training, recipe: Recipe) -> float:
    """Seconds of forward and backward of this rank's stage on one micro-batch."""
    (stage,), (record,) = training.stages, micro_batches(recipe, 1)
    b, s, h = recipe.training.micro_batch, recipe.model.sequence, recipe.model.hidden
    first = training.layout.index("pp") == 0
    x_SBH, grad_SBH = torch.randn(s, b, h, requires_grad=True), torch.randn(s, b, h)
    start = time.perf_counter()
    carry, terms = stage(record, {} if first else {"hidden": x_SBH})
    if first:
        carry["hidden"].backward(grad_SBH)
    else:
        terms["language"].sum.backward()
    return time.perf_counter() - start


def on_rank(context: RankContext, recipes: Sequence[Recipe], rounds: int) -> list[Measured]:
    """What this rank finds for each recipe; all have the same grid."""
    torch.set_num_threads(1)
    layout = Layout(recipes[0].grid, context.rank)
    trainings = [build(r.model, r.execution, r.optimizer, layout, r.training.seed) for r in recipes]
    records = [micro_batches(r, r.micro_batches) for r in recipes]
    found = [Measured() for _ in recipes]
    gc.disable()
    for turn in range(-WARM_UP, rounds):
        for i in (*range(turn % len(recipes), len(recipes)), *range(turn % len(recipes))):
            trainings[i].gradients.zero()
            dist.barrier()
            start = time.perf_counter()
            forward_backward(trainings[i], records[i])
            end = time.perf_counter()
            trainings[i].gradients.reduce()
            dist.barrier()
            alone = stage_alone(trainings[i], recipes[i])
            if turn >= 0:
                found[i].spans.append((start, end))
                found[i].alone.append(alone)
        gc.collect()
    for training, given, each in zip(trainings, records, found, strict=True):
        with Live() as live:
            forward_backward(training, given)
        each.peak = live.peak
    return found


@dataclass(frozen=True)
class Timed:
    """Of one recipe. iterations: seconds of each. alone: of one micro-batch in the slower stage. peak: bytes of the rank
    that holds most."""

    iterations: tuple[float, ...]
    alone: tuple[float, ...]
    peak: int


def timed(recipes: Sequence[Recipe], rounds: int) -> list[Timed]:
    """Every recipe, on as many ranks as their grid has."""
    from infra.launch import run_local

    by_rank = run_local(on_rank, recipes[0].grid.world, recipes, rounds, timeout=1800)
    found = []
    for ranks in zip(*by_rank, strict=True):
        spans = zip(*(rank.spans for rank in ranks), strict=True)
        iterations = tuple(max(e for _, e in pair) - min(s for s, _ in pair) for pair in spans)
        alone = tuple(map(max, zip(*(rank.alone for rank in ranks), strict=True)))
        found.append(Timed(iterations, alone, max(rank.peak for rank in ranks)))
    return found
