"""Every published claim of a paper as rows to judge: produced, waiting or context. Nothing is left out."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from common.claims.published import Facts, Published, Value, unit_of, words_of
from common.claims.schema import Claim, Paper, Quantity, Waits
from common.claims.tolerance import Reading, Rounding

GROUP = re.compile(r"(Table|Figure) \d+|(Equation|Appendix|Section|Sections) [\d.A-Z]+|Abstract")


def group_of(where: str) -> str:
    """The table or figure that a claim is scored in; else its equation, appendix or section."""
    found = [match.group(0).replace("Sections", "Section") for match in GROUP.finditer(where)]
    tables = [name for name in found if name.startswith(("Table", "Figure"))]
    return (tables or found or [where])[0]


def claims_of(paper: Paper, facts: Facts) -> tuple[Claim, ...]:
    """All rows of the paper, in the order of published.toml.

    Each number of each published claim is produced, waiting or context, the more specific statement
    winning. Raises ValueError for a number that is none of these, for one that is two of equal rank, for
    an id declared twice and for a pattern that matches nothing.
    """
    declared = _declared(paper, facts)
    claims: list[Claim] = []
    used: set[str] = set()
    missing: list[str] = []
    for entry in facts:
        mine = [item for item in declared if item[0].source == entry.id]
        claims += [_resolve(quantity, function, entry, facts) for quantity, function in mine]
        covered = {key for quantity, _ in mine for key in (quantity.key, *quantity.covers)}
        left = [key for key in entry.numbers() if key not in covered]
        if mine and not left:
            continue
        rest = _rest(paper, entry, left, whole=not mine, used=used)
        claims += [claim for claim in rest if isinstance(claim, Claim)]
        missing += [name for name in rest if isinstance(name, str)]
    if missing:
        raise ValueError(
            f"{paper.published}: no function produces {', '.join(missing)}, and they are neither in the "
            f"waits nor in the context of papers/{paper.name}/reproduce.py"
        )
    for pattern in (*paper.context, *(item for wait in paper.waits for item in wait.patterns)):
        if pattern not in used:
            raise ValueError(f"{paper.name}: pattern {pattern!r} matches no claim left to wait or to show")
    return tuple(claims)


def _declared(paper: Paper, facts: Facts) -> list[tuple[Quantity, str]]:
    ids = {entry.id for entry in facts}
    declared: dict[str, tuple[Quantity, str]] = {}
    for producer in paper.producers:
        for quantity in producer.quantities:
            if quantity.source not in ids:
                raise ValueError(f"{producer.name}: {paper.published} has no claim {quantity.source!r}")
            if quantity.id in declared:
                raise ValueError(f"{quantity.id} is declared twice, the second time by {producer.name}")
            stray = set(quantity.covers) - set(facts[quantity.source].values)
            if stray:
                raise ValueError(f"{quantity.id} covers {sorted(stray)[0]!r}, which is no value of the claim")
            declared[quantity.id] = (quantity, producer.name)
    return list(declared.values())


def _resolve(quantity: Quantity, function: str, entry: Published, facts: Facts) -> Claim:
    if quantity.published is not None:
        value: Value = quantity.published(facts)
    else:
        value = entry.value(quantity.key)
    tolerance = quantity.tolerance
    if isinstance(tolerance, Reading | Rounding):
        try:
            tolerance = tolerance.resolve(value, entry.read_error)
        except ValueError as error:
            raise ValueError(f"{quantity.id}: {error}") from None
    return _claim(
        entry,
        key=quantity.key,
        kind=quantity.kind,
        published=value,
        unit=quantity.unit,
        group=quantity.group,
        text=quantity.text,
        tolerance=tolerance,
        function=function,
        headline=quantity.headline,
    )


def _rest(
    paper: Paper, entry: Published, left: Sequence[str], whole: bool, used: set[str]
) -> list[Claim | str]:
    """Rows of what no function produces: waiting per number, context per claim; a bare id if neither."""
    rows: list[Claim | str] = []
    if whole and not any(_states(paper, f"{entry.id}/{key}", used) for key in left):
        state = _states(paper, entry.id, used)
        if state is None:
            return [entry.id]
        if state == "context":
            return [_claim(entry, key="", kind="context", published=_summary(entry))]
        if not left:
            return [_claim(entry, key="", kind=state.kind, published=_summary(entry), waits=state.reason)]
    for key in left:
        state = _states(paper, f"{entry.id}/{key}", used) or _states(paper, entry.id, used)
        value = entry.numbers()[key]
        if state is None:
            rows.append(f"{entry.id}/{key}")
        elif state == "context":
            rows.append(_claim(entry, key=key, kind="context", published=value))
        else:
            rows.append(_claim(entry, key=key, kind=state.kind, published=value, waits=state.reason))
    return rows


def _states(paper: Paper, name: str, used: set[str]) -> "Waits | str | None":
    """What is said of a claim or of one number of it, at exactly this level."""
    found: list[Waits | str] = []
    for pattern in paper.context:
        if _matches(name, pattern):
            used.add(pattern)
            found.append("context")
    for wait in paper.waits:
        for pattern in wait.patterns:
            if _matches(name, pattern):
                used.add(pattern)
                found.append(wait)
    if any(item != found[0] for item in found):
        raise ValueError(f"{paper.name}: waits and context make two differing statements of {name}")
    return found[0] if found else None


def _matches(name: str, pattern: str) -> bool:
    return ("/" in name) == ("/" in pattern) and fnmatchcase(name, pattern)


def _summary(entry: Published) -> str:
    """A claim in a line: its formula, or its values by name."""
    return entry.formula or "; ".join(
        f"{key} = {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in entry.values.items()
    )


def _claim(
    entry: Published,
    *,
    key: str,
    kind: str,
    published: Value,
    unit: str | None = None,
    group: str = "",
    text: str = "",
    **rest: object,
) -> Claim:
    return Claim(
        id=f"{entry.id}/{key}" if key else entry.id,
        source=entry.id,
        where=entry.where,
        group=group or group_of(entry.where),
        what=entry.what,
        text=text or words_of(key),
        kind=kind,
        published=published,
        unit=unit_of(key) if unit is None else unit,
        confidence=entry.confidence_of(key),
        formula=entry.formula,
        note=entry.note,
        **rest,  # type: ignore[arg-type]
    )
