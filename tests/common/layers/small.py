"""Small models and records for tests of layers on one rank."""

import torch

from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parameters import initialise

GPT = LanguageModelConfig(hidden=24, heads=4, vocab=37, sequence=11, dropout=0.1, attention_dropout=0.1)
LLAMA = LanguageModelConfig(hidden=24, heads=4, kv_heads=2, ffn=36, vocab=37, sequence=11, norm="rmsnorm",
                            activation="swiglu", positions="rotary", tied=False, bias=False)


def build(config: LanguageModelConfig, dtype: torch.dtype = torch.float32, kernels: str = "sdpa",
          recompute: str = "none") -> LanguageModel:
    """Every weight random, norms and biases too; the same numbers in every dtype, to its rounding."""
    model = LanguageModel(config, Context(kernels=kernels, dtype=dtype), recompute)
    initialise(model, SERIAL, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator).to(dtype), alpha=0.2)
    return model


def record(config: LanguageModelConfig, seed: int = 1, batch: int = 3, documents: bool = True) -> Record:
    S = config.sequence
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocab, (batch, S + 1), generator=generator)
    positions = torch.arange(S).expand(batch, S)
    mask = torch.rand(batch, S, generator=generator) < 0.8
    ids = positions // (torch.arange(batch)[:, None] + 4) if documents else None
    return Record(
        tokens[:, :-1],
        tokens[:, 1:],
        mask,
        positions,
        ids,
        tuple(range(seed * 100, seed * 100 + batch)),
        step=5,
        seed=9,
    )


def loss(model: LanguageModel, batch: Record) -> torch.Tensor:
    """Sum of the loss over this record's tokens."""
    return model(batch, {})[1]["language"].sum
