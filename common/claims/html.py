"""The report: one self-contained page, published beside ours, misses and contradictions first."""

import base64
import re
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from html import escape
from itertools import groupby
from pathlib import Path

from common.claims.format import NUMBER, align, by_group, cells, number, value_text
from common.claims.judge import VERDICTS, Row
from common.claims.published import Facts, load
from common.claims.render import score_text
from common.claims.run import scores
from common.claims.schema import KINDS, Figure, Origin, Paper
from common.claims.store import write_text
from common.claims.tolerance import intervals

FINDINGS = ("missed", "paper-inconsistent")
NUMERIC = ("published", "ours", "error, %")
STYLE = Path(__file__).with_name("page.css")


def write_page(path: Path, papers: Sequence[tuple[Paper, Sequence[Row]]], first: str = "") -> list[str]:
    """Write the page; returns one message per figure that could not be drawn. first: a section before the papers."""
    failures: list[str] = []
    sections = [_section(paper, load(paper.published), rows, failures) for paper, rows in papers]
    links = "".join(f'<a href="#{paper.name}">{paper.name.replace("_", " ")}</a>' for paper, _ in papers)
    write_text(
        path,
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>Megaline: published beside ours</title>\n"
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>"
        "</head>\n<body><main>\n<h1>Megaline</h1>\n"
        "<p>What the papers state, and what this project’s own code gives for it. Each verdict is computed "
        "from the two numbers and a stated tolerance.</p>\n"
        f"<nav>{links}</nav>\n{first}{''.join(sections)}{_legend()}</main></body></html>\n",
    )
    return failures


def _section(paper: Paper, facts: Facts, rows: Sequence[Row], failures: list[str]) -> str:
    groups = by_group(rows)
    parts = [
        f'<section id="{paper.name}">\n<h2>{escape(facts.title)}</h2>\n',
        f'<p class="meta">arXiv {escape(facts.arxiv)}; values read from {escape(facts.read_from)}</p>\n',
        _scores(rows),
        _findings(rows),
        *(_figure(figure, rows, failures) for figure in paper.figures),
    ]
    produced = {group: members for group, members in groups.items() if any(row.result for row in members)}
    for group, members in produced.items():
        scored = [row for row in members if row.verdict != "context"]
        parts.append(f"<h3>{escape(group)}</h3>\n{_table(scored)}")
    waiting = [row for group, members in groups.items() if group not in produced for row in members]
    parts.append(_folded("Waiting", [row for row in waiting if row.verdict == "waiting"]))
    parts.append(_folded("Definitions and set-up", [row for row in rows if row.verdict == "context"]))
    return "".join(parts) + "</section>\n"


def _scores(rows: Sequence[Row]) -> str:
    counts = scores(rows)
    largest = max((sum(count.values()) for count in counts.values()), default=1)
    lines = []
    for group in by_group(rows):
        if group in counts:
            share = 100 * sum(counts[group].values()) / largest
            segments = "".join(
                f'<i class="{verdict}" style="flex:{counts[group][verdict]}"></i>'
                for verdict in VERDICTS
                if verdict in counts[group]
            )
            lines.append(
                f'<tr><td>{escape(group)}</td><td><div class="bar" style="width:{share:.1f}%">{segments}'
                "</div></td>"
                f"<td>{score_text(counts[group])}</td></tr>\n"
            )
    return f'<table class="scores">\n{"".join(lines)}</table>\n'


def _findings(rows: Sequence[Row]) -> str:
    parts = ["<h3>Misses and contradictions</h3>\n"]
    for verdict in FINDINGS:
        for row in (row for row in rows if row.verdict == verdict):
            item = cells(row)
            unit = f" {item.unit}" if item.unit else ""
            error = f", {item.error}" if item.error else ""
            values = f"Published {item.published}{unit}, ours {item.ours}{unit}{error}."
            parts.append(
                f'<div class="finding {verdict}"><span>{verdict}</span>'
                f"<p>{escape(row.claim.where)}: {escape(_name(row))}. {escape(values)}</p>"
                f'<p class="soft">{escape(row.cause)}</p></div>\n'
            )
    if len(parts) == 1:
        parts.append("<p>None among the claims that have a result.</p>\n")
    return "".join(parts)


def _name(row: Row) -> str:
    return f"{row.claim.what}, {row.claim.text}" if row.claim.text else row.claim.what


def _figure(figure: Figure, rows: Sequence[Row], failures: list[str]) -> str:
    wanted = {
        row.claim.id: row
        for row in rows
        if any(fnmatchcase(row.claim.id, pattern) for pattern in figure.claims)
    }
    lacking = sum(row.result is None for row in wanted.values())
    caption = escape(figure.caption)
    if lacking or (figure.claims and not wanted):
        state = f"Not drawn: {lacking} of its {len(wanted)} claims have no result yet."
        return f"<figure><figcaption>{caption} {state}</figcaption></figure>\n"
    try:
        return embedded(lambda path: figure.draw(path, wanted), figure.caption)
    except Exception:
        failures.append(f"figure {figure.name} failed:\n{traceback.format_exc()}")
        return f"<figure><figcaption>{caption} Could not be drawn.</figcaption></figure>\n"


