"""Searches all layouts of a model on a cluster: each by closed form from scaled traces, the best of them simulated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np

from common.predict.iteration import SPLIT, Links, Prediction, accelerator, predict
from common.predict.layouts import Refusals, layouts
from common.predict.machine import Cluster
from common.predict.memory import FRAGMENTATION, MESSAGES, libraries, state
from common.predict.pieces import Way, border
from common.predict.price import Costs
from common.predict.scaling import Scaler
from common.predict.stages import Stage, Timer, stages
from common.predict.update import Update
from common.training.recipe import Recipe

SIMULATED, SHOWN = 50, 10
GROUPS = ("parameters and optimizer", "activations", "messages", "temporaries", "libraries", "fragmentation")
T = TypeVar("T")


@dataclass(frozen=True)
class Estimate:
    """A layout by closed form. seconds: of an iteration. needed: bytes of the rank that needs the most, fragmentation
    included. breaks: the term at which they pass the limit, None where they fit."""

    recipe: Recipe
    seconds: float
    needed: float
    breaks: str | None


@dataclass(frozen=True)
class Search:
    """best: simulated layouts that fit, the fastest first. simulated: how many were, at most. estimates: every layout that
    can be, in no order. limit: bytes that a rank can have."""

    best: tuple[Prediction, ...]
    estimates: tuple[Estimate, ...] = field(repr=False)
    refused: Refusals
    limit: float
    simulated: int

    @property
    def closest(self) -> Estimate | None:
        """The layout that needs the least memory."""
        return min(self.estimates, key=lambda e: e.needed, default=None)


def search(base: Recipe, cluster: Cluster, costs: Costs, ranks: int, simulated: int = SIMULATED) -> Search:
    """Recipes like `base` on `ranks` ranks of the cluster. Raises ValueError where the cluster has fewer."""
    cluster.check_size(ranks)
    refused = Refusals()
    possible = list(layouts(base, ranks, refused))
    closed = ClosedForm(base, cluster, costs, ranks, {recipe.grid.tp for recipe in possible})
    estimates = [closed.estimate(recipe) for recipe in possible]
    fitting = sorted((e for e in estimates if e.breaks is None), key=lambda e: e.seconds)
    for e in estimates:
        if e.breaks is not None:
            refused.add(f"memory: {e.breaks}", f"{describe(e.recipe)}: needs {e.needed / 1e9:.0f} GB of {closed.limit / 1e9:.0f}")
    found = [predict(e.recipe, cluster, costs, closed.scaler) for e in fitting[:simulated]]
    best = sorted((p for p in found if p.memory.fits), key=lambda p: p.seconds)
    return Search(tuple(best), tuple(estimates), refused, closed.limit, simulated)


def describe(recipe: Recipe) -> str:
    """A layout in a line."""
    grid, execution = recipe.grid, recipe.execution
    words = [f"tp {grid.tp}", f"pp {grid.pp}", f"dp {grid.dp}", f"micro-batch {recipe.training.micro_batch}",
             execution.schedule + (f" in {execution.chunks} chunks" if execution.chunks > 1 else "")]
    words += ["sequence parallel"] * execution.sequence_parallel + ["sharded optimizer"] * execution.sharded_optimizer
    words += [f"recompute {execution.recompute}"] * (execution.recompute != "none")
    return ", ".join(words)


@dataclass(frozen=True)
class Cut:
    """Stages of one cut of the model; seconds of each one's passes and bytes it keeps and holds, arrays (pp, chunks)."""

    stages: tuple[Stage, ...]
    forward: np.ndarray
    backward: np.ndarray
    weight: np.ndarray
    kept: np.ndarray
    moment: np.ndarray


