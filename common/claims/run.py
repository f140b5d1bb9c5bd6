"""Run the producers of the wanted claims, and put their results beside the stored ones."""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from common.claims.judge import Row, judge
from common.claims.listing import claims_of
from common.claims.published import load
from common.claims.schema import Ask, Claim, Origin, Paper, Producer, Result
from common.claims.store import load_results, read, save_results


@dataclass
class Outcome:
    """What a run brought: fresh results by claim, and one message per producer or claim that failed."""

    results: dict[str, Result] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def select(claims: Sequence[Claim], patterns: Sequence[str]) -> tuple[Claim, ...]:
    """The claims that the patterns name: by id, published id, table or figure, function, or a glob of these.

    All claims without a pattern. ValueError with near matches for a pattern that names none.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = {claim.id for claim in claims if any(_names(name, pattern) for name in _handles(claim))}
        if not found:
            known = sorted({name for claim in claims for name in _handles(claim)})
            near = get_close_matches(pattern, known, n=4, cutoff=0.5)
            hint = f"near it: {', '.join(near)}" if near else "`python -m papers` lists all"
            raise ValueError(f"no claim is named {pattern!r}; {hint}")
        chosen |= found
    return tuple(claim for claim in claims if not patterns or claim.id in chosen)


def _handles(claim: Claim) -> tuple[str, ...]:
    return tuple(name for name in (claim.id, claim.source, claim.group, claim.function) if name)


def _names(name: str, pattern: str) -> bool:
    return fnmatchcase(name.casefold(), pattern.casefold())


def chosen_producers(paper: Paper, patterns: Sequence[str], full: bool) -> tuple[Producer, ...]:
    """The producers to run: all that the patterns name; without patterns all but the long, or all if full."""
    claims = select(claims_of(paper, load(paper.published)), patterns)
    functions = {claim.function for claim in claims}
    return tuple(
        producer
        for producer in paper.producers
        if producer.name in functions and (patterns or full or not producer.full)
    )


def run(
    paper: Paper,
    origin: Origin,
    patterns: Sequence[str] = (),
    full: bool = False,
    store: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run what is wanted; a producer that fails is reported and the others still run.

    A result that cannot be judged, such as a miss without a cause, is a failure and is not stored.
    """
    facts = load(paper.published)
    claims = {claim.id: claim for claim in select(claims_of(paper, facts), patterns)}
    for path in paper.results.glob("*.json"):
        read(path)
    outcome = Outcome()
    for producer in chosen_producers(paper, patterns, full):
        wanted = frozenset(item.id for item in producer.quantities if item.id in claims)
        progress(f"{producer.name}: {len(wanted)} claims, about {_duration(60 * producer.minutes)}")
        start = time.monotonic()
        try:
            fresh = collect(producer, Ask(facts, wanted, full), origin)
        except Exception:
            outcome.failures.append(f"{producer.name} failed:\n{traceback.format_exc()}")
            continue
        progress(f"{producer.name}: done in {_duration(time.monotonic() - start)}")
        good = [result for result in fresh if _judged(claims[result.claim], result, outcome)]
        outcome.results |= {result.claim: result for result in good}
        if store and good:
            progress(f"{producer.name}: stored in {save_results(paper, producer, good)}")
    return outcome


def collect(producer: Producer, ask: Ask, origin: Origin) -> list[Result]:
    """One result for each wanted id, with its origin; ValueError if one is missing, twice or not declared."""
    declared = {item.id for item in producer.quantities}
    results: dict[str, Result] = {}
    for result in producer(ask):
        if result.claim not in declared:
            raise ValueError(f"{producer.name} yields a result for {result.claim!r}, not declared by it")
        if result.claim in results:
            raise ValueError(f"{producer.name} yields two results for {result.claim!r}")
        results[result.claim] = replace(result, origin=result.origin or origin)
    missing = sorted(ask.wanted - results.keys())
    if missing:
        raise ValueError(f"{producer.name} yields no result for {', '.join(missing)}")
    return [result for id, result in results.items() if id in ask.wanted]


def _judged(claim: Claim, result: Result, outcome: Outcome) -> bool:
    try:
        judge(claim, result)
    except ValueError as error:
        outcome.failures.append(str(error))
        return False
    return True


def rows_of(paper: Paper, fresh: Mapping[str, Result] | None = None) -> tuple[Row, ...]:
    """Every row of the paper, judged: fresh results where there are, else the stored ones."""
    results = load_results(paper) | dict(fresh or {})
    return tuple(judge(claim, results.get(claim.id)) for claim in claims_of(paper, load(paper.published)))


def scores(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """For each table or figure, in order: how many of its scored claims stand at each verdict."""
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.claim.kind != "context":
            counts = table.setdefault(row.claim.group, {})
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return table


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