def embedded(draw: Callable[[Path], None], caption: str) -> str:
    """A figure as part of the page; draw writes it as SVG to a path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        draw(path)
        data = base64.b64encode(path.read_bytes()).decode()
    caption = escape(caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _table(rows: Sequence[Row]) -> str:
    texts = [cells(row) for row in rows]
    published = _numbers([item.published for item in texts])
    ours = _numbers([item.ours for item in texts])
    errors = _numbers([item.error.removesuffix(" %") for item in texts])
    head = "".join(
        f"<th{' class=n' if name in NUMERIC else ''}>{name}</th>"
        for name in ("", "published", "ours", "unit", "error, %", "demanded", "verdict", "kind", "origin")
    )
    body = []
    lines = iter(zip(rows, texts, published, ours, errors, strict=True))
    for _, members in groupby(lines, key=lambda line: line[0].claim.source):
        listed = list(members)
        body.append(_heading(listed[0][0]))
        for row, item, theirs, mine, error in listed:
            demanded = row.claim.tolerance.text() if row.claim.tolerance else ""
            detail = f' title="{escape(_detail(row))}"' if _detail(row) else ""
            body.append(
                f"<tr><td{detail}>{escape(item.text)}</td>{theirs}{mine}<td>{escape(item.unit)}</td>{error}"
                f'<td class="soft">{escape(demanded)}</td><td class="{row.verdict}">{row.verdict}</td>'
                f"<td>{item.kind}</td><td>{_origin(row)}</td></tr>\n"
            )
    columns = "<col>" * 9
    return f'<table class="claims">{columns}\n<tr>{head}</tr>\n{"".join(body)}</table>\n'


def _heading(row: Row) -> str:
    formula = f"<code>{escape(row.claim.formula)}</code>" if row.claim.formula else ""
    note = f'<span class="note">{escape(row.claim.note)}</span>' if row.claim.note else ""
    return f'<tr class="what"><td colspan="9">{escape(row.claim.what)}{formula}{note}</td></tr>\n'


def _numbers(texts: Sequence[str]) -> list[str]:
    """Cells of a column with their decimal points below each other: padded by digits that are not seen."""
    found = []
    for text, padded in zip(texts, align(texts, digit="0", point="."), strict=True):
        pad = f'<span class="pad">{padded[len(text) :]}</span>' if len(padded) > len(text) else ""
        found.append(f'<td class="{_shape(text)}">{escape(text)}{pad}</td>')
    return found


def _detail(row: Row) -> str:
    """What ours is, and the spread of each of its numbers."""
    if row.result is None:
        return ""
    spread = row.result.spread
    found = () if spread is None else intervals(row.result.ours, spread)
    ranges = ", ".join(f"{number(low)} to {number(high)}" for low, high in found)
    return "; ".join(text for text in (row.result.detail, f"spread {ranges}" if ranges else "") if text)


def _shape(text: str) -> str:
    """The class of a cell: one number, a list of numbers, or words."""
    if re.fullmatch(NUMBER, text):
        return "n"
    return "words" if re.search("[a-zA-Z]{2}", text) else "list"


def _origin(row: Row) -> str:
    origin: Origin | None = row.result.origin if row.result else None
    if origin is None:
        return ""
    libraries = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    seeds = f"\nseeds {', '.join(map(str, row.result.seeds))}" if row.result and row.result.seeds else ""
    title = f"{origin.command}\ncommit {origin.commit}\n{origin.machine}\n{libraries}{seeds}"
    when = "run now" if origin.run == "now" else f"stored {origin.date}"
    return f'<span class="origin" title="{escape(title)}">{when}</span>'


def _folded(title: str, rows: Sequence[Row]) -> str:
    """Rows without a result, by table and figure, behind a line that opens."""
    if not rows:
        return ""
    body = []
    for group, members in by_group(rows).items():
        body.append(f'<tr class="group"><td colspan="4">{escape(group)}</td></tr>\n')
        for _, listed in groupby(members, key=lambda row: row.claim.source):
            body += _folded_claim(list(listed))
    head = '<tr><th></th><th class="n">published</th><th>unit</th><th></th></tr>'
    return (
        f"<details><summary>{title}: {len(rows)}</summary>\n"
        f'<table class="folded"><col><col><col><col>\n{head}\n{"".join(body)}</table></details>\n'
    )


def _folded_claim(rows: Sequence[Row]) -> list[str]:
    """One published claim: in one line if it is one value, else a line each below its name."""
    alone = len(rows) == 1
    lines = [] if alone else [f'<tr><td colspan="4">{escape(rows[0].claim.what)}</td></tr>\n']
    published = _numbers([value_text(row.claim.published) for row in rows])
    for row, theirs in zip(rows, published, strict=True):
        name = f"<td>{escape(_name(row))}" if alone else f'<td class="inner">{escape(row.claim.text)}'
        remark = escape(row.cause or row.claim.note)
        unit = escape(row.claim.unit)
        lines.append(f'<tr>{name}</td>{theirs}<td>{unit}</td><td class="soft">{remark}</td></tr>\n')
    return lines


def _legend() -> str:
    def terms(table: Mapping[str, str]) -> str:
        return "".join(
            f'<dt class="{name}">{name}</dt><dd>{escape(text)}</dd>' for name, text in table.items()
        )

    return (
        f"<footer><p>Kinds of claims</p><dl>{terms(KINDS)}</dl>"
        f"<p>Verdicts</p><dl>{terms(VERDICTS)}</dl></footer>\n"
    )
