"""Numbers, errors and rows as text, alike on the terminal, in README and on the page."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from common.claims.judge import Row
from common.claims.published import Number, Value
from common.claims.tolerance import intervals

SHORT = 4
"""Numbers of a list that fit a cell; the page shows all."""

NUMBER = r"[-−+]?[\d,]+(?:\.(\d+))?"

GROUP_RANK = ("Table", "Figure", "Equation", "Section", "Appendix", "Abstract")


def number(value: Number) -> str:
    """A number as printed if that is short, else with five significant digits; powers of ten where long."""
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        mantissa, exponent = f"{value:.5g}".split("e") if "e" in f"{value:.5g}" else f"{value:.4e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if isinstance(value, int):
        return f"{value:,}"
    if len(repr(value).replace(".", "").replace("-", "").lstrip("0")) <= 5 and "e" not in repr(value):
        return f"{value:,}"
    return f"{value:,.{max(0, 4 - math.floor(math.log10(size)))}f}" if size else "0"


def value_text(value: Value, limit: int | None = None) -> str:
    """A value; a list longer than `limit` is cut and its length stated."""
    if isinstance(value, str):
        return value
    if not isinstance(value, tuple):
        return number(value)
    if limit is not None and len(value) > limit:
        return ", ".join(map(number, value[:limit])) + f", … ({len(value)})"
    return ", ".join(map(number, value))


def error_text(error: float | None) -> str:
    """A relative error in percent with its sign; what rounds to nothing is 0."""
    if error is None:
        return ""
    return "0 %" if abs(error) < 5e-5 else f"{100 * error:+.2f} %".replace("-", "−")


@dataclass(frozen=True)
class Cells:
    """One row as texts."""

    text: str
    published: str
    ours: str
    unit: str
    error: str
    verdict: str
    kind: str
    run: str


def cells(row: Row, limit: int | None = None) -> Cells:
    """The texts of a row; `limit` cuts lists."""
    claim, result = row.claim, row.result
    return Cells(
        text=claim.text or claim.id,
        published=value_text(claim.published, limit),
        ours=_ours(row, limit),
        unit=claim.unit,
        error=error_text(row.error),
        verdict=row.verdict,
        kind=claim.kind,
        run=result.origin.run if result and result.origin else "",
    )


def _ours(row: Row, limit: int | None) -> str:
    if row.result is None:
        return ""
    text = value_text(row.result.ours, limit)
    if row.result.spread is not None and not isinstance(row.result.ours, tuple):
        ((low, high),) = intervals(row.result.ours, row.result.spread)
        text += f" ({number(low)} to {number(high)})"
    return text


def align(texts: Sequence[str], digit: str = " ", point: str = " ") -> list[str]:
    """Pad texts on the right so that decimal points stand below each other once right-aligned.

    Only plain numbers, alone or followed by their spread, take part. `digit` and `point` are spaces as
    wide as a digit and as the point.
    """
    tails = [re.fullmatch(NUMBER, text) for text in texts]
    longest = max((len(match.group(1) or "") for match in tails if match), default=0)
    padded = []
    for text, match in zip(texts, tails, strict=True):
        if match is None or longest == 0:
            padded.append(text)
        else:
            decimals = match.group(1) or ""
            padded.append(text + (point if not decimals else "") + digit * (longest - len(decimals)))
    return padded


def group_order(group: str) -> tuple[int, list[int], str]:
    """Sort key: tables, figures, equations, sections, each by number."""
    word = group.split(" ")[0]
    rank = GROUP_RANK.index(word) if word in GROUP_RANK else len(GROUP_RANK)
    return rank, [int(part) for part in re.findall(r"\d+", group)], group


def by_group(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by table or figure, in reading order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.claim.group, []).append(row)
    return {group: groups[group] for group in sorted(groups, key=group_order)}
