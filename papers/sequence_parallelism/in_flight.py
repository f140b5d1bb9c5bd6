"""Micro-batches in flight on the published pipelines, by their schedules, and what they hold there, by traces."""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np

from common.pipeline.schedule import Schedule
from common.pipeline.schedules import make
from common.pipeline.windows import in_flight
from common.trace.trace import Trace
from papers.sequence_parallelism.recipes import published
from papers.sequence_parallelism.traces import in_layers, stage


@cache
def schedule(size: str, chunks: int | None = None) -> Schedule:
    """One iteration of the published model; chunks: other than the recipe's, 1 for 1F1B without interleaving."""
    recipe = published(size)
    chunks = recipe.execution.chunks if chunks is None else chunks
    return make("interleaved" if chunks > 1 else "1f1b", recipe.grid.pp, chunks, recipe.micro_batches)


def at_peak(plan: Schedule, rank: int, sizes: list[int]) -> tuple[int, ...]:
    """Micro-batches in flight in each chunk of a rank when they hold the most; sizes: what one holds in each chunk."""
    held = in_flight(plan, rank)
    return tuple(held[(held @ np.array(sizes)).argmax()].tolist())


@dataclass(frozen=True)
class Held:
    """What tensor rank 0 of a pipeline rank holds when its micro-batches hold the most, in bytes.

    in_flight: micro-batches in each chunk then. state: parameters, gradients and optimizer, by kind. kept: for backward,
    by tensor. moment: the most that one micro-batch's forward or backward pass holds beyond what is kept.
    """

    in_flight: tuple[int, ...]
    state: dict[str, int]
    kept: dict[str, int]
    moment: int

    @property
    def layers(self) -> int:
        return in_layers(self.kept)

    @property
    def total(self) -> int:
        return sum(self.state.values()) + sum(self.kept.values())


def held(size: str, technique: str, rank: int = 0) -> Held:
    """Of the published model under its own schedule."""
    plan = schedule(size)
    traces = [stage(size, technique, plan.stage(rank, chunk), plan.chunks) for chunk in range(plan.chunks)]
    in_flight = at_peak(plan, rank, [sum(found.saved.values()) for found in traces])
    state, kept = Counter(), Counter()
    for found, times in zip(traces, in_flight, strict=True):
        state.update(found.state)
        kept.update({name: times * amount for name, amount in found.saved.items()})
    return Held(in_flight, dict(state), dict(kept), max(map(beyond_kept, traces)))


def beyond_kept(found: Trace) -> int:
    """Bytes that forward or backward of one micro-batch hold at their peak, beyond what is kept for backward.

    What lives inside a fused kernel alone is left out: on the paper's GPUs it takes no memory.
    """
    return max(found.kernel_peaks["forward"], found.kernel_peaks["backward"]) - sum(found.saved.values())
