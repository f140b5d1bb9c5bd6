"""The simplest predictions of the same numbers: one rate for every run of a paper, and a power law in the hidden size.

Both are given what a prediction is not: they are fitted to all the published numbers that they are then held against.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from common.models.flops import FORWARD, model_flops
from common.models.pattern import LETTERS
from common.recompute.policy import Policy

if TYPE_CHECKING:
    from common.training.recipe import Recipe

WHOLE, CORE = "layer", "attention.core"  # sites of common/recompute/policy.py that run matrix products again


def hardware_flops(recipe: "Recipe") -> float:
    """FLOPs of an iteration that run, forward passes made again among them (arXiv:2104.04473, equation 3, where all are;
    arXiv:2205.05198, appendix A, where attention alone is)."""
    model, policy = recipe.model, Policy.parse(recipe.execution.recompute)
    again = 0
    for i, unit in enumerate(model.layers.units):
        made = policy.at(i)
        for letter in unit:
            if WHOLE in made:
                again += FORWARD[LETTERS[letter]](model)
            elif CORE in made and LETTERS[letter] == "attention":
                again += 4 * model.sequence**2 * model.heads * model.dim
    return model_flops(model, recipe.training.batch) + recipe.training.batch * again


def rate(recipe: "Recipe", unit: str, value: float) -> float:
    """FLOP/s of one rank, from a published number in one of common/predict/series.py's units."""
    if unit == "TFLOP/s per GPU":
        return 1e12 * value
    flops, ranks = hardware_flops(recipe), recipe.grid.world
    return flops / value / ranks if unit == "s" else flops * value / recipe.training.batch / ranks


def number(recipe: "Recipe", unit: str, flops_per_second: float) -> float:
    """The inverse of `rate`: the number in its unit."""
    per_unit = rate(recipe, unit, 1.0)
    return per_unit / flops_per_second if unit == "s" else flops_per_second / per_unit


def constant(rates: Sequence[float]) -> float:
    """The one rate with the least squared error in logarithms."""
    return math.exp(fmean(map(math.log, rates)))


def power_law(hidden: Sequence[int], rates: Sequence[float]):
    """a h^b with the least squared error in logarithms, as a function of h."""
    xs, ys = [math.log(h) for h in hidden], [math.log(r) for r in rates]
    x, y = fmean(xs), fmean(ys)
    spread = sum((a - x) ** 2 for a in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return lambda h: math.exp(y + slope * (math.log(h) - x))
