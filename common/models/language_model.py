"""One decoder, built from a pattern of units and cut into stages.

A stage maps (record, carry) to (carry, loss terms). The carry is a dict of named tensors that goes from stage to stage;
the residual stream travels as "hidden", (s, B, H) with s = S / tp under sequence parallelism.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.kernels.cross_entropy import cross_entropy, cross_entropy_reference
from common.kernels.dropout import Site, hidden_mask_SBH
from common.kernels.region import fused
from common.layers.attention import Attention
from common.layers.context import Context
from common.layers.embedding import Embedding
from common.layers.linear import column_linear
from common.layers.mlp import MLP
from common.layers.norm import Norm
from common.models.config import LanguageModelConfig
from common.models.pattern import LETTERS
from common.models.record import Record
from common.parameters import Facts, Normal, parameter
from common.recompute.meter import tag
from common.recompute.policy import Policy, Recompute

MIXERS = {"attention": Attention, "mlp": MLP}


@dataclass(frozen=True)
class CarryShape:
    """A tensor of the carry. replicated: every tensor rank holds the whole of it, so one slice each is enough to send."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    replicated: bool


@dataclass(frozen=True)
class LossTerm:
    """A sum over this rank's tokens, how many they are, and the axes over which both are to be added up."""

    sum: Tensor
    count: Tensor
    axes: tuple[str, ...] = ("dp", "cp")


class Branch(nn.Module):
    """x + dropout(mixer(norm(x))): one letter of a unit."""

    def __init__(self, kind: str, config: LanguageModelConfig, context: Context, layer: int, name: str,
                 recompute: Recompute):
        super().__init__()
        self.config, self.context, self.layer, self.kind, self.name = config, context, layer, kind, name
        self.recompute = recompute
        self.norm = Norm(context, config.norm, config.hidden, config.norm_eps)
        self.mixer = MIXERS[kind](config, context, layer, recompute, name)

    def forward(self, x_sBH: Tensor, record: Record) -> Tensor:
        y = self.recompute("norm", self.norm, tag(x_sBH, f"{self.kind}.norm_input"))
        y = self.mixer(y, record)
        p = self.config.dropout
        if not (p and self.training):
            with fused("residual", joins=True):
                return x_sBH + y
        site = Site(record.seed, record.step, record.samples, self.layer, self.name)
        first = self.context.tp.index * y.shape[0] if self.context.scattered else 0
        return self.context.kernel_set.add_dropped(
            y, x_sBH, lambda: hidden_mask_SBH(site, p, x_sBH.shape, first, record.length, x_sBH.device), p,
            f"{self.kind}.dropout_mask")


class Layer(nn.Module):
    """One unit of the pattern."""

    def __init__(self, unit: str, config: LanguageModelConfig, context: Context, index: int, sites: frozenset[str]):
        super().__init__()
        self.recompute = Recompute(sites)
        self.branches = nn.ModuleDict()
        for letter in unit:
            kind = LETTERS[letter]
            seen = sum(name.split("_")[0] == kind for name in self.branches)
            name = f"{kind}_{seen}" if seen else kind
            self.branches[name] = Branch(kind, config, context, index, name, self.recompute)

    def forward(self, x_sBH: Tensor, record: Record) -> Tensor:
        return self.recompute("layer", self._run, x_sBH, record)

    def _run(self, x_sBH: Tensor, record: Record) -> Tensor:
        with self.recompute.scope():
            for branch in self.branches.values():
                x_sBH = branch(x_sBH, record)
            return x_sBH


class Output(nn.Module):
    """Final norm, output projection and vocabulary-parallel loss. tied: the embedding's table, where this stage has it."""

    def __init__(self, config: LanguageModelConfig, context: Context, tied: nn.Parameter | None):
        super().__init__()
        self.config, self.context = config, context
        self.norm = Norm(context, config.norm, config.hidden, config.norm_eps)
        if tied is None:
            copy_of = "embedding.tokens" if config.tied else None
            facts = Facts((config.vocab, config.hidden), "tp", 0, copy_of=copy_of, init=Normal(config.init_std))
            self.weight = parameter(facts, context.layout, context.dtype, context.device)
        else:
            self.weight = tied

    def logits(self, x_sBH: Tensor) -> Tensor:
        """This rank's slice of the vocabulary, (S, B, V/tp); the last ranks' padding columns are meaningless."""
        y = self.norm(tag(x_sBH, "output.norm_input"))
        (logits,) = column_linear(tag(y, "output.projection_input"), [self.weight], [None], self.context.tp,
                                  self.context.scattered, self.context.overlap)
        return logits

    def forward(self, x_sBH: Tensor, record: Record) -> LossTerm:
        logits_SBV = self.logits(x_sBH)
        if self.context.kernels == "reference" and self.context.tp.size == 1:
            loss_SB = cross_entropy_reference(logits_SBV, record.labels.t())
        else:
            loss_SB = cross_entropy(logits_SBV, record.labels.t(), self.config.vocab, self.context.tp)
        mask_SB = tag(record.loss_mask.t(), "loss.labels")
        return LossTerm(torch.where(mask_SB, loss_SB, 0).sum(), mask_SB.sum())


class LanguageModel(nn.Module):
    """The layers first .. last of the decoder, with the embedding on the first stage and the output on the last.

    Layers are named by their index in the whole model, so that names do not depend on the cut.
    """

    def __init__(self, config: LanguageModelConfig, context: Context = Context(), recompute: str = "none",  # noqa: B008
                 first: int = 0, last: int | None = None):
        super().__init__()
        self.config, self.context = config, context
        last = config.depth if last is None else last
        policy = Policy.parse(recompute)
        copied = config.tied and last < config.depth
        self.embedding = Embedding(config, context, copied) if first == 0 else None
        self.layers = nn.ModuleDict({
            str(i): Layer(config.layers.units[i], config, context, i, policy.at(i)) for i in range(first, last)})
        self.output = None
        if last == config.depth:
            self.output = Output(config, context, self.embedding.tokens if config.tied and first == 0 else None)

    def carry(self, record: Record) -> dict[str, CarryShape]:
        """What goes from one stage to the next for this micro-batch."""
        context, sequence = self.context, record.length
        rows = sequence // context.tp.size if context.scattered else sequence
        shape = rows, record.tokens.shape[0], self.config.hidden
        return {"hidden": CarryShape(shape, context.dtype, replicated=not context.scattered)}

    def hidden(self, record: Record, carry: dict[str, Tensor]) -> Tensor:
        """The residual stream after this stage's layers, (s, B, H)."""
        x_sBH = self.embedding(record) if self.embedding is not None else carry["hidden"]
        for layer in self.layers.values():
            x_sBH = layer(x_sBH, record)
        return x_sBH

    def forward(self, record: Record, carry: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, LossTerm]]:
        x_sBH = self.hidden(record, carry)
        if self.output is None:
            return {**carry, "hidden": x_sBH}, {}
        return {}, {"language": self.output(x_sBH, record)}

    def logits(self, record: Record, carry: dict[str, Tensor] | None = None) -> Tensor:
        """This rank's slice of the logits, (S, B, V/tp), without the loss. For a model whose output is on this stage."""
        return self.output.logits(self.hidden(record, carry or {}))
