"""One iteration of a recipe on a cluster: how long it takes, where the time goes, what every rank holds.

Stages are timed from traces of their pieces, the schedule that trains is played with those times, and what comes once an
iteration is added: sums of gradients, the norm, the update.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from common.grid import Grid
from common.pipeline.schedule import Schedule
from common.pipeline.schedules import make
from common.pipeline.simulate import Simulation, simulate
from common.predict.efficiency import Work, work
from common.predict.machine import Accelerator, Cluster
from common.predict.memory import Memory, peaks, rank_memory
from common.predict.pieces import Border, Way, border, pieces
from common.predict.price import Costs
from common.predict.spent import Spent
from common.predict.stages import Make, Stage, StageTime, Timer, stages
from common.predict.update import Ending, Update
from common.training.recipe import Recipe

DAY = 86_400
SPLIT = ("zb-h1",)  # schedules whose backward passes leave weight gradients for later


@dataclass(frozen=True)
class Rates:
    """What an iteration of a recipe on a cluster takes. peak: dense FLOP/s of one rank. stages: of the pipeline, or the
    whole model as one stage would hold it. Whoever inherits it says `seconds`, of an iteration."""

    recipe: Recipe
    cluster: str
    work: Work
    peak: float
    memory: Memory
    stages: tuple[Stage, ...] = field(repr=False)

    @property
    def ranks(self) -> int:
        return self.recipe.grid.world

    @property
    def tokens(self) -> int:
        """Of an iteration."""
        return self.recipe.training.batch * self.recipe.model.sequence

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def flops_per_second(self, scope: str = "hardware", attention: str = "whole") -> float:
        """Of one rank. scope: model or hardware; attention: whole or half (common/predict/efficiency.py)."""
        return self.work.flops(scope, attention) / self.seconds / self.ranks

    def utilisation(self, scope: str = "model", attention: str = "whole") -> float:
        """Share of the dense peak: MFU of model FLOPs, HFU of hardware FLOPs."""
        return self.flops_per_second(scope, attention) / self.peak

    def days(self, tokens: float) -> float:
        return tokens / self.tokens_per_second / DAY


@dataclass(frozen=True)
class Prediction(Rates):
    """times: of each stage of the pipeline, for one micro-batch."""

    times: tuple[StageTime, ...] = field(repr=False)
    played: Simulation = field(repr=False)
    ending: Ending = field(repr=False)

    @property
    def seconds(self) -> float:
        """Of an iteration."""
        return self.ending.end

    @cached_property
    def time(self) -> dict[str, float]:
        """Seconds by what takes them, mean over pipeline ranks; they add up to `seconds`.

        Messages between stages: what the iteration is longer than if they took no time. Bubble: the rest of what ranks
        wait, for the pipeline to fill and drain and for longer stages.
        """
        plan, times, ending = self.played.schedule, self.times, self.ending
        spent = self._mean
        alone = makespan = float(self.played.makespan)
        if plan.ranks > 1:
            alone = float(simulate(plan, lambda kind, stage: times[stage].of(kind) - times[stage].edge(kind)).makespan)
        return {
            "matrix products": spent.products,
            "attention core": spent.attention,
            "element-wise": spent.elementwise,
            "recomputation": spent.recomputation,
            "tensor-parallel communication": spent.exposed,
            "waiting for the host": spent.host,
            "pipeline bubble": alone - spent.total,
            "messages between stages": makespan - alone,
            "data-parallel reduction": ending.ready - makespan,
            "optimizer": ending.update,
            "parameter gathering": ending.gather,
        }

    def longest(self, count: int = 3) -> str:
        """The terms that take the most time, in words."""
        most = sorted(self.time, key=self.time.get, reverse=True)[:count]
        return "predicted " + ", ".join(f"{name} {self.time[name]:.2f} s" for name in most)

    @property
    def hidden(self) -> float:
        """Seconds of tensor-parallel communication that run beside operations, mean over ranks; in no sum."""
        return self._mean.hidden

    @property
    def _mean(self) -> Spent:
        """Passes of an iteration, mean over pipeline ranks."""
        plan = self.played.schedule
        return sum((t.all for t in self.times), Spent()) * (plan.micro_batches / plan.ranks)


def check(recipe: Recipe, cluster: Cluster) -> None:
    """Raises ValueError for what cannot run, as training does, and for what the cluster has no room for."""
    recipe.check()
    if recipe.grid.cp > 1 or recipe.grid.ep > 1:
        raise ValueError(f"cp={recipe.grid.cp}, ep={recipe.grid.ep}: tensor, pipeline and data ranks are predicted; use 1")
    cluster.check_size(recipe.grid.world)
    accelerator(recipe.grid.world, cluster).peak_of(recipe.execution.precision)


def accelerator(ranks: int, cluster: Cluster) -> Accelerator:
    """As each of so many ranks has it."""
    return cluster.accelerator_for(min(ranks, cluster.node.ranks))


def predict(recipe: Recipe, cluster: Cluster, costs: Costs, make_pieces: Make = pieces) -> Prediction:
    """costs: the cost model on this cluster. Raises ValueError for a recipe that cannot run on it."""
    check(recipe, cluster)
    model, execution, grid = recipe.model, recipe.execution, recipe.grid
    plan = make(execution.schedule, grid.pp, execution.chunks, recipe.micro_batches)
    made = stages(model, execution, grid, recipe.training.micro_batch, make_pieces)
    crossing = border(model, Way.of(execution, grid.tp, recipe.training.micro_batch, "none"), execution.scatter_gather)
    links = Links(grid, crossing, execution.overlaps("pp"), costs)
    timer = Timer(costs, grid)
    times = tuple(timer.stage(stage, execution.schedule in SPLIT, links.edges(i, len(made))) for i, stage in enumerate(made))
    played = simulate(plan, lambda kind, stage: times[stage].of(kind), links.delay)
    update = Update(model, execution, grid, costs)
    ending = update.ending(played, update.loads(made))
    device = accelerator(grid.world, cluster)
    return Prediction(
        recipe, cluster.name, work(model, made, recipe.training.batch, recipe.training.micro_batch, grid.tp),
        device.peak_of(execution.precision), memory(recipe, plan, made, crossing, device), made, times, played, ending)


def memory(recipe: Recipe, plan: Schedule, made: Sequence[Stage], crossing: Border, device: Accelerator) -> Memory:
    """Of every pipeline rank, at its peak under the schedule."""
    moments = peaks(plan, made)
    ranks = (rank_memory(r, made[r::plan.ranks], moment, recipe.execution, recipe.grid, device, crossing.bytes)
             for r, moment in enumerate(moments))
    return Memory(tuple(ranks), device.usable_memory)


class Links:
    """Messages between stages. What arrives in slices is joined before the pass that needs it.

    overlap: a message is on its way while its sender goes on; otherwise the sender's pass lasts until it has arrived.
    """

    def __init__(self, grid: Grid, crossing: Border, overlap: bool, costs: Costs):
        self.grid, self.crossing, self.overlap, self.costs = grid, crossing, overlap, costs
        self._delays: dict[tuple[int, int], float] = {}

    def delay(self, sender: int, receiver: int) -> float:
        """Seconds that a message takes from one stage to another, on another rank, after the sender's pass."""
        return self._transfer(sender, receiver) if self.overlap else 0.0

    def _transfer(self, sender: int, receiver: int) -> float:
        pair = self.grid.rank(pp=sender % self.grid.pp), self.grid.rank(pp=receiver % self.grid.pp)
        if pair not in self._delays:
            self._delays[pair] = self.costs.transfer(self.crossing.bytes, *pair)
        return self._delays[pair]

    @cached_property
    def joining(self) -> float:
        if self.grid.pp == 1 or not self.crossing.joined:
            return 0.0
        return self.costs.message("all_gather", self.crossing.joined, self.grid.group(0, "tp"))

    def edges(self, stage: int, count: int) -> tuple[float, float]:
        """Seconds that forward and backward of a stage, of so many, take besides: joining what has arrived, sending."""
        forward, backward = (self.joining if stage else 0.0), (self.joining if stage < count - 1 else 0.0)
        if not self.overlap and self.grid.pp > 1:
            forward += self._transfer(stage, stage + 1) if stage < count - 1 else 0.0
            backward += self._transfer(stage, stage - 1) if stage else 0.0
        return forward, backward
