"""One optimizer step: forward and backward over this rank's micro-batches, reduction, clipping, update.

The loss is a sum over the global batch's tokens divided once: the number of counted tokens is summed over all
micro-batches and data-parallel ranks before the first backward, and every micro-batch's sum is divided by it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from common.collectives import all_reduce
from common.grid import Grid
from common.layers.context import Context
from common.layout import Layout
from common.models.config import LanguageModelConfig, check
from common.models.language_model import LanguageModel, LossTerm
from common.models.record import Record
from common.parallel.gradients import BUCKET, Gradients
from common.parameters import initialise
from common.pipeline.execute import Pipeline
from common.pipeline.schedules import TRAINING, forward_only, make
from common.pipeline.stages import cuts
from common.precision.loss_scale import DynamicLossScale, LossScaleConfig
from common.precision.policy import Precision, precision
from common.training.optimizer import AdamWConfig, Optimizer

OVERLAPPING = ("tp", "pp", "dp")


@dataclass(frozen=True)
class Execution:
    """How a model runs, as against what it is.

    kernels: a kernel set. recompute: a policy (common/recompute/policy.py). precision: fp32, bf16, fp16 or fp64; the half
    types keep fp32 main weights and gradients. compile: run the model through torch.compile. schedule: of the pipeline, one
    of common/pipeline/schedules.py; chunks: stages per pipeline rank, for the interleaved one. scatter_gather: tensor ranks
    share the sending of what they all hold. sharded_optimizer: each data rank updates its part of the parameters (ZeRO-1).
    bucket: elements of a gradient bucket. reduce_in: data ranks send gradients as they are kept, "main", or in the type of
    "parameters", half as many bytes for the half types and rounded. overlap: axes whose messages run beside computing,
    "none" or some of tp (beside weight gradients), pp (beside the next action) and dp (buckets, beside the last backward
    passes); a rank waits for the others.
    """

    kernels: str = "sdpa"
    sequence_parallel: bool = False
    recompute: str = "none"
    precision: str = "fp32"
    compile: bool = False
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    schedule: str = "1f1b"
    chunks: int = 1
    scatter_gather: bool = True
    sharded_optimizer: bool = False
    bucket: int = BUCKET
    reduce_in: str = "main"
    overlap: str = "tp,pp,dp"

    def overlaps(self, axis: str) -> bool:
        return axis in self.overlap.split(",")

    def check(self, model: LanguageModelConfig, grid: Grid) -> None:
        """Raises ValueError when this model cannot run this way on this grid."""
        precision(self.precision)
        if self.bucket < 1 or self.chunks < 1:
            raise ValueError(f"bucket={self.bucket}, chunks={self.chunks}: both need at least 1")
        if self.reduce_in not in ("main", "parameters"):
            raise ValueError(f"reduce_in={self.reduce_in!r}: use main or parameters")
        if self.overlap != "none" and not set(self.overlap.split(",")) <= set(OVERLAPPING):
            raise ValueError(f"overlap={self.overlap!r}: use none, or some of {','.join(OVERLAPPING)}")
        if self.schedule not in TRAINING:
            raise ValueError(f"schedule={self.schedule!r}: use one of {', '.join(TRAINING)}")
        if self.chunks > 1 and (grid.pp == 1 or self.schedule != "interleaved"):
            raise ValueError(f"chunks={self.chunks} with pp={grid.pp} and schedule={self.schedule!r}: several chunks per rank "
                             "need schedule=interleaved and pp of at least 2")
        cuts(model.layers, grid.pp * self.chunks)
        if self.sequence_parallel and grid.tp == 1:
            raise ValueError("sequence_parallel needs tp of at least 2: it cuts the sequence over the tensor ranks")
        check(model, grid.tp, self.sequence_parallel, self.kernels, self.recompute)


@dataclass
class Training:
    """Everything one rank trains with. stages: its chunks of the model; the pipeline runs them, or their compiled form."""

    layout: Layout
    stages: list[LanguageModel]
    pipeline: Pipeline
    schedule: str
    overlap: bool
    gradients: Gradients
    optimizer: Optimizer
    loss_scale: DynamicLossScale | None

    @property
    def model(self) -> LanguageModel:
        """The whole model, where one stage holds it."""
        (stage,) = self.stages
        return stage


@dataclass(frozen=True)
class StepResult:
    """loss: mean over the global batch's counted tokens. grad_norm: before clipping. skipped: nothing was updated."""

    loss: float
    grad_norm: float
    tokens: int
    skipped: bool


