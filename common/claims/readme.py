"""Blocks of README files that a command writes and a test keeps up to date.

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, each on a line of its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.claims.format import SHORT, by_group, cells, value_text
from common.claims.judge import VERDICTS, Row
from common.claims.run import scores
from common.claims.schema import SCORED, Paper

MARKER = re.compile(r"^<!-- (begin|end) (\S+) -->$", re.MULTILINE)


def fill(text: str, blocks: Mapping[str, Callable[[], str]], name: str) -> str:
    """`text` with each block between its markers made anew.

    Raises ValueError naming the file and the block: an unknown block, a marker without its partner, a block
    that stands twice, or one that is missing altogether.
    """
    known = ", ".join(blocks)
    marks = [(match.group(1), match.group(2), match) for match in MARKER.finditer(text)]
    filled, done = "", 0
    seen: list[str] = []
    for (_, begin_name, begin), (_, end_name, end) in zip(marks[::2], marks[1::2], strict=False):
        if (begin.group(1), end.group(1)) != ("begin", "end") or begin_name != end_name:
            raise ValueError(f"{name}: `{begin.group(0)}` is followed by `{end.group(0)}`")
        if begin_name not in blocks or begin_name in seen:
            what = "stands twice" if begin_name in seen else f"is unknown; known: {known}"
            raise ValueError(f"{name}: block {begin_name!r} {what}")
        seen.append(begin_name)
        filled += text[done : begin.end()] + "\n" + blocks[begin_name]().strip("\n") + "\n"
        done = end.start()
    if len(marks) % 2:
        raise ValueError(f"{name}: `{marks[-1][2].group(0)}` has no partner")
    missing = [block for block in blocks if block not in seen]
    if missing:
        raise ValueError(f"{name}: `<!-- begin {missing[0]} -->` and its end are missing")
    return filled + text[done:]


def stale(path: Path, blocks: Mapping[str, Callable[[], str]]) -> str | None:
    """The text that the file should have, or None if it has it already."""
    if not path.exists():
        raise ValueError(f"{path} is missing; it needs the blocks {', '.join(blocks)}")
    text = path.read_text(encoding="utf-8")
    filled = fill(text, blocks, str(path))
    return None if filled == text else filled


def samples(papers: Sequence[tuple[Paper, Sequence[Row]]]) -> str:
    """One row for every kind of claim and every verdict that occurs, misses and contradictions included."""
    chosen: dict[tuple[str, str], tuple[Paper, Row]] = {}
    for paper, rows in papers:
        for row in sorted(rows, key=lambda row: not row.claim.headline):
            chosen.setdefault((row.claim.kind, row.verdict), (paper, row))
    order = [(kind, verdict) for kind in SCORED for verdict in VERDICTS]
    lines = [
        "| claim | published | ours | unit | error | verdict | kind |",
        "| --- | ---: | ---: | --- | ---: | --- | --- |",
    ]
    for key in order:
        if key in chosen:
            paper, row = chosen[key]
            name = f"[{paper.name}](papers/{paper.name}/README.md), {row.claim.group}: {_name(row)}"
            lines.append(_line(row, name))
    return "\n".join(lines) + "\n\n" + "\n".join(_reasons([chosen[key][1] for key in order if key in chosen]))


def score_table(rows: Sequence[Row]) -> str:
    """A paper's score for each table, figure and section."""
    counts = scores(rows)
    seen = [verdict for verdict in VERDICTS if any(verdict in count for count in counts.values())]
    lines = ["| | " + " | ".join(seen) + " |", "| --- |" + " ---: |" * len(seen)]
    for group in by_group(rows):
        if group in counts:
            numbers = [str(counts[group].get(verdict, "")) for verdict in seen]
            lines.append(f"| {group} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def claim_table(rows: Sequence[Row]) -> str:
    """All rows of a paper that have a result, by table and figure, with the causes below."""
    parts = []
    for group, members in by_group([row for row in rows if row.result is not None]).items():
        lines = [f"**{group}**", "", "| | published | ours | unit | error | verdict | kind |"]
        lines.append("| --- | ---: | ---: | --- | ---: | --- | --- |")
        lines += [_line(row, _name(row)) for row in members]
        parts.append("\n".join([*lines, "", *_reasons(members)]).rstrip("\n"))
    return "\n\n".join(parts) or "No results are stored yet."


def contradiction_table(rows: Sequence[Row]) -> str:
    """The claims for which the paper has two values: what it states, what it gives elsewhere, ours."""
    lines = ["| where | claim | published | elsewhere | ours | unit | verdict |"]
    lines.append("| --- | --- | ---: | --- | ---: | --- | --- |")
    for row in (row for row in rows if row.result and row.result.contradiction):
        item, other = cells(row, SHORT), row.result.contradiction
        elsewhere = f"{value_text(other.value, SHORT)} ({other.where}: {other.what})"
        columns = (row.claim.where, _name(row), item.published, elsewhere, item.ours, item.unit, item.verdict)
        lines.append(_cells(columns))
    return "\n".join(lines) if len(lines) > 2 else "None among the claims that have a result."


def waiting_table(rows: Sequence[Row]) -> str:
    """What waits, by reason: how many numbers of which published claims."""
    reasons: dict[str, list[Row]] = {}
    for row in (row for row in rows if row.verdict == "waiting"):
        reasons.setdefault(row.cause, []).append(row)
    lines = ["| waits for | numbers | of |", "| --- | ---: | --- |"]
    for reason, members in reasons.items():
        sources = dict.fromkeys(f"`{row.claim.source}`" for row in members)
        lines.append(_cells((reason, str(len(members)), ", ".join(sources))))
    return "\n".join(lines) if reasons else "Nothing."


def produced_by(papers: Sequence[tuple[Paper, Sequence[Row]]]) -> str:
    """What each paper's reproduction runs now, what it shows from stored results, and what waits."""
    lines = ["| paper | runs now | stored, run with `--full` | claims waiting |"]
    lines.append("| --- | --- | --- | ---: |")
    for paper, rows in papers:
        short = [item.minutes for item in paper.producers if not item.full]
        now = (
            f"{len(short)} of {len(paper.producers)} functions, {sum(short):.1f} min" if short else "nothing"
        )
        full = [f"`{item.name}` ({item.minutes:g} min)" for item in paper.producers if item.full]
        stored = ", ".join(full) or "nothing"
        waiting = sum(row.verdict == "waiting" for row in rows)
        lines.append(f"| {paper.name} | {now} | {stored} | {waiting} |")
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row.claim.what}: {row.claim.text}" if row.claim.text else row.claim.what


def _line(row: Row, name: str) -> str:
    item = cells(row, SHORT)
    return _cells((name, item.published, item.ours, item.unit, item.error, item.verdict, item.kind))


def _cells(columns: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in columns) + " |"


def _reasons(rows: Sequence[Row]) -> list[str]:
    return [
        f"- {row.verdict}, `{row.claim.id}`: {row.cause}"
        for row in rows
        if row.cause and row.verdict in ("missed", "paper-inconsistent", "unverified", "waiting")
    ]
