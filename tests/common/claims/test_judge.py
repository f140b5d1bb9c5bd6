"""Verdicts from numbers alone."""

from dataclasses import replace

import numpy as np
import pytest

from common.claims import Absolute, AtLeast, Contradiction, Order, Relative, Result
from common.claims.judge import VERDICTS, judge
from common.claims.schema import KINDS, Claim

CLAIM = Claim(
    id="table1-weight/small",
    source="table1-weight",
    where="Table 1",
    group="Table 1",
    what="Weight",
    text="small",
    kind="exact",
    published=100.0,
    unit="GB",
    confidence="read",
    tolerance=Relative(0.01),
    function="piles",
)


def result(ours, **rest) -> Result:
    return Result(CLAIM.id, ours, **rest)


def other(value: float) -> Contradiction:
    return Contradiction("Section 4", value, "its own formula")


def test_met_and_missed() -> None:
    assert judge(CLAIM, result(100.9)).verdict == "met"
    row = judge(CLAIM, result(102.0, cause="stones"))
    assert (row.verdict, row.cause, row.error) == ("missed", "stones", pytest.approx(0.02))


def test_a_cause_is_not_shown_where_it_is_met() -> None:
    assert judge(CLAIM, result(100.0, cause="stones")).cause == ""


def test_a_miss_without_a_cause_is_an_error() -> None:
    with pytest.raises(ValueError, match="table1-weight/small: missed .* piles states no cause"):
        judge(CLAIM, result(102.0))


def test_inconsistent_only_if_the_numbers_say_so() -> None:
    follows = judge(CLAIM, result(110.0, contradiction=other(110.5)))
    assert follows.verdict == "paper-inconsistent" and "ours follows Section 4" in follows.cause
    neither = judge(CLAIM, result(150.0, contradiction=other(110.0), cause="a third way of counting"))
    assert neither.verdict == "paper-inconsistent" and "follows neither: a third way" in neither.cause
    assert judge(CLAIM, result(100.5, contradiction=other(110.0))).verdict == "met"
    agrees = result(110.0, contradiction=other(100.1), cause="stones")
    assert judge(CLAIM, agrees).verdict == "missed"


@pytest.mark.parametrize("value", [100.1, 110.0])
def test_a_contradiction_that_ours_does_not_follow_is_no_excuse_for_a_missing_cause(value: float) -> None:
    with pytest.raises(ValueError, match="states no cause"):
        judge(CLAIM, result(150.0, contradiction=other(value)))


@pytest.mark.parametrize("confidence", ["memory", "quoted"])
@pytest.mark.parametrize("ours", [100.0, 150.0])
def test_a_value_not_read_is_unverified_whatever_ours_is(confidence: str, ours: float) -> None:
    assert judge(replace(CLAIM, confidence=confidence), result(ours)).verdict == "unverified"


def test_waiting_says_for_what() -> None:
    row = judge(replace(CLAIM, waits="needs the sea", tolerance=None), None)
    assert (row.verdict, row.cause) == ("waiting", "needs the sea")
    assert judge(CLAIM, None).cause == "not run yet"


def test_context_is_not_scored() -> None:
    context = replace(CLAIM, kind="context", tolerance=None)
    assert judge(context, None).verdict == "context"
    with pytest.raises(ValueError, match="not scored, yet it has a result"):
        judge(context, result(100.0))


def test_a_result_must_be_of_this_claim_and_of_this_shape() -> None:
    with pytest.raises(ValueError, match="handed to"):
        judge(CLAIM, replace(result(1.0), claim="table1-weight/large"))
    with pytest.raises(ValueError, match="ours has 2 numbers, the published value 1"):
        judge(CLAIM, result([1.0, 2.0]))
    with pytest.raises(ValueError, match="has a result, yet it waits"):
        judge(replace(CLAIM, tolerance=None, waits="needs the sea"), result(1.0))


@pytest.mark.parametrize(
    "ours", [float("nan"), float("inf"), [1.0, float("nan")], None, True, {}, np.float32("nan")]
)
def test_what_is_no_finite_number_never_becomes_a_result(ours) -> None:
    with pytest.raises(ValueError, match="table1-weight/small"):
        result(ours)


def test_numbers_of_numpy_become_pythons() -> None:
    found = result((np.float32(0.5), np.int64(3)), spread=[(np.float64(0.4), 1), [3, 3]])
    assert found.ours == (0.5, 3) and [type(item) for item in found.ours] == [float, int]
    assert found.spread == ((0.4, 1.0), (3.0, 3.0))


@pytest.mark.parametrize(
    "spread", [(2.0, 3.0), (1.5, 0.5), (0.5,), ((0.5, 1.5), (0.5, 1.5)), (0.5, float("nan"))]
)
def test_a_spread_holds_its_value(spread) -> None:
    with pytest.raises(ValueError):
        result(1.0, spread=spread)


def test_errors_are_signed_relative_and_the_largest() -> None:
    listed = replace(CLAIM, published=(100.0, 50.0), tolerance=Absolute(5))
    assert judge(listed, result((101.0, 48.0))).error == pytest.approx(-0.04)
    assert judge(replace(CLAIM, published=0.0, tolerance=Absolute(5)), result(1.0)).error is None
    assert judge(replace(CLAIM, tolerance=AtLeast(50)), result(60.0)).error is None
    assert judge(replace(CLAIM, published=(1, 2), tolerance=Order()), result((3, 4))).error is None


def test_every_kind_and_verdict_is_explained() -> None:
    assert list(KINDS) == ["exact", "measured", "predicted", "one-gpu", "cluster", "derived", "context"]
    assert list(VERDICTS) == ["met", "missed", "paper-inconsistent", "unverified", "waiting", "context"]