def build(model: LanguageModelConfig, execution: Execution, adamw: AdamWConfig, layout: Layout, seed: int,
          device: torch.device | str = "cpu") -> Training:
    """A freshly initialised model with its gradients and optimizer, as this rank holds them."""
    execution.check(model, layout.grid)
    types: Precision = precision(execution.precision)
    stages = model_stages(model, execution, layout, device)
    for stage in stages:
        initialise(stage, layout, seed)
    gradients = Gradients(stages, layout, types.gradients, execution.sharded_optimizer, execution.bucket,
                          types.gradients if execution.reduce_in == "main" else types.parameters)
    scale = DynamicLossScale(execution.loss_scale) if execution.precision == "fp16" else None
    run = [torch.compile(stage) for stage in stages] if execution.compile else stages
    pipeline = Pipeline(run, layout, device, execution.scatter_gather, execution.overlaps("pp"))
    return Training(layout, stages, pipeline, execution.schedule, execution.overlaps("dp"), gradients, Optimizer(gradients, adamw), scale)


def model_stages(model: LanguageModelConfig, execution: Execution, layout: Layout,
                 device: torch.device | str = "cpu") -> list[LanguageModel]:
    """The chunks of the model that this rank holds, not yet initialised."""
    context = Context(layout, execution.kernels, execution.sequence_parallel, precision(execution.precision).parameters,
                      device, execution.overlaps("tp"))
    layout.prepare(model.groups)
    pp, rank = layout.size("pp"), layout.index("pp")
    borders = cuts(model.layers, pp * execution.chunks)
    return [LanguageModel(model, context, execution.recompute, *borders[chunk * pp + rank])
            for chunk in range(execution.chunks)]


def count_tokens(records: Sequence[Record], layout: Layout) -> Tensor:
    """Counted tokens of the global batch, the same 0-d fp64 tensor on every rank."""
    mine = torch.stack([r.loss_mask.sum() for r in records]).sum().double()
    return all_reduce(mine, layout.group("dp", "cp"))


def forward_backward(training: Training, records: Sequence[Record]) -> tuple[Tensor, Tensor]:
    """Adds the gradients of the mean loss over the global batch to the main gradients, times the loss scale.

    Returns the mean loss over the global batch (0-d, the same on every rank) and the token count.
    """
    layout, pipeline = training.layout, training.pipeline
    tokens = count_tokens(records, layout)
    if tokens == 0:
        raise ValueError("a global batch without one counted token: check the loss mask of the data")
    factor = (training.loss_scale.scale if training.loss_scale else 1.0) / tokens

    def loss(terms: dict[str, LossTerm]) -> Tensor:
        return terms["language"].sum * factor.to(terms["language"].sum.dtype)

    schedule = make(training.schedule, layout.size("pp"), len(pipeline.stages), len(records))
    totals = pipeline.run(schedule, records, loss, training.gradients if training.overlap else None)
    return _language_total(totals, layout, tokens.device)[0] / tokens, tokens


def _language_total(totals: dict[str, Tensor], layout: Layout, device: torch.device) -> Tensor:
    """(sum, count) of the language loss over all data and pipeline ranks, fp64 (2,)."""
    mine = totals.get("language", torch.zeros(2, dtype=torch.float64, device=device))
    return all_reduce(mine, layout.group("dp", "cp", "pp"))


def train_step(training: Training, records: Sequence[Record], learning_rate: float, clip: float) -> StepResult:
    """One update from this rank's micro-batches. A loss or gradient that is not finite skips the update on all ranks."""
    for stage in training.stages:
        stage.train()
    gradients, scale = training.gradients, training.loss_scale
    gradients.zero()
    loss, tokens = forward_backward(training, records)
    gradients.reduce()
    if scale is not None:
        gradients.scale(1 / scale.scale)
    norm = gradients.norm()
    finite = math.isfinite(norm.item()) and math.isfinite(loss.item())
    if scale is not None:
        scale.update(overflow=not finite)
    if finite:
        gradients.clip(clip, norm)
        training.optimizer.step(learning_rate)
    return StepResult(loss.item(), norm.item(), int(tokens.item()), not finite)


@torch.no_grad()
def mean_loss(pipeline: Pipeline, records: Iterable[Record]) -> tuple[float, int]:
    """Mean loss over all counted tokens of the given records over all data-parallel ranks, and their number."""
    for stage in pipeline.stages:
        stage.eval()
    layout, chunks = pipeline.layout, len(pipeline.stages)
    sums = torch.zeros(2, dtype=torch.float64, device=pipeline.device)
    for some in batched(records, 4 * layout.size("pp")):
        totals = pipeline.run(forward_only(layout.size("pp"), len(some), chunks), some)
        sums += totals.get("language", torch.zeros_like(sums))
    total, count = all_reduce(sums, layout.group("dp", "cp", "pp")).tolist()
    return total / count, int(count)


def batched(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    """Runs of `size` records, the last one shorter; so a long set is never in memory whole."""
    records = iter(records)
    while some := list(islice(records, size)):
        yield some
