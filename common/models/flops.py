"""Model FLOPs: what the mathematics of a model asks for, whatever is recomputed (arXiv:2205.05198, appendix A).

A matrix product of (m, k) and (k, n) counts 2mkn; the backward pass counts twice the forward; attention counts the whole
square, causal or not; element-wise work counts nothing.
"""

from common.models.config import LanguageModelConfig
from common.models.pattern import LETTERS


def _attention(c: LanguageModelConfig) -> int:
    projections = 2 * c.hidden * c.dim * (2 * c.heads + 2 * c.groups)
    return c.sequence * (projections + 4 * c.sequence * c.heads * c.dim)


def _mlp(c: LanguageModelConfig) -> int:
    return c.sequence * 2 * c.hidden * c.inner * (3 if c.gated else 2)


FORWARD = {"attention": _attention, "mlp": _mlp}


def model_flops(config: LanguageModelConfig, sequences: int = 1) -> int:
    """FLOPs of one forward and backward over `sequences` sequences of the config's length."""
    layers = sum(FORWARD[LETTERS[letter]](config) for unit in config.layers.units for letter in unit)
    output = 2 * config.sequence * config.hidden * config.vocab
    return 3 * sequences * (layers + output)
