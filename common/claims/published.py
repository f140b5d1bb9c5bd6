"""The published facts of one paper: `published.toml`, one `[[claim]]` each.

A fact says where it stands, what it states, and how sure we are of it: read in the paper, cross-checked by
arithmetic, or only recalled or quoted. What it states is `values` (named numbers and texts), a `formula`,
or both.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.claims.formula import evaluate

CONFIDENCES = ("read", "cross-checked", "quoted", "memory")
UNREAD = ("quoted", "memory")
"""The published value was not read in the paper: nothing is scored against it."""

UNITS = (
    ("tflops_per_gpu", "TFLOP/s per GPU"),
    ("tokens_per_s_per_gpu", "tokens/s per GPU"),
    ("gbit_per_s", "Gbit/s"),
    ("tokens_per_s", "tokens/s"),
    ("sequences_per_s", "sequences/s"),
    ("gb_per_s", "GB/s"),
    ("tb_per_s", "TB/s"),
    ("tflops", "TFLOP/s"),
    ("gib", "GiB"),
    ("mib", "MiB"),
    ("gb", "GB"),
    ("mb", "MB"),
    ("tb", "TB"),
    ("points", "points"),
    ("percent", "%"),
    ("pct", "%"),
    ("ms", "ms"),
    ("us", "µs"),
    ("s", "s"),
    ("days", "days"),
    ("billion", "billion"),
    ("trillion", "trillion"),
)

Number = int | float
Value = Number | str | tuple[Number, ...]


def unit_of(key: str) -> str:
    """The unit that the name of a value carries: `iteration_s_dp8` is in s."""
    return next((unit for token, unit in UNITS if re.search(rf"(^|_){token}(_|$)", key)), "")


def words_of(key: str) -> str:
    """The name of a value without its unit, in words: `iteration_s_dp8` is "iteration dp8".

    A name that begins with its unit keeps it: `tflops_per_gpu` is "tflops per gpu".
    """
    token = next((token for token, _ in UNITS if re.search(rf"(^|_){token}(_|$)", key)), "")
    words = re.sub(rf"_{token}(_|$)", "_", key, count=1) if token else key
    return words.strip("_").replace("_", " ")


def is_number(value: Any) -> bool:
    """True for an int or float that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Published:
    """One `[[claim]]` of published.toml."""

    id: str
    where: str
    what: str
    confidence: str
    values: Mapping[str, Any] = field(default_factory=dict)
    formula: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""
    note: str = ""
    read_method: str = ""
    read_error: float | None = None
    confidence_by_key: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def confidence_of(self, key: str) -> str:
        """How sure we are of one value; the whole claim's confidence unless the file says otherwise."""
        return self.confidence_by_key.get(key, self.confidence)

    def numbers(self) -> dict[str, Number | tuple[Number, ...]]:
        """The values that are numbers or lists of numbers, lists as tuples."""
        found: dict[str, Number | tuple[Number, ...]] = {}
        for key, value in self.values.items():
            if is_number(value):
                found[key] = value
            elif isinstance(value, list) and value and all(is_number(item) for item in value):
                found[key] = tuple(value)
        return found

    def value(self, key: str) -> Value:
        """The value named `key`, a list as a tuple; ValueError with the names that exist if there is none."""
        if key not in self.values:
            raise ValueError(f"{self.id} has no value {key!r}; it has {', '.join(self.values) or 'none'}")
        value = self.values[key]
        return tuple(value) if isinstance(value, list) else value

    def evaluate(self, **variables: float) -> float | bool:
        """The paper's own formula with these variables."""
        if not self.formula:
            raise ValueError(f"{self.id} has no formula")
        return evaluate(self.formula, variables)


@dataclass(frozen=True)
class Facts:
    """A whole published.toml: what paper it is and its claims in the order of the file."""

    path: Path
    slug: str
    title: str
    arxiv: str
    read_from: str
    entries: tuple[Published, ...]

    def __iter__(self) -> Iterator[Published]:
        return iter(self.entries)

    def __getitem__(self, id: str) -> Published:
        for entry in self.entries:
            if entry.id == id:
                return entry
        raise ValueError(f"{self.path} has no claim {id!r}")


PAPER_KEYS = ("slug", "title", "arxiv", "read_from")
TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,), "where": (str,), "what": (str,), "confidence": (str,), "formula": (str,), "check": (str,),
    "note": (str,), "read_method": (str,), "read_error": (float, int), "from": (str,),
    "values": (dict,), "config": (dict,), "confidence_by_key": (dict,),
}  # fmt: skip
REQUIRED = ("id", "where", "what", "confidence")


def load(path: Path) -> Facts:
    """Read and check one published.toml.

    Raises ValueError naming the file, the claim and the key: broken TOML, unknown, missing or mistyped
    keys, an id used twice, a value that is not a finite number, text, truth value or list of those.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    unknown = sorted(document.keys() - {"paper", "claim"})
    if unknown:
        raise ValueError(f"{path}: unknown table {unknown[0]!r}; a file has [paper] and [[claim]]")
    paper = document.get("paper")
    if not isinstance(paper, dict) or set(paper) != set(PAPER_KEYS):
        raise ValueError(f"{path}: [paper] needs exactly {', '.join(PAPER_KEYS)}")
    rows = document.get("claim")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: no [[claim]]")
    entries = tuple(_entry(path, number, row) for number, row in enumerate(rows, 1))
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise ValueError(f"{path}: claim {entry.id!r} stands twice; ids are unique within a paper")
        seen.add(entry.id)
    return Facts(path=path, entries=entries, **paper)


def _entry(path: Path, number: int, row: dict[str, Any]) -> Published:
    name = f"{path}: claim {row.get('id', f'number {number}')!r}"
    for key in REQUIRED:
        if not row.get(key):
            raise ValueError(f"{name}: {key!r} is missing")
    for key, value in row.items():
        if key not in TYPES:
            raise ValueError(f"{name}: unknown key {key!r}; known: {', '.join(TYPES)}")
        if not isinstance(value, TYPES[key]) or isinstance(value, bool):
            raise ValueError(f"{name}: {key!r} is {value!r}, not {TYPES[key][0].__name__}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", row["id"]):
        raise ValueError(f"{name}: an id is lower-case letters, digits, '-' and '.'")
    for confidence in (row["confidence"], *row.get("confidence_by_key", {}).values()):
        if confidence not in CONFIDENCES:
            raise ValueError(f"{name}: confidence {confidence!r} is not one of {', '.join(CONFIDENCES)}")
    stray = row.get("confidence_by_key", {}).keys() - row.get("values", {}).keys()
    if stray:
        raise ValueError(f"{name}: confidence_by_key names {sorted(stray)[0]!r}, which is no value of it")
    for table in ("values", "config"):
        for key, value in row.get(table, {}).items():
            if not _is_plain(value):
                raise ValueError(f"{name}: {table}.{key} is {value!r}; give finite numbers, texts or lists")
    return Published(**{"source" if key == "from" else key: value for key, value in row.items()})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(not isinstance(item, list) and _is_plain(item) for item in value)
    if is_number(value):
        return value == value and abs(value) != float("inf")
    return isinstance(value, str | bool)
