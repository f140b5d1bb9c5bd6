"""Traces of the published models, each made once: one serves many claims.

Every function runs the real layers at the published size on fake tensors (common/trace), as tensor rank 0 of
its stage, with one micro-batch of table 3 in bf16 and dropout 0.1.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.pipeline.stages import cuts
from common.trace.trace import STATISTICS, Trace, layer_trace, trace
from papers.sequence_parallelism.recipes import published

LAYER_TENSORS = ("attention.", "mlp.", "layer.")
"""What the names of tensors kept inside layers begin with."""

TECHNIQUES = {
    "none": {"tp": 1},
    "tp": {},
    "tp-sp": {"sequence_parallel": True},
    "tp-selective": {"recompute": "selective"},
    "tp-sp-selective": {"sequence_parallel": True, "recompute": "selective"},
    "full": {"recompute": "full"},
}
"""The rows of table 2 by the name of their claim; tensor-parallel size 8 unless said otherwise."""


def model(size: str, sequence: int | None = None) -> tuple[LanguageModelConfig, int]:
    """The published model, or the same over another sequence length, and its micro-batch."""
    recipe = published(size)
    config = recipe.model
    if sequence is not None:
        config = replace(config, sequence=sequence)
    return config, recipe.training.micro_batch


@cache
def layer(size: str, technique: str, sequence: int | None = None) -> Trace:
    """One layer from the middle of the model."""
    settings = dict(TECHNIQUES[technique])
    config, micro_batch = model(size, sequence)
    return layer_trace(config, Grid(tp=settings.pop("tp", 8)), micro_batch=micro_batch, **settings)


@cache
def first_layer(size: str, technique: str = "tp-sp") -> Trace:
    """The first layer with the embedding before it, at tensor-parallel size 8."""
    config, micro_batch = model(size)
    return trace(config, Grid(tp=8), micro_batch=micro_batch, last=1, **TECHNIQUES[technique])


@cache
def last_layer(size: str) -> Trace:
    """The last layer with the output behind it, tensor and sequence parallel."""
    config, micro_batch = model(size)
    return trace(config, Grid(tp=8), micro_batch=micro_batch, sequence_parallel=True, first=config.depth - 1)


def stage(size: str, technique: str, number: int, chunks: int = 1) -> Trace:
    """One of the pp x chunks stages that the model is cut into, at tensor-parallel size 8."""
    last = published(size).grid.pp * chunks - 1
    # Table 3 is cut evenly: stages between the ends are alike.
    return _stage(size, technique, min(number, 1) if number < last else last, chunks)


@cache
def _stage(size: str, technique: str, number: int, chunks: int) -> Trace:
    config, micro_batch = model(size)
    pp = published(size).grid.pp
    first, last = cuts(config.layers, pp * chunks)[number]
    grid = Grid(tp=8, pp=pp)
    return trace(config, grid, grid.rank(pp=number % pp), micro_batch, first=first, last=last, **TECHNIQUES[technique])


def whole_22b(technique: str) -> Trace:
    """The whole 22B on one stage: embedding, 48 layers and output."""
    return stage("22b", technique, 0)


def in_layers(saved: Mapping[str, int]) -> int:
    """Bytes kept inside layers, of bytes by tensor; statistics left out as section 4 does."""
    return sum(size for name, size in saved.items() if name.startswith(LAYER_TENSORS) and name not in STATISTICS)
