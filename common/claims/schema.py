"""What a paper's `reproduce.py` is made of, and what it hands back.

A `Quantity` is one number of a published claim that we judge; `produces` ties quantities to the function
that yields a `Result` for each; a `Paper` collects those functions, what is still waited for and why, what
is only context, and the figures. Resolved against `published.toml` a quantity becomes a `Claim`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.claims.published import Facts, Number, Value
from common.claims.tolerance import Reading, Rounding, Spread, Tolerance, intervals, numbers

if TYPE_CHECKING:
    from common.claims.judge import Row

SCORED = {
    "exact": "from a trace of the real code at the published size",
    "measured": "a real run at reduced scale: the direction, ratio or order that the paper claims",
    "predicted": "the predictor's value, with what was fitted",
    "one-gpu": "released weights evaluated; needs a GPU and a download",
    "cluster": "needs hardware or data not here; the smaller property tested in its place is named",
    "derived": "the paper's own numbers against each other",
}
KINDS = {**SCORED, "context": "definitions and set-up: shown, never scored"}


@dataclass(frozen=True)
class Quantity:
    """One number (or list, or text) of the published claim `source`.

    `key` names it in the claim's values. A value that is not there as such, such as a formula at a published
    size, is computed by `published(facts)`; `key` then only names it, and `covers` lists the keys in values
    that it accounts for. The id is "source/key". `unit` defaults to the one in the key's name, `group` (the
    table or figure it is scored in) to the one in the claim's `where`, `text` to the key. `headline` puts it
    first where one claim stands for its kind.
    """

    source: str
    key: str
    kind: str
    tolerance: Tolerance | Reading | Rounding
    published: Callable[[Facts], Value] | None = None
    covers: tuple[str, ...] = ()
    unit: str | None = None
    group: str = ""
    text: str = ""
    headline: bool = False

    def __post_init__(self) -> None:
        if self.kind not in SCORED:
            raise ValueError(f"{self.id}: kind {self.kind!r} is not one of {', '.join(SCORED)}")
        if not self.key:
            raise ValueError(f"{self.source}: a quantity needs a key, the name of what it is")

    @property
    def id(self) -> str:
        return f"{self.source}/{self.key}"


@dataclass(frozen=True)
class Claim:
    """What is judged, resolved against published.toml; `waits` says what it waits for."""

    id: str
    source: str
    where: str
    group: str
    what: str
    text: str
    kind: str
    published: Value
    unit: str
    confidence: str
    formula: str = ""
    note: str = ""
    tolerance: Tolerance | None = None
    function: str = ""
    waits: str = ""
    headline: bool = False


@dataclass(frozen=True)
class Contradiction:
    """What the paper itself gives elsewhere for the same quantity, as a number in the claim's unit."""

    where: str
    value: Value
    what: str


@dataclass(frozen=True)
class Origin:
    """Where a result comes from; `run` is "now" (this command) or "stored" (an earlier one)."""

    command: str
    commit: str
    machine: str
    date: str
    versions: Mapping[str, str]
    run: str = "stored"


@dataclass(frozen=True)
class Result:
    """Our value of one claim.

    `ours` has the shape of the published value. `spread` is an interval (low, high) for each number, over
    `seeds` or repetitions; `detail` says what it is. `cause` says why ours differs and is shown, and
    demanded, only when the verdict is a miss.
    """

    claim: str
    ours: Value
    spread: Spread = None
    detail: str = ""
    cause: str = ""
    contradiction: Contradiction | None = None
    seeds: tuple[int, ...] = ()
    origin: Origin | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ours", _plain(self.claim, "ours", self.ours))
        if self.contradiction is not None:
            other = _plain(self.claim, "the contradiction", self.contradiction.value)
            object.__setattr__(self.contradiction, "value", other)
        if self.spread is not None:
            object.__setattr__(self, "spread", _plain_spread(self.claim, self.spread))
            for value, (low, high) in zip(numbers(self.ours), intervals(self.ours, self.spread), strict=True):
                if not low <= value <= high:
                    raise ValueError(f"claim {self.claim}: {value} lies outside its spread {low} to {high}")


