"""Formulas against Python's own arithmetic, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.claims.formula import evaluate, names


@given(
    a=st.integers(1, 200),
    s=st.integers(1, 10**4),
    b=st.integers(1, 64),
    h=st.integers(1, 10**5),
    t=st.integers(1, 64),
)
def test_a_published_formula_is_pythons_arithmetic(a: int, s: int, b: int, h: int, t: int) -> None:
    text = "s*b*h*(10 + 24/t + 5*a*s/(h*t)) - 2*a*s^2*b"
    expected = s * b * h * (10 + 24 / t + 5 * a * s / (h * t)) - 2 * a * s**2 * b
    assert evaluate(text, {"a": a, "s": s, "b": b, "h": h, "t": t}) == expected


def test_comparison_and_calls() -> None:
    assert evaluate("5*a*s/h > 34", {"a": 96, "s": 2048, "h": 12288}) is True
    assert evaluate("max(0, p - S)", {"p": 4, "S": 6}) == 0
    assert evaluate("-x^2", {"x": 3}) == -9


def test_names() -> None:
    assert names("s*b*h*L/t*(p/L + max(0, delta))") == {"s", "b", "h", "L", "t", "p", "delta"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2*", "is not arithmetic"),
        ("__import__('os').getcwd()", "is not arithmetic"),
        ("s.real", "is not evaluated"),
        ("[s for s in 'ab']", "is not evaluated"),
        ("s if s else 1", "is not evaluated"),
        ("print(s)", "is not evaluated"),
        ("True + s", "is not evaluated"),
        ("s*z", "needs 'z'; given: s"),
        ("1/(s - 2)", "divides by zero"),
    ],
)
def test_what_is_no_formula_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="formula") as caught:
        evaluate(text, {"s": 2})
    assert message in str(caught.value) and text in str(caught.value)
