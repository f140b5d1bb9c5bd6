"""Each tolerance on values just inside, just outside, and on what it cannot compare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.claims.tolerance import (
    Absolute,
    AtLeast,
    AtMost,
    Between,
    Equal,
    Order,
    Reading,
    Relative,
    Rounding,
    places,
)

INSIDE_AND_OUTSIDE = [
    (Relative(0.01), 101.0, 101.1, 100),
    (Relative(0.01), -101.0, -101.1, -100),
    (Relative(0.01), (101.0, 49.5), (101.0, 49.4), (100, 50)),
    (Absolute(0.3), 33.4, 33.41, 33.1),
    (Absolute(0.05), 41.55, 41.56, 41.5),
    (AtLeast(), 90, 89.99, 90),
    (AtLeast(50), 50, 49.9, 90),
    (AtMost(), 20.0, 20.01, 20),
    (AtMost(25), 25, 26, 20),
    (Between(), (30, 40), (29.9, 35), (30, 40)),
    (Order(), (1, 2, 3), (1, 3, 2), (7.7, 13.2, 19.5)),
    (Order(), (3, 2, 1), (1, 2, 3), (9, 5, 1)),
    (Order(), (5, 4, 6), (6, 4, 6), (1, 1, 2)),
    (Equal(), 8, 8.001, 8),
    (Equal(), "learned", "rotary", "learned"),
]


@pytest.mark.parametrize(("tolerance", "inside", "outside", "published"), INSIDE_AND_OUTSIDE)
def test_inside_holds_and_outside_does_not(tolerance, inside, outside, published) -> None:
    assert tolerance.holds(inside, published)
    assert not tolerance.holds(outside, published)


@given(st.floats(1e-3, 1e6), st.sampled_from([-1, 1]), st.sampled_from([-1, 1]), st.floats(0.001, 0.5))
def test_relative_is_symmetric_about_the_published_value(
    size: float, sign: int, side: int, fraction: float
) -> None:
    published = sign * size
    assert Relative(fraction).holds(published + side * 0.99 * fraction * size, published)
    assert not Relative(fraction).holds(published + side * 1.01 * fraction * size, published)


def test_a_spread_must_clear_a_bound_and_an_order() -> None:
    assert AtLeast(50).holds(60, 90, (50, 70))
    assert not AtLeast(50).holds(60, 90, (49, 70))
    assert not AtMost(50).holds(40, 90, (30, 51))
    assert Order().holds((1, 2), (7, 9), ((0.9, 1.1), (1.2, 2.5)))
    assert not Order().holds((1, 2), (7, 9), ((0.9, 1.3), (1.2, 2.5)))
    assert not Between().holds(35, (30, 40), (29, 39))


def test_printed_digits_and_reading_errors_become_amounts() -> None:
    assert (places(41.5), places(39), places(0.0125), places(1e-05)) == (1, 0, 4, 5)
    assert Rounding().resolve(41.5, None).amount == pytest.approx(0.05)
    assert Rounding().resolve(39, None).amount == pytest.approx(0.5)
    assert Rounding(2).resolve((11.76, 10.8), None).amount == pytest.approx(0.01)
    assert Reading(2).resolve(1, 0.3).amount == pytest.approx(0.6)
    with pytest.raises(ValueError, match="needs a read_error"):
        Reading().resolve(1, None)
    with pytest.raises(ValueError, match="needs a value as printed"):
        Rounding().resolve(1 / 3, None)


INCOMPARABLE = [
    (Relative(0.1), (1, 2), 1),
    (Absolute(0.1), "text", 1),
    (Order(), 1, 1),
    (Order(), (1, 2), (1, 2, 3)),
    (Between(), 1, 30),
    (Between(), 1, (40, 30)),
    (AtLeast(), (1, 2), 3),
    (AtMost(5), "text", 3),
    (Equal(), "8", 8),
]


@pytest.mark.parametrize(("tolerance", "ours", "published"), INCOMPARABLE)
def test_what_cannot_be_compared_is_an_error(tolerance, ours, published) -> None:
    with pytest.raises(ValueError):
        tolerance.holds(ours, published)


@pytest.mark.parametrize("amount", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Relative, Absolute, Reading, Rounding])
def test_a_tolerance_is_positive(kind, amount: float) -> None:
    with pytest.raises(ValueError, match="no tolerance"):
        kind(amount)
