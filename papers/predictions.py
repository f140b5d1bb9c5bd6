"""All predicted times and rates beside the published ones: a table by paper and figure, a scatter, and the misses.

    python -m papers.predictions                         the table, from stored results
    python -m papers.predictions --draw scatter.png
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from pathlib import Path

from rich.table import Table

from common.claims.command import finish, parse
from common.claims.drawing import BLUE, EDGE, GREEN, ORANGE, drawing
from common.claims.judge import Row
from common.claims.render import console
from common.claims.run import rows_of
from common.claims.schema import Paper
from common.claims.target import PICTURES, check_target
from common.claims.tolerance import numbers
from common.predict.baselines import constant, number, power_law, rate
from papers import find
from papers.series import ALL, facts_of

APART = 0.05
"""Pairs of published numbers that differ by more than this have an order to predict."""
COLUMNS = ("paper", "table", "numbers", "median", "worst", "one rate per table: median", "worst",
           "one rate per paper: median", "worst", "power law: median", "worst", "order right")
TITLE = "predicted against published, errors in %; the fitted rows left out"
BASELINES = ("one rate for all runs of a table, one for all of a paper, and a power law of a paper's rates in the hidden "
             "size, are each fitted to all numbers that they are held against; the predictor has one constant per paper, "
             "fitted on one row")
COLOURS = {"interleaved_pipelining": BLUE, "sequence_parallelism": ORANGE, "mt_nlg": GREEN}


@dataclass(frozen=True)
class Point:
    """One number. simple: what the baselines say, in the same unit."""

    paper: str
    table: str
    claim: str
    unit: str
    published: float
    ours: float
    fitted: bool
    simple: tuple[float, ...]

    @property
    def error(self) -> float:
        return self.ours / self.published - 1

    @property
    def simple_errors(self) -> tuple[float, ...]:
        return tuple(x / self.published - 1 for x in self.simple)


def points(listed: Sequence[tuple[Paper, Sequence[Row]]]) -> list[Point]:
    """Of every series that has a result."""
    rows = {(paper.name, row.claim.id): row for paper, rows in listed for row in rows if row.result is not None}
    found = []
    for paper in ALL:
        facts = facts_of(paper)
        raw = [(series, recipe, value, ours) for series in paper if (paper.paper, series.id) in rows
               for recipe, value, ours in zip(series.recipes, series.published(facts),
                                              numbers(rows[paper.paper, series.id].result.ours), strict=True)]
        if not raw:
            continue
        rates = [rate(recipe, series.unit, value) for series, recipe, value, _ in raw]
        whole, law = constant(rates), power_law([recipe.model.hidden for _, recipe, _, _ in raw], rates)
        tables = {table: constant([r for r, (series, *_) in zip(rates, raw, strict=True) if series.table == table])
                  for table in {series.table for series, *_ in raw}}
        for series, recipe, value, ours in raw:
            simple = tuple(number(recipe, series.unit, x) for x in (tables[series.table], whole, law(recipe.model.hidden)))
            found.append(Point(paper.paper, series.table, series.id, series.unit, value, ours, series.id == paper.fitted,
                               simple))
    return found


def order_right(chosen: Sequence[Point]) -> tuple[int, int]:
    """Pairs of one unit whose published numbers are apart, in the right order and in all."""
    apart = [(a, b) for a, b in combinations(chosen, 2)
             if a.unit == b.unit and abs(a.published - b.published) > APART * max(a.published, b.published)]
    return sum((a.published < b.published) == (a.ours < b.ours) for a, b in apart), len(apart)


def _cells(paper: str, table: str, chosen: Sequence[Point]) -> list[str]:
    judged = [p for p in chosen if not p.fitted]
    columns = [[abs(p.error) for p in judged], *([abs(p.simple_errors[i]) for p in judged] for i in range(3))]
    spread = [f"{100 * end(column):.1f}" for column in columns for end in (statistics.median, max)]
    right, pairs = order_right(chosen)
    return [paper, table, str(len(judged)), *spread, f"{right} of {pairs}" if pairs else ""]


def summary(found: Sequence[Point]) -> list[list[str]]:
    """A line for each table, and one for each paper and all its figures."""
    lines = []
    for paper in dict.fromkeys(p.paper for p in found):
        mine = [p for p in found if p.paper == paper]
        groups = {table: [p for p in mine if p.table == table] for table in dict.fromkeys(p.table for p in mine)}
        lines += [_cells(paper, table, members) for table, members in groups.items() if any(not p.fitted for p in members)]
        figures = [p for p in mine if p.table.startswith("Figure 1")]
        if figures:
            cells = _cells(paper, "Figures 11 to 18", figures)
            right, pairs = (sum(each) for each in zip(*(order_right(m) for t, m in groups.items() if t.startswith("Figure 1")),
                                                      strict=True))
            lines.append([*cells[:-1], f"{right} of {pairs}"])
        if len(groups) > 1:
            lines.append([*_cells(paper, "all", mine)[:-1], ""])
    return lines


def markdown(found: Sequence[Point]) -> str:
    """The block of the README: papers and their main tables."""
    if not found:
        return "Not run yet."
    head = ["| " + " | ".join(COLUMNS) + " |", "| --- | --- |" + " ---: |" * (len(COLUMNS) - 2)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in summary(found)), "",
                      f"Errors in %, the fitted rows left out; {BASELINES}."])


def section(listed: Sequence[tuple[Paper, Sequence[Row]]]) -> str:
    """The part of the report that stands before the papers."""
    from common.claims.html import embedded

    found = points(listed)
    if not found:
        return ""
    head = "".join(f'<th{" class=n" if i > 1 else ""}>{escape(name)}</th>' for i, name in enumerate(COLUMNS))
    body = "".join("<tr>" + "".join(f'<td{" class=n" if i > 1 else ""}>{escape(cell)}</td>' for i, cell in enumerate(line))
                   + "</tr>\n" for line in summary(found))
    misses = "".join(f'<div class="finding missed"><span>missed</span><p>{escape(text)}</p><p class="soft">{escape(why)}</p></div>\n'
                     for text, why in _misses(listed))
    return (f'<section id="predictions">\n<h2>Predictions</h2>\n{embedded(lambda path: draw(path, found), TITLE)}'
            f'<table class="folded">\n<tr>{head}</tr>\n{body}</table>\n<p class="meta">{escape(BASELINES)}.</p>\n'
            f"{misses}</section>\n")


def _misses(listed: Sequence[tuple[Paper, Sequence[Row]]]) -> Iterator[tuple[str, str]]:
    for paper, rows in listed:
        for row in rows:
            if row.claim.kind == "predicted" and row.verdict == "missed":
                error = f", {100 * row.error:+.1f} % at most" if row.error is not None else ""
                yield f"{paper.name}, {row.claim.group}: {row.claim.what}{error}", row.cause


def draw(path: Path, found: Sequence[Point]) -> None:
    """Left, every number against its prediction; right, the errors by table."""
    tables = list(dict.fromkeys((p.paper, p.table) for p in found))
    with drawing(path, 2, (11, 5.4), width_ratios=(1, 1.15)) as (_, (left, right)):
        for paper, colour in COLOURS.items():
            mine = [p for p in found if p.paper == paper]
            left.scatter([p.published for p in mine], [p.ours for p in mine], s=14, color=colour, alpha=0.8, linewidths=0,
                         label=paper.replace("_", " "))
        ends = [end(p.published for p in found) for end in (min, max)]
        for factor, style in ((1.0, "-"), (1.1, ":"), (1 / 1.1, ":")):
            left.plot(ends, [factor * x for x in ends], style, color=EDGE, linewidth=0.8)
        left.set(xscale="log", yscale="log", xlabel="published: TFLOP/s per GPU, s, sequences/s", ylabel="predicted",
                 title="dotted: 10 %")
        left.legend(loc="upper left")
        for i, key in enumerate(tables):
            mine = [p for p in found if (p.paper, p.table) == key]
            right.scatter([100 * p.error for p in mine], [i] * len(mine), s=14, alpha=0.7, linewidths=0,
                          color=[EDGE if p.fitted else COLOURS[p.paper] for p in mine])
        right.axvline(0, color=EDGE, linewidth=0.8)
        right.set_yticks(range(len(tables)), [f"{table}" for _, table in tables])
        right.invert_yaxis()
        right.grid(True, axis="x")
        right.set(xlabel="error, %", title="by table; grey: fitted on")


@dataclass(frozen=True)
class Predictions:
    """Show all predicted times and rates beside the published ones, from stored results."""

    draw: Path | None = None
    """Also draw them to this file, .png, .svg or .pdf."""
    force: bool = False
    """Replace a file that exists."""


def work(options: Predictions) -> list[str]:
    if options.draw:
        check_target(options.draw, "--draw", PICTURES, options.force)
    found = points([(paper, rows_of(paper)) for paper in find()])
    table = Table(*COLUMNS, title=TITLE, caption=BASELINES)
    for line in summary(found):
        table.add_row(*line)
    console().print(table)
    if options.draw:
        draw(options.draw, found)
    return []


if __name__ == "__main__":
    given = parse(Predictions, "python -m papers.predictions", None)
    finish(lambda: work(given))
