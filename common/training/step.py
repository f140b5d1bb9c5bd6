"""One optimizer step: forward and backward over this rank's micro-batches, reduction, clipping, update.

The loss is a sum over the global batch's tokens divided once: the number of counted tokens is summed over all
micro-batches and data-parallel ranks before the first backward, and every micro-batch's sum is divided by it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.collectives import all_reduce
from common.grid import Grid
from common.layers.context import Context
from common.layout import Layout
from common.models.config import LanguageModelConfig, check
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.parameters import initialise
from common.precision.loss_scale import DynamicLossScale, LossScaleConfig
from common.precision.policy import Precision, precision
from common.training.optimizer import AdamWConfig, Optimizer


@dataclass(frozen=True)
class Execution:
    """How a model runs, as against what it is.

    kernels: a kernel set. recompute: a policy (common/recompute/policy.py). precision: fp32, bf16, fp16 or fp64; the half
    types keep fp32 main weights and gradients. compile: run the model through torch.compile.
    """

    kernels: str = "sdpa"
    sequence_parallel: bool = False
    recompute: str = "none"
    precision: str = "fp32"
    compile: bool = False
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)

    def check(self, model: LanguageModelConfig, grid: Grid) -> None:
        """Raises ValueError when this model cannot run this way on this grid."""
        precision(self.precision)
        if self.sequence_parallel and grid.tp == 1:
            raise ValueError("sequence_parallel needs tp of at least 2: it cuts the sequence over the tensor ranks")
        check(model, grid.tp, self.sequence_parallel, self.kernels, self.recompute)


@dataclass
class Training:
    """Everything one rank trains with. forward: the model, or its compiled form."""

    layout: Layout
    model: LanguageModel
    forward: Callable
    gradients: Gradients
    optimizer: Optimizer
    loss_scale: DynamicLossScale | None


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
    context = Context(layout, execution.kernels, execution.sequence_parallel, types.parameters, device)
    lm = LanguageModel(model, context, execution.recompute)
    initialise(lm, layout, seed)
    gradients = Gradients(lm, layout, types.gradients)
    scale = DynamicLossScale(execution.loss_scale) if execution.precision == "fp16" else None
    forward = torch.compile(lm) if execution.compile else lm
    return Training(layout, lm, forward, gradients, Optimizer(gradients, adamw), scale)


def count_tokens(records: Sequence[Record], layout: Layout) -> Tensor:
    """Counted tokens of the global batch, the same 0-d fp64 tensor on every rank."""
    mine = torch.stack([r.loss_mask.sum() for r in records]).sum().double()
    return all_reduce(mine, layout.group("dp", "cp"))


def forward_backward(training: Training, records: Sequence[Record]) -> tuple[Tensor, Tensor]:
    """Adds the gradients of the mean loss over the global batch to the main gradients, times the loss scale.

    Returns the mean loss over the global batch (0-d, the same on every rank) and the token count.
    """
    tokens = count_tokens(records, training.layout)
    if tokens == 0:
        raise ValueError("a global batch without one counted token: check the loss mask of the data")
    factor = (training.loss_scale.scale if training.loss_scale else 1.0) / tokens
    total = torch.zeros((), dtype=torch.float64, device=tokens.device)
    for record in records:
        _, terms = training.forward(record, {})
        language = terms["language"]
        (language.sum * factor.to(language.sum.dtype)).backward()
        total = total + language.sum.detach().double()
    return all_reduce(total, training.layout.group("dp", "cp")) / tokens, tokens


def train_step(training: Training, records: Sequence[Record], learning_rate: float, clip: float) -> StepResult:
    """One update from this rank's micro-batches. A loss or gradient that is not finite skips the update on all ranks."""
    training.model.train()
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
def mean_loss(model: LanguageModel, records: Iterable[Record], layout: Layout) -> tuple[float, int]:
    """Mean loss over all counted tokens of the given records over all data-parallel ranks, and their number."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=next(model.parameters()).device)
    for record in records:
        _, terms = model(record, {})
        sums += torch.stack([terms["language"].sum.double(), terms["language"].count.double()])
    total, count = all_reduce(sums, layout.group("dp", "cp")).tolist()
    return total / count, int(count)
