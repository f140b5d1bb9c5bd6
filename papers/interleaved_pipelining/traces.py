"""Traces of the published models, each made once: one serves many claims.

Everything runs the project's own layers, executor and optimizer at the published size on fake tensors (common/trace),
as one rank of the published grid, in fp16 with dropout 0.1.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch

from common.grid import Grid
from common.layers.context import Context
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.parameters import count
from common.pipeline.execute import Pipeline
from common.pipeline.schedules import make
from common.recompute.meter import measuring
from common.recompute.policy import Recompute
from common.trace.record import Message, recording
from common.trace.trace import STATISTICS, Trace, layer_trace, trace
from common.trace.world import world
from common.training.optimizer import AdamWConfig, Optimizer
from common.training.recipe import Recipe
from common.training.step import model_stages
from papers.interleaved_pipelining import recipes
from papers.interleaved_pipelining.sizes import TABLE_1

ALL = ("forward", "recompute", "backward")


@cache
def recipe(source: str) -> Recipe:
    """The recipe of a row of table 1, or of a PTD-P row of table 2, by the id of its claim."""
    if source in TABLE_1:
        return recipes.table_1(dict(zip(TABLE_1, recipes.TABLE_1, strict=True))[source])
    size, gpus = source.removeprefix("table2-ptdp-").split("-")
    return recipes.table_2(size, int(gpus))


@cache
def parameters(model: LanguageModelConfig) -> int:
    """Of the whole model, made without storage: every tensor once, the tied embedding too."""
    return count(LanguageModel(model, Context(device="meta")))


@cache
def one_layer(source: str) -> Trace:
    """Embedding, one layer and output of a row's model as one stage, each layer recomputed.

    All layers of these models are alike and do the same work, so a whole model is this with its layer taken `depth`
    times.
    """
    found = recipe(source)
    grid = Grid(tp=found.grid.tp, dp=found.grid.dp)
    return trace(replace(found.model, pattern="[*-]"), grid, micro_batch=found.training.micro_batch,
                 recompute="full", dtype=torch.float16)


@dataclass(frozen=True)
class Work:
    """FLOPs of one sequence over all tensor ranks: of one layer, by phase, and of all that is no layer."""

    layers: int
    forward: int
    recompute: int
    backward: int
    outside: int

    @property
    def layer(self) -> int:
        return self.forward + self.recompute + self.backward

    @property
    def whole(self) -> int:
        return self.layers * self.layer + self.outside


@cache
def work(source: str) -> Work:
    found, depth = one_layer(source), recipe(source).model.depth

    def per_sequence(*phases: str, module: str = "") -> int:
        return found.flops(*phases, module=module) * found.grid.tp // found.micro_batch

    inside = [per_sequence(phase, module="layers") for phase in ALL]
    return Work(depth, *inside, per_sequence(*ALL) - sum(inside))


@cache
def layer(source: str) -> Trace:
    """One layer from the middle of a row's model, not recomputed, on the row's tensor ranks."""
    found = recipe(source)
    return layer_trace(found.model, Grid(tp=found.grid.tp), micro_batch=found.training.micro_batch,
                       dtype=torch.float16)


@cache
def stage(source: str) -> Trace:
    """All layers of a stage in the middle of a row's pipeline, without interleaving, each layer recomputed."""
    found = recipe(source)
    each = found.model.depth // found.grid.pp
    first = found.grid.pp // 2 * each
    return trace(found.model, Grid(tp=found.grid.tp), micro_batch=found.training.micro_batch, recompute="full",
                 dtype=torch.float16, first=first, last=first + each)


def _record(model: LanguageModelConfig, micro_batch: int) -> Record:
    tokens, labels, positions = (torch.zeros(micro_batch, model.sequence, dtype=torch.int64) for _ in range(3))
    counted = torch.ones(micro_batch, model.sequence, dtype=torch.bool)
    return Record(tokens, labels, counted, positions, samples=tuple(range(micro_batch)))


def executed(found: Recipe, rank: int, micro_batches: int) -> tuple[Message, ...]:
    """Messages of one rank that runs its schedule over some micro-batches with the executor that trains.

    The model is cut to one layer for each stage: what a stage hands on does not depend on how many layers it holds.
    """
    execution, grid = found.execution, found.grid
    model = replace(found.model, pattern=f"[*-]*{grid.pp * execution.chunks}")
    with world(grid, rank) as layout:
        stages = model_stages(model, execution, layout)
        pipeline = Pipeline(stages, layout, scatter_gather=execution.scatter_gather)
        records = [_record(model, found.training.micro_batch)] * micro_batches
        with recording(torch.nn.ModuleList(stages), layout) as recorder:
            pipeline.run(make(execution.schedule, grid.pp, execution.chunks, micro_batches), records,
                         lambda terms: terms["language"].sum)
    return tuple(recorder.messages)


@cache
def passed(source: str, stage: int, scatter_gather: bool) -> tuple[Message, ...]:
    """Messages of the first tensor rank of a stage of a row's pipeline, for one micro-batch, not interleaved."""
    found = recipe(source)
    plain = replace(found.execution, schedule="1f1b", chunks=1, scatter_gather=scatter_gather)
    return executed(replace(found, execution=plain), found.grid.rank(pp=stage), 1)


@cache
def kept_in_stage(source: str, checkpoints: int) -> int:
    """Bytes that a stage keeps while it runs backward through its last group of layers, of `checkpoints` groups.

    Of the groups before only the input is kept; the last one has been made again and keeps everything.
    """
    found = recipe(source)
    each = found.model.depth // found.grid.pp
    first = found.grid.pp // 2 * each
    if each % checkpoints:
        raise ValueError(f"checkpoints={checkpoints} does not divide the {each} layers of a stage")
    with world(Grid(tp=found.grid.tp)) as layout:
        context = Context(layout, "paper", dtype=torch.float16)
        model = LanguageModel(found.model, context, first=first, last=first + each)
        record = _record(found.model, found.training.micro_batch)
        shapes = model.carry(record)
        x = torch.zeros(shapes["hidden"].shape, dtype=torch.float16, requires_grad=True)
        layers = list(model.layers.values())
        borders = list(pairwise(range(0, each + 1, each // checkpoints)))
        with measuring(model) as meter:
            for begin, end in borders:
                sites = frozenset() if end == each else frozenset({"layer"})
                x = Recompute(sites)("layer", _in_turn, x, layers[begin:end], record)
        return sum(size for name, size in meter.saved.items() if name not in STATISTICS)


def _in_turn(x: torch.Tensor, layers: list, record: Record) -> torch.Tensor:
    for one in layers:
        x = one(x, record)
    return x


def checkpoint_bytes_per_parameter() -> dict[str, float]:
    """What a checkpoint holds for each parameter, by kind: of a small model, trained in fp16."""
    with world(Grid()) as layout:
        model = LanguageModel(LanguageModelConfig(), Context(layout, dtype=torch.float16))
        state = Optimizer(Gradients([model], layout), AdamWConfig()).state()
        return {kind: sum(run.data.nbytes for run in held.values()) / count(model) for kind, held in state.items()}
