"""The simplest predictions: FLOPs against those that traces count, and fits against data that they must
recover."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.grid import Grid
from common.predict.baselines import constant, hardware_flops, number, power_law, rate
from common.predict.iteration import predict
from common.predict.series import MEASURES
from tests.common.predict.small import GPT, LLAMA, PlainCosts, recipe, selene

GRID = Grid(tp=2, dp=2, pp=2)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("policy", ["none", "selective", "full", "full:2"])
def test_flops_are_those_that_traces_count(model, policy):
    """Padding of the vocabulary, which traces multiply too, does not arise with 512."""
    found = recipe(replace(model, vocab=512), GRID, batch=8, recompute=policy)
    assert hardware_flops(found) == predict(found, selene(), PlainCosts()).work.hardware


def test_full_recomputation_is_a_fourth_pass():
    """arXiv:2104.04473, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    b, s, l, h, v = 8, GPT.sequence, GPT.depth, GPT.hidden, 512  # noqa: E741
    found = hardware_flops(recipe(replace(GPT, vocab=v), batch=b, recompute="full"))
    assert found == pytest.approx(96 * b * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h)), rel=1e-12)


def test_selective_recomputation_makes_attention_again():
    """arXiv:2205.05198, appendix A, by its text, one forward pass of attention more: 72 B l s h^2 (1 + 2s /
    9h + V / 12lh); its equation 8 adds three."""
    b, s, l, h, v = 8, GPT.sequence, GPT.depth, GPT.hidden, 512  # noqa: E741
    found = hardware_flops(recipe(replace(GPT, vocab=v), batch=b, recompute="selective"))
    assert found == pytest.approx(72 * b * l * s * h**2 * (1 + 2 * s / (9 * h) + v / (12 * l * h)), rel=1e-12)


@pytest.mark.parametrize("unit", MEASURES)
@given(value=st.floats(1e-3, 1e6))
def test_rate_and_number_are_inverse(unit, value):
    found = recipe(GPT, GRID, batch=8)
    assert number(found, unit, rate(found, unit, value)) == pytest.approx(value)


@pytest.mark.parametrize("unit", MEASURES)
def test_rates_are_those_of_a_prediction(unit):
    """What series read off a prediction, turned to FLOP/s of a rank, is what the prediction says of it."""
    found = predict(
        recipe(replace(GPT, vocab=512), GRID, batch=8, recompute="full"), selene(), PlainCosts(per_flop=1e-9)
    )
    assert rate(found.recipe, unit, MEASURES[unit](found)) == pytest.approx(
        found.flops_per_second("hardware")
    )


def test_a_rate_by_hand():
    """A recipe of F FLOPs on 8 ranks that takes 2 s, or runs 4 of its 8 sequences a second."""
    found = recipe(GPT, GRID, batch=8)
    assert rate(found, "s", 2.0) == rate(found, "sequences/s", 4.0) == hardware_flops(found) / 2 / 8
    assert rate(found, "TFLOP/s per GPU", 140.0) == 140e12


@given(
    st.floats(1e-3, 1e3),
    st.floats(-1.5, 1.5),
    st.lists(st.integers(64, 30000), min_size=2, max_size=6, unique=True),
)
def test_a_power_law_is_recovered_from_its_own_points(a, b, hidden):
    law = power_law(hidden, [a * h**b for h in hidden])
    for h in (*hidden, 100, 20000):
        assert law(h) == pytest.approx(a * h**b, rel=1e-6)


def test_one_hidden_size_leaves_a_constant():
    law = power_law([512, 512], [2.0, 8.0])
    assert law(512) == law(4096) == pytest.approx(4.0)


@given(st.lists(st.floats(1.0, 1e3), min_size=1, max_size=8), st.floats(0.5, 2.0))
def test_the_constant_is_the_best_one(rates, factor):
    def loss(x: float) -> float:
        return sum(math.log(r / x) ** 2 for r in rates)

    best = constant(rates)
    assert (
        min(rates) * (1 - 1e-9) <= best <= max(rates) * (1 + 1e-9)
        and loss(best) <= loss(factor * best) + 1e-12
    )


@given(
    st.lists(st.tuples(st.integers(64, 30000), st.floats(1.0, 1e3)), min_size=2, max_size=6),
    st.floats(0.5, 2.0),
    st.floats(-0.5, 0.5),
)
def test_the_power_law_is_the_best_one(points, factor, tilt):
    hidden, rates = zip(*points, strict=True)

    def loss(of) -> float:
        return sum(math.log(r / of(h)) ** 2 for h, r in points)

    law = power_law(hidden, rates)
    assert loss(law) <= loss(lambda h: factor * law(h) * (h / 1000) ** tilt) + 1e-9
