"""Rows on the terminal: one table for each table or figure of a paper, published beside ours."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from common.claims.format import SHORT, align, by_group, cells
from common.claims.judge import Row
from common.claims.published import Facts
from common.claims.run import scores
from common.claims.schema import Paper

STYLES = {
    "met": "green",
    "missed": "bold red",
    "paper-inconsistent": "magenta",
    "unverified": "yellow",
    "waiting": "dim",
    "context": "dim",
}


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal, 120 columns where there is none."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=120)


def score_text(counts: dict[str, int]) -> str:
    """ "12 met, 1 missed" in the order of the verdicts."""
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES if verdict in counts)


def print_paper(out: Console, facts: Facts, rows: Sequence[Row]) -> None:
    """The paper's name and all given rows, by table and figure, each with its score."""
    out.rule(f"[bold]{escape(facts.title)}[/] (arXiv {facts.arxiv})", align="left")
    counts = scores(rows)
    for group, members in by_group([row for row in rows if row.verdict != "context"]).items():
        out.print()
        out.print(f"[bold]{escape(group)}[/]: {score_text(counts[group])}")
        out.print(_table(members))
        for line in _remarks(members):
            out.print(Padding(line, (0, 0, 0, 2)))
    context = [row for row in rows if row.verdict == "context"]
    if context:
        out.print()
        out.print("[bold]Definitions and set-up[/], shown and not scored")
        out.print(_context_table(context))
    out.print()


def _context_table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for row in rows:
        name = f"{row.claim.what}: {row.claim.text}" if row.claim.text else row.claim.what
        table.add_row(escape(f"  {row.claim.where}: {name}"), escape(cells(row, SHORT).published))
    return table


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", ratio=3, min_width=24)
    for name in ("published", "ours", "unit", "error"):
        table.add_column(name, justify="left" if name == "unit" else "right", overflow="fold")
    for name in ("verdict", "kind", "run"):
        table.add_column(name, no_wrap=True)
    texts = [cells(row, SHORT) for row in rows]
    published = align([item.published for item in texts])
    ours = align([item.ours for item in texts])
    lines = iter(zip(rows, texts, published, ours, strict=True))
    for what, members in groupby(lines, key=lambda line: line[0].claim.what):
        listed = list(members)
        table.add_row(f"[italic]{escape(what)}[/]")
        for row, item, theirs, mine in listed:
            style = STYLES[row.verdict]
            table.add_row(
                *map(escape, (f"  {item.text}", theirs, mine, item.unit, item.error)),
                f"[{style}]{row.verdict}[/]",
                item.kind,
                item.run,
            )
    return table


def _remarks(rows: Iterable[Row]) -> list[str]:
    """Causes below a table: one line each, claims that wait for the same thing together."""
    lines = []
    waiting: dict[str, int] = {}
    for row in rows:
        if row.verdict == "waiting":
            waiting[row.cause] = waiting.get(row.cause, 0) + 1
        elif row.cause and row.verdict != "unverified":
            style = STYLES[row.verdict]
            lines.append(f"[{style}]{row.verdict}[/] {escape(row.claim.id)}: {escape(row.cause)}")
    return lines + [f"[dim]{count} waiting: {escape(reason)}[/]" for reason, count in waiting.items()]


def as_json(papers: Iterable[tuple[Paper, Sequence[Row]]]) -> dict[str, Any]:
    """The listing for machines: {"claims": [...]}, numbers finite, what is not there null."""
    return {"claims": [_json_row(paper, row) for paper, rows in papers for row in rows]}


def _json_row(paper: Paper, row: Row) -> dict[str, Any]:
    claim, result = row.claim, row.result
    origin = result.origin if result else None
    return {
        "paper": paper.name,
        "id": claim.id,
        "where": claim.where,
        "kind": claim.kind,
        "published": _json_value(claim.published),
        "ours": _json_value(result.ours) if result else None,
        "unit": claim.unit,
        "error": row.error,
        "verdict": row.verdict,
        "cause": row.cause or None,
        "origin": {**vars(origin), "versions": dict(origin.versions)} if origin else None,
    }


def _json_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
