"""The published models of arXiv:2205.05198, table 3, and the letters of its formulas."""

from functools import cache

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.trace.trace import Trace, layer_trace

SEQUENCE, VOCABULARY, TENSOR = 2048, 51200, 8


def gpt(layers: int, hidden: int, heads: int) -> LanguageModelConfig:
    return LanguageModelConfig(pattern=f"[*-]*{layers}", hidden=hidden, heads=heads, vocab=VOCABULARY,
                               sequence=SEQUENCE, dropout=0.1, attention_dropout=0.1)


# name -> model, micro-batch, pipeline size
PUBLISHED = {
    "22B": (gpt(48, 6144, 64), 4, 1),
    "175B": (gpt(96, 12288, 96), 1, 8),
    "530B": (gpt(105, 20480, 128), 1, 35),
    "1T": (gpt(128, 25600, 160), 1, 64),
}


@cache
def published_layer(name: str, tp: int = TENSOR, sequence_parallel: bool = False,
                    recompute: str = "none") -> Trace:
    """One middle layer of a published model, traced once for all tests."""
    config, micro_batch, _ = PUBLISHED[name]
    return layer_trace(config, Grid(tp=tp), micro_batch=micro_batch, sequence_parallel=sequence_parallel,
                       recompute=recompute)