def _plain(claim: str, name: str, value: Any) -> Value:
    """Python numbers in place of those of numpy and the like; ValueError if not finite, or not a value."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return tuple(_number(claim, name, item) for item in value)
    return _number(claim, name, value)


def _plain_spread(claim: str, spread: Any) -> Spread:
    def pair(item: Any) -> tuple[float, float]:
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise ValueError(f"claim {claim}: a spread is a pair (low, high), not {item!r}")
        return (float(_number(claim, "the spread", item[0])), float(_number(claim, "the spread", item[1])))

    if isinstance(spread, list | tuple) and spread and isinstance(spread[0], list | tuple):
        return tuple(pair(item) for item in spread)
    return pair(spread)


def _number(claim: str, name: str, value: Any) -> Number:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"claim {claim}: {name} is {value!r}, not a number, a list of numbers or a text")
    if not math.isfinite(value):
        raise ValueError(f"claim {claim}: {name} is {value}, not a finite number")
    return int(value) if isinstance(value, Integral) else float(value)


@dataclass(frozen=True)
class Ask:
    """What a producer is asked for: the paper's facts, the ids wanted, and whether at full length."""

    facts: Facts
    wanted: frozenset[str]
    full: bool = False

    def wants(self, *patterns: str) -> bool:
        """True if a wanted id matches one of the patterns: lets a producer leave out a costly trace."""
        return any(fnmatchcase(id, pattern) for id in self.wanted for pattern in patterns)


@dataclass(frozen=True)
class Producer:
    """A function that yields the results of several quantities, since one trace serves many.

    `minutes` on a 2-core machine; one that is `full` runs only when it is named or with --full.
    """

    function: Callable[[Ask], Iterable[Result]]
    quantities: tuple[Quantity, ...]
    minutes: float
    full: bool

    @property
    def name(self) -> str:
        return self.function.__name__

    def __call__(self, ask: Ask) -> Iterable[Result]:
        return self.function(ask)


def produces(
    *quantities: Quantity, minutes: float, full: bool = False
) -> Callable[[Callable[[Ask], Iterable[Result]]], Producer]:
    """Decorator: this function yields a Result for each of these quantities."""
    if not quantities:
        raise ValueError("produces() needs at least one Quantity")
    return lambda function: Producer(function, quantities, minutes, full)


@dataclass(frozen=True)
class Waits:
    """Published claims that nothing produces yet: which (ids, "id/key", or globs), of what kind, and why."""

    patterns: tuple[str, ...]
    kind: str
    reason: str

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str) or not self.patterns or not self.reason:
            given = f"{self.patterns!r}, {self.reason!r}"
            raise ValueError(f"Waits needs a tuple of patterns and a reason, not {given}")
        if self.kind not in SCORED:
            raise ValueError(f"Waits {self.patterns}: kind {self.kind!r} is not one of {', '.join(SCORED)}")


@dataclass(frozen=True)
class Figure:
    """A figure of the report: `draw(path, rows)` writes an SVG from the rows of `claims` by id, without claims from what the
    paper has stored."""

    name: str
    caption: str
    claims: tuple[str, ...]
    draw: Callable[[Path, "Mapping[str, Row]"], None]


@dataclass(frozen=True)
class Paper:
    """One paper: its folder (with published.toml and results/) and who produces what.

    `blocks`: further blocks of its README by name, each made from the paper's rows.
    """

    folder: Path
    producers: tuple[Producer, ...] = ()
    waits: tuple[Waits, ...] = ()
    context: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = field(default=())
    blocks: Mapping[str, Callable[[Sequence["Row"]], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen = [producer.name for producer in self.producers]
        if len(set(seen)) != len(seen):
            raise ValueError(f"{self.folder}: two producers share a name: {', '.join(sorted(seen))}")

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def published(self) -> Path:
        return self.folder / "published.toml"

    @property
    def results(self) -> Path:
        return self.folder / "results"
