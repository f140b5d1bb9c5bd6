"""Fits each paper's software factor on its one row, and shows what is left.

    python -m papers.fit             the stored factors, their residuals, and the errors with the other papers' mean factor
    python -m papers.fit --store     fits again and writes common/predict/constants.toml
"""

import re
import statistics
from dataclasses import dataclass

from rich.table import Table

from common.claims.command import finish, parse
from common.claims.render import console
from common.claims.target import check_folder
from common.predict.constants import FILE
from common.predict.series import Predicted, Series
from papers.series import ALL, facts_of

DIGITS, STEPS = 4, 40


@dataclass(frozen=True)
class Fit:
    """Fit the software factors, or show what the stored ones leave."""

    store: bool = False
    """Fit again and write the factors to common/predict/constants.toml."""


def errors(paper: Predicted, series: Series, software: float | None = None) -> list[float]:
    """Of each number, relative."""
    ours, published = series.predicted(paper, software), series.published(facts_of(paper))
    return [a / b - 1 for a, b in zip(ours, published, strict=True)]


def fit(paper: Predicted) -> float:
    """The factor with which the fitted row is met, by bisection: times grow with it, rates fall."""
    (series,) = (s for s in paper if s.id == paper.fitted)
    slower = 1 if series.unit == "s" else -1
    low, high = 0.5, 2.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if slower * errors(paper, series, middle)[0] < 0:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, DIGITS)


def write(factors: dict[str, float]) -> None:
    text = FILE.read_text(encoding="utf-8")
    for paper, value in factors.items():
        text, count = re.subn(rf"(\[software\.{paper}\]\nvalue = )\S+", rf"\g<1>{value}", text)
        assert count == 1, paper
    FILE.write_text(text, encoding="utf-8")


def shown(factors: dict[str, float]) -> Table:
    """Median and worst absolute residual over the rows that nothing was fitted on; again with the others' mean factor."""
    table = Table("paper", "factor", "fitted on", "numbers", "median", "worst", "left out: factor", "median", "worst",
                  title="software factors, errors in %")
    for paper in ALL:
        rest = [series for series in paper if series.id != paper.fitted]
        others = statistics.mean(value for name, value in factors.items() if name != paper.paper)
        cells = []
        for factor in (factors[paper.paper], others):
            found = [abs(e) for series in rest for e in errors(paper, series, factor)]
            cells.append((f"{100 * statistics.median(found):.1f}", f"{100 * max(found):.1f}", len(found)))
        (median, worst, count), (median_out, worst_out, _) = cells
        table.add_row(paper.paper, f"{factors[paper.paper]:.3f}", paper.fitted, str(count), median, worst, f"{others:.3f}",
                      median_out, worst_out)
    return table


def work(options: Fit) -> list[str]:
    if options.store:
        check_folder(FILE.parent, "--store")
    factors = {paper.paper: fit(paper) if options.store else paper.costs().software for paper in ALL}
    if options.store:
        write(factors)
    console().print(shown(factors))
    return []


if __name__ == "__main__":
    given = parse(Fit, "python -m papers.fit", None)
    finish(lambda: work(given))
