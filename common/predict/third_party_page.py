"""The page of third-party points: for a terminal, as Markdown, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from common.claims.drawing import BLUE, GREEN, ORANGE, PUBLISHED_DARK, VERMILION, drawing
from common.claims.render import console
from common.predict.third_party_points import BEYOND, sources

if TYPE_CHECKING:
    from common.predict.third_party import Row, Summary

GB = 1e9
HEADS = ("point", "on", "layout", "measured", "predicted", "error", "GB measured", "GB predicted", "fits", "")
SUMS = ("source", "points", "median error", "worst", "within 25 %", "memory verdicts right",
        "median error of memory")
Body = list[tuple[str, ...]]
COLOURS = {"bloom": BLUE, "torchtitan": ORANGE, "mpt": GREEN}
NOTE = ("Errors are predicted over measured, less 1, of the unit that was measured. GB are 1e9 bytes of the "
        "fullest rank, fragmentation included. Rows in brackets are doubtful and not counted. None of the "
        "points was used to fit anything.")


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table, in the order of HEADS."""
    p = row.point
    verdict = f"{'yes' if row.fits else 'no'}, {'right' if row.right else 'wrong'}"
    shown = p.id if p.quality != "C" else f"({p.id})"
    value = "out of memory" if not p.fits else f"{p.value:,.5g} {p.unit}"
    return (shown, f"{p.ranks} x {p.cluster}", p.layout, value, _number(row.value, "{:,.5g}"),
            _number(row.error, "{:+.1%}"), _number(p.memory, "{:.0f}", GB),
            _number(row.needed, "{:.1f}", GB), verdict, p.doubt)


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)


def sums_cells(name: str, one: Summary) -> tuple[str, ...]:
    known = sources()[name]["name"] if name in sources() else name
    return (known, f"{one.points}", f"{one.median:.1%}", f"{one.worst:.1%}", f"{one.close:.0%}",
            f"{one.right:.0%} of {one.verdicts}", _number(one.memory, "{:.1%}"))


def beyond(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """Rows that are not covered: id, what was measured, why."""
    for row in rows:
        if row.point.features:
            p = row.point
            value = "out of memory" if p.value is None else f"{p.value:,.5g} {p.unit}"
            yield p.id, value, "; ".join(BEYOND[name] for name in p.features)


def tables(rows: Sequence[Row], sums: Mapping[str, Summary]) -> Iterator[tuple[str, tuple[str, ...], Body]]:
    """Title, heads and rows of each table of the page."""
    yield "Summary", SUMS, [sums_cells(*item) for item in sums.items()]
    yield "Points", HEADS, [cells(row) for row in rows if not row.point.features]
    yield "Not covered", ("point", "measured", "why"), list(beyond(rows))


def terminal(rows: Sequence[Row], sums: Mapping[str, Summary], notes: Mapping[str, str]) -> None:
    """notes: by source, what its software did otherwise than this project's."""
    out = console()
    for title, heads, body in tables(rows, sums):
        table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
        for head in heads:
            table.add_column(head)
        for line in body:
            table.add_row(*line)
        if body:
            out.print(table)
            out.print()
    for source, note in notes.items():
        out.print(f"{sources()[source]['name']}: {note}.")
    out.print(NOTE)


def markdown(rows: Sequence[Row], sums: Mapping[str, Summary], notes: Mapping[str, str]) -> str:
    lines = ["# Predictions beside what others measured", "", NOTE, ""]
    for source, known in sources().items():
        said = f". Its software: {notes[source]}" if source in notes else ""
        lines.append(f"- {known['name']}: {known['where']}{said}")
    for title, heads, body in tables(rows, sums):
        if body:
            lines += ["", f"## {title}", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
            lines += ["| " + " | ".join(line) + " |" for line in body]
    return "\n".join(lines)


def html(rows: Sequence[Row], sums: Mapping[str, Summary], notes: Mapping[str, str], origin: Mapping[str, str]) -> str:
    """The section of the report. origin: of the predictions."""
    from common.claims.html import embedded

    parts = ['<section id="third_party">\n<h2>Predictions beside what others measured</h2>\n',
             embedded(lambda path: chart(rows, path), "Predicted over measured for every point; grey: within 25 %.")]
    for title, heads, body in tables(rows, sums):
        if body:
            lines = ["<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line) + "</tr>"
                     for tag, line in (("th", heads), *(("td", line) for line in body))]
            table = "<table>\n" + "\n".join(lines) + "\n</table>\n"
            parts.append(table if title == "Summary" else f"<details><summary>{title}</summary>\n{table}</details>\n")
    said = [f"{sources()[source]['name']}: {note}." for source, note in notes.items()]
    made = f"{origin['command']}, {origin['date']}, commit {origin['commit']}, {origin['machine']}"
    parts += [f'<p class="meta">{escape(text)}</p>\n' for text in (NOTE, *said, made)]
    return "".join([*parts, "</section>\n"])


def chart(rows: Sequence[Row], path: Path) -> None:
    """Predicted over measured for every point with a value, and bytes likewise."""
    with drawing(path, columns=2, size=(10, 4)) as (_, (speed, memory)):
        _ratios(speed, [(row, 1 + row.error) for row in rows if row.error is not None],
                "time of an iteration, or tokens per second")
        known = [row for row in rows if row.needed and row.point.memory]
        _ratios(memory, [(row, row.needed / row.point.memory) for row in known], "bytes of the fullest rank")


def _ratios(axis, found: Sequence[tuple[Row, float]], title: str) -> None:
    axis.axhspan(0.75, 1.25, color="#f2f2f2")
    axis.axhline(1, color=PUBLISHED_DARK, linewidth=0.8)
    for source, colour in COLOURS.items():
        mine = [(i, ratio, row) for i, (row, ratio) in enumerate(found) if row.point.source == source]
        if mine:
            edges = [colour if row.right else VERMILION for _, _, row in mine]
            axis.scatter([i for i, _, _ in mine], [ratio for _, ratio, _ in mine], s=22, color=colour,
                         edgecolors=edges, linewidths=1.4, label=sources()[source]["name"])
    axis.set_title(title)
    axis.set_ylabel("predicted / measured")
    axis.set_xticks([])
    axis.set_ylim(bottom=0)
    if found:
        axis.legend(fontsize=8)
