"""Training steps of a recipe on one rank, timed: what `python -m infra.compare` runs on every rank."""

import time
from dataclasses import dataclass

import torch.distributed as dist

from common.layout import Layout
from common.models.record import random_records
from common.training.recipe import Recipe
from common.training.step import build, train_step
from infra.rank_context import RankContext

WARM_UP = 2


@dataclass(frozen=True)
class Step:
    """Of one rank. spans: (start, end) of each step on the clock of the machine. actions: of the last step, each as
    (kind, chunk, micro-batch, start, end)."""

    spans: list[tuple[float, float]]
    actions: list[tuple[str, int, int, float, float]]


def on_rank(context: RankContext, recipe: Recipe, steps: int) -> Step:
    layout = Layout(recipe.grid, context.rank)
    training = build(recipe.model, recipe.execution, recipe.optimizer, layout, recipe.training.seed,
                     context.device.torch_device)
    made = random_records(recipe.model.vocab, recipe.model.sequence, recipe.training.micro_batch, recipe.micro_batches)
    records = [record.to(context.device.torch_device) for record in made]
    spans = []
    for turn in range(-WARM_UP, steps):
        if context.size > 1:
            dist.barrier()
        training.pipeline.timeline = [] if turn == steps - 1 else None
        start = time.perf_counter()
        train_step(training, records, recipe.rate.peak, recipe.optimizer.clip)
        context.device.synchronize()
        if turn >= 0:
            spans.append((start, time.perf_counter()))
    first = spans[-1][0]
    return Step(spans, [(a.kind, a.chunk, a.micro_batch, start - first, end - first)
                        for a, start, end in training.pipeline.timeline])
