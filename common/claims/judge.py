"""The verdict on a claim, computed from its published value, its tolerance and our result."""

from dataclasses import dataclass

from common.claims.published import UNREAD, Value
from common.claims.schema import Claim, Result
from common.claims.tolerance import numbers, pairs

VERDICTS = {
    "met": "ours agrees with the published value within the tolerance",
    "missed": "ours does not; the cause is stated",
    "paper-inconsistent": "the paper gives another value elsewhere, and ours follows it",
    "unverified": "the published value was recalled or quoted, not read",
    "waiting": "nothing produced yet; what it waits for is stated",
    "context": "shown, not scored",
}


@dataclass(frozen=True)
class Row:
    """A claim with our result, if there is one, and the verdict.

    `error` is (ours − published) / |published|, of the element where it is largest; None where the two are
    not to be equal (bounds, orders), not numbers, or the published value is zero. `cause` says why it was
    missed, what contradicts it, or what it waits for.
    """

    claim: Claim
    result: Result | None
    verdict: str
    error: float | None
    cause: str


def judge(claim: Claim, result: Result | None) -> Row:
    """Judge one claim.

    Raises ValueError where no verdict can stand: a result for another claim or for a claim that is not
    scored, values that cannot be compared, a miss without a cause.
    """
    if claim.kind == "context":
        return Row(claim, _none(claim, result), "context", None, "")
    if result is None:
        return Row(claim, None, "waiting", None, claim.waits or "not run yet")
    if result.claim != claim.id:
        raise ValueError(f"a result of {result.claim} was handed to {claim.id}")
    if claim.tolerance is None:
        raise ValueError(f"{claim.id} has a result, yet it waits: {claim.waits}")
    try:
        verdict, cause = _verdict(claim, result)
        return Row(claim, result, verdict, error_of(claim, result.ours), cause)
    except ValueError as error:
        raise ValueError(f"{claim.id}: {error}") from None


def _none(claim: Claim, result: Result | None) -> None:
    if result is not None:
        raise ValueError(f"{claim.id} is context, which is not scored, yet it has a result")


def _verdict(claim: Claim, result: Result) -> tuple[str, str]:
    assert claim.tolerance is not None
    holds = claim.tolerance.holds(result.ours, claim.published, result.spread)
    if claim.confidence in UNREAD:
        return "unverified", f"the published value is from {claim.confidence}, not read in the paper"
    if holds:
        return "met", ""
    if result.contradiction is not None:
        other = result.contradiction
        follows = claim.tolerance.holds(result.ours, other.value, result.spread)
        differs = not claim.tolerance.holds(other.value, claim.published)
        stated = f"{other.where} gives {show(other.value)}: {other.what}"
        if follows:
            return "paper-inconsistent", f"{stated}; ours follows {other.where}"
        if differs and result.cause:
            return "paper-inconsistent", f"{stated}; ours follows neither: {result.cause}"
    if not result.cause:
        raise ValueError(
            f"missed (ours {show(result.ours)}, published {show(claim.published)}, {claim.tolerance.text()}) "
            f"and {claim.function} states no cause"
        )
    return "missed", result.cause


def error_of(claim: Claim, ours: Value) -> float | None:
    """The relative error of ours; see Row."""
    if claim.tolerance is None or not claim.tolerance.equals or isinstance(claim.published, str):
        return None
    compared = pairs(ours, claim.published)
    if any(theirs == 0 for _, theirs in compared):
        return None
    return max(((mine - theirs) / abs(theirs) for mine, theirs in compared), key=abs)


def show(value: Value) -> str:
    """A value in a sentence."""
    if isinstance(value, str):
        return value
    return ", ".join(f"{item:.6g}" for item in numbers(value))
