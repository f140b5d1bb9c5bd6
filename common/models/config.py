"""What a language model is, as against how it is laid out and run."""

from dataclasses import dataclass

from common.kernels import GATED, KERNEL_SETS
from common.kernels.dropout import threshold
from common.models.pattern import Pattern, parse
from common.ranges import ABOVE_ZERO, COUNT, FROM_ZERO, Range, check_ranges
from common.recompute.policy import Policy

ACTIVATIONS = tuple(KERNEL_SETS["reference"].activations)
HEADS = Range("a whole number from 1 to 1,000,000", lambda x: 1 <= x <= 1_000_000)


@dataclass(frozen=True)
class LanguageModelConfig:
    """A decoder from a layer pattern.

    kv_heads: key-value groups, default one per head. head_dim: default hidden / heads. ffn: inner size of the MLP, default
    4 hidden. vocab: true vocabulary; storage is padded to the tensor size, outputs never are. positions: learned (a table
    of `sequence` rows), rotary or none. tied: one matrix for embedding and output. bias: on every linear layer;
    qkv_bias: on queries, keys and values alone when bias is off. dropout: on the embedding and each residual branch.
    init_std: of every weight; the projections back into the residual stream divide it by sqrt(2 x layers).
    """

    pattern: str = "[*-]*2"
    hidden: int = 64
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int = 512
    sequence: int = 128
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    activation: str = "gelu_tanh"
    positions: str = "learned"
    rotary_base: float = 10_000.0
    tied: bool = True
    bias: bool = True
    qkv_bias: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02

    def __post_init__(self):
        self.layers  # noqa: B018 (reads the pattern, and says so when it cannot)
        sizes = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "sequence")
        check_ranges(self, dict.fromkeys(sizes, COUNT))
        check_ranges(self, {"heads": HEADS, "norm_eps": ABOVE_ZERO, "rotary_base": ABOVE_ZERO, "init_std": FROM_ZERO})
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads} does not divide hidden={self.hidden}: change one, or set head_dim")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}: "
                             f"use one of {[n for n in range(1, self.heads + 1) if self.heads % n == 0]}")
        for name, choices in (("norm", ("layernorm", "rmsnorm")), ("activation", ACTIVATIONS),
                              ("positions", ("learned", "rotary", "none"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: use one of {', '.join(choices)}")
        if self.positions == "rotary" and self.dim % 2:
            raise ValueError(f"head_dim={self.dim}: rotary positions turn pairs, so it must be even")
        for p in (self.dropout, self.attention_dropout):
            threshold(p)

    @property
    def layers(self) -> Pattern:
        return parse(self.pattern)

    @property
    def depth(self) -> int:
        return len(self.layers.units)

    @property
    def dim(self) -> int:
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def groups(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def inner(self) -> int:
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def gated(self) -> bool:
        return self.activation in GATED

    @property
    def output_std(self) -> float:
        return self.init_std / (2 * self.depth) ** 0.5


def check(config: LanguageModelConfig, tp: int = 1, sequence_parallel: bool = False, kernels: str = "sdpa",
          recompute: str = "none") -> None:
    """Everything that has to fit between a model and its layout; raises ValueError before any process starts."""
    if config.heads % tp:
        raise ValueError(f"heads={config.heads} does not divide by tp={tp}: "
                         f"use tp in {[t for t in range(1, config.heads + 1) if config.heads % t == 0]}")
    if config.groups % tp and tp % config.groups:
        raise ValueError(f"kv_heads={config.groups} and tp={tp}: one must divide the other")
    if config.inner % tp:
        raise ValueError(f"ffn={config.inner} does not divide by tp={tp}")
    if sequence_parallel and config.sequence % tp:
        raise ValueError(f"sequence={config.sequence} does not divide by tp={tp}: sequence parallelism cuts it evenly")
    if kernels not in KERNEL_SETS:
        raise ValueError(f"kernels={kernels!r}: use one of {', '.join(KERNEL_SETS)}")
    policy = Policy.parse(recompute)
    fused = not KERNEL_SETS[kernels].keeps_scores and not config.attention_dropout
    if "attention.core" in policy.sites and fused:
        raise ValueError(f"recompute={recompute!r} with kernels={kernels!r} frees nothing: fused attention keeps no "
                         "scores; use recompute=none, full, or norm,activation, or kernels=paper")
    if policy.first is not None and policy.first > config.depth:
        raise ValueError(f"recompute={recompute!r} names {policy.first} layers, the model has {config.depth}")