class ClosedForm:
    """Estimates layouts of one model; what many have in common is worked out once."""

    def __init__(self, base: Recipe, cluster: Cluster, costs: Costs, ranks: int, sizes: set[int]):
        self.base, self.costs = base, costs
        self.scaler = Scaler(base.model, sizes)
        self.device = accelerator(ranks, cluster)
        self._timers: dict[int, Timer] = {}
        self._known: dict[tuple, object] = {}

    @property
    def limit(self) -> float:
        return self.device.usable_memory

    def estimate(self, recipe: Recipe) -> Estimate:
        cut, links = self._cut(recipe), self._links(recipe)
        groups = self._memory(recipe, cut, links.crossing.bytes)
        return Estimate(recipe, self._seconds(recipe, cut, links), sum(groups.values()), breaking(groups, self.limit))

    def _once(self, make: Callable[..., T], recipe: Recipe, *key) -> T:
        """make(recipe), once for each tensor and pipeline size, cut and `key`."""
        key = make.__name__, recipe.grid.tp, recipe.grid.pp, recipe.execution.chunks, *key
        if key not in self._known:
            self._known[key] = make(recipe)
        return self._known[key]

    def _cut(self, recipe: Recipe) -> Cut:
        execution = recipe.execution
        return self._once(self._make_cut, recipe, recipe.training.micro_batch, execution.sequence_parallel,
                          execution.recompute, execution.schedule in SPLIT)

    def _make_cut(self, recipe: Recipe) -> Cut:
        grid, execution = recipe.grid, recipe.execution
        timer = self._timers.setdefault(grid.tp, Timer(self.costs, grid))
        made = stages(recipe.model, execution, grid, recipe.training.micro_batch, self.scaler)
        links, split = self._links(recipe), execution.schedule in SPLIT
        times = [timer.stage(stage, split, links.edges(i, len(made))) for i, stage in enumerate(made)]
        rows = ([t.of("forward") for t in times], [t.of("backward") for t in times], [t.weight.total for t in times],
                [stage.kept for stage in made], [stage.moment for stage in made])
        return Cut(made, *(np.reshape(row, (execution.chunks, grid.pp)).T for row in rows))

    def _links(self, recipe: Recipe) -> Links:
        return self._once(self._make_links, recipe, recipe.training.micro_batch, recipe.execution.sequence_parallel)

    def _make_links(self, recipe: Recipe) -> Links:
        one = Way.of(recipe.execution, recipe.grid.tp, 1, "none")
        crossing = border(recipe.model, one, recipe.execution.scatter_gather).times(recipe.training.micro_batch)
        return Links(recipe.grid, crossing, recipe.execution.overlaps("pp"), self.costs)

    def _memory(self, recipe: Recipe, cut: Cut, crossing: int) -> dict[str, float]:
        """Bytes of the rank that needs the most, by GROUPS."""
        grid, execution = recipe.grid, recipe.execution
        held = (in_flight(execution.schedule, grid.pp, execution.chunks, recipe.micro_batches) * cut.kept).sum(1)
        passing = cut.moment.max(1)
        state, libraries = self._once(self._make_fixed, recipe, execution.sharded_optimizer)
        rank = int((state + held + passing).argmax())
        messages = MESSAGES * crossing if grid.pp > 1 else 0
        loose = float(held[rank] + passing[rank]) + messages
        return dict(zip(GROUPS, (float(state[rank]), float(held[rank]), messages, float(passing[rank]), libraries,
                                 FRAGMENTATION * loose), strict=True))

    def _make_fixed(self, recipe: Recipe) -> tuple[np.ndarray, float]:
        """Bytes of parameters and optimizer on every rank, (pp,), and of libraries."""
        grid, made = recipe.grid, self._cut(recipe).stages
        mine = [sum(state(made[rank::grid.pp], recipe.execution, grid).values()) for rank in range(grid.pp)]
        return np.array(mine), sum(term.bytes for term in libraries(grid, self.device))

    def _seconds(self, recipe: Recipe, cut: Cut, links: Links) -> float:
        """Passes of the longest rank, one through a chunk of each other rank to fill and drain, messages that delay, and the
        ending with what sums of gradients take beyond the last backward passes."""
        pp, m, execution = recipe.grid.pp, recipe.micro_batches, recipe.execution
        passes = cut.forward + cut.backward
        ranks = (passes + cut.weight).sum(1)
        seconds = m * float(ranks.max())
        if pp > 1:
            steady = 0 if execution.chunks > 1 else m
            filled = min(1, (m - 1) / (pp - 1))  # by weight gradients put off, where there are some
            filling = np.delete((passes - filled * cut.weight).mean(1), ranks.argmax()).sum()
            seconds += float(filling) + (2 * (pp - 1) + steady) * links.delay(0, 1)
        after, beside = self._once(self._make_ending, recipe, execution.sequence_parallel, execution.sharded_optimizer)
        last = cut.weight if execution.schedule in SPLIT else cut.backward
        return seconds + after + max(beside - float(last.sum(1).mean()), 0.0)

    def _make_ending(self, recipe: Recipe) -> tuple[float, float]:
        update = Update(recipe.model, recipe.execution, recipe.grid, self.costs)
        return update.after(update.loads(self._cut(recipe).stages))


@cache
def in_flight(schedule: str, pp: int, chunks: int, micro_batches: int) -> np.ndarray:
    """Micro-batches that each rank has in flight in each chunk when its first backward pass begins, (pp, chunks)."""
    if schedule != "interleaved":
        most = {"gpipe": [micro_batches] * pp, "zb-h1": [pp] * pp}.get(schedule, list(range(pp, 0, -1)))
        return np.minimum(most, micro_batches)[:, None]
    before = np.minimum(2 * (pp - np.arange(pp) - 1) + (chunks - 1) * pp + 1, micro_batches * chunks)
    turns = np.arange(before.max()) % (pp * chunks) // pp
    return np.stack([np.bincount(turns[:n], minlength=chunks) for n in before])


def breaking(groups: Mapping[str, float], limit: float) -> str | None:
    """The term at which what a rank needs passes the limit, added in the order of GROUPS; None where it does not."""
    reached = 0.0
    for group in GROUPS:
        reached += groups.get(group, 0.0)
        if reached > limit:
            return group
    return None
