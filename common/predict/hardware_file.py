"""Files of hardware records: TOML in which every value stands beside its unit and its source.

    memory = { value = 80, unit = "GB", source = "NVIDIA A100 datasheet, GPU memory" }

`assumed = true` marks a value that no source gives; its source then gives the reasoning. A column of a table of
measurements has `values` in place of `value`, and the table its source. A string in place of a table names a part,
a file of the folder parts/; `like = "NAME"` starts from that part, and what follows replaces its values one by one.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.predict.units import FLAG, TEXT, to_si

WIDTH = 110


@dataclass(frozen=True)
class Source:
    """Where a value of a record comes from, in words; `assumed` if nobody states or measured it."""

    text: str
    assumed: bool = False


def read(path: Path, parts: Path) -> dict[str, Any]:
    """The document at `path` with its parts filled in. Raises ValueError for broken TOML and unknown parts."""
    return _filled(_load(path), parts, (path.name,))


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def _filled(table: dict[str, Any], parts: Path, within: tuple[str, ...]) -> dict[str, Any]:
    own = {key: _filled_value(key, value, parts, within) for key, value in table.items() if key != "like"}
    return _merged(_part(table["like"], parts, within), own) if "like" in table else own


def _filled_value(key: str, value: Any, parts: Path, within: tuple[str, ...]) -> Any:
    if isinstance(value, str) and key in PARTS:
        return _part(value, parts, within)
    if isinstance(value, dict) and not _is_value(value):
        return _filled(value, parts, within)
    if isinstance(value, list):
        return [_filled(item, parts, within) if isinstance(item, dict) else item for item in value]
    return value


PARTS = ("accelerator", "node", "link", "host")  # keys whose table a part may fill


def _part(name: object, parts: Path, within: tuple[str, ...]) -> dict[str, Any]:
    path = parts / f"{name}.toml"
    if not isinstance(name, str) or not path.is_file():
        known = ", ".join(sorted(item.stem for item in parts.glob("*.toml")))
        raise ValueError(f"{within[-1]} names the part {name!r}, which does not exist: use one of {known}")
    place = f"{parts.name}/{path.name}"
    if place in within:
        raise ValueError(f"{within[-1]} names {name!r}, which names it in turn: {' -> '.join((*within, place))}")
    return _filled(_load(path), parts, (*within, place))


def _is_value(table: dict[str, Any]) -> bool:
    return "value" in table or "values" in table


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`; tables are merged, values and lists of tables replaced."""
    found = dict(base)
    for key, value in over.items():
        old = base.get(key)
        tables = isinstance(old, dict) and isinstance(value, dict) and not _is_value(old)
        found[key] = _merged(old, value) if tables else value
    return found


class Table:
    """One table of a record, read key by key in SI; `done` refuses what was not read. Notes each value's source."""

    def __init__(self, values: Any, place: str, sources: dict[str, Source]) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{place} is {values!r}: it must be a table")
        self.place = place
        self._values, self._sources = values, sources
        self._left = set(values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def number(self, key: str, dimension: str) -> float:
        """A value in SI. Raises ValueError when it is missing, has no source or another unit."""
        entry = self._value(key)
        try:
            return to_si(entry["value"], entry.get("unit"), dimension)
        except ValueError as error:
            raise ValueError(f"{self._named(key)} {error}") from None

    def optional(self, key: str, dimension: str) -> float | None:
        return self.number(key, dimension) if key in self else None

    def whole(self, key: str) -> int:
        """A count of at least 1."""
        found = self.number(key, "count")
        if found != int(found) or found < 1:
            raise ValueError(f"{self._named(key)} is {found}: it must be a whole number of at least 1")
        return int(found)

    def flag(self, key: str) -> bool:
        return self._of_kind(key, FLAG, bool, "true or false")

    def text(self, key: str) -> str:
        return self._of_kind(key, TEXT, str, "text")

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """A value that lists pairs of positive whole numbers."""
        entry = self._value(key)
        pairs = entry["value"] if isinstance(entry["value"], list) else [None]
        if entry.get("unit") != "1" or any(not _is_pair(pair) for pair in pairs):
            raise ValueError(f'{self._named(key)} must list pairs of positive whole numbers, in unit "1"')
        return tuple((pair[0], pair[1]) for pair in pairs)

    def plain(self, key: str, kind: type, default: Any = None) -> Any:
        """What stands at `key` itself, such as a description or a column of sizes."""
        self._left.discard(key)
        found = self._values.get(key, default)
        if found is None or not isinstance(found, kind):
            raise ValueError(f"{self._named(key)} is {found!r}: it must be {kind.__name__}")
        return found

    def column(self, key: str, dimension: str, length: int) -> tuple[float, ...]:
        """A column of a table of measurements, in SI."""
        entry = self.plain(key, dict)
        values = entry.get("values")
        if not isinstance(values, list) or len(values) != length:
            raise ValueError(f"{self._named(key)} must have {length} values, one for each size")
        try:
            return tuple(to_si(value, entry.get("unit"), dimension) for value in values)
        except ValueError as error:
            raise ValueError(f"{self._named(key)} {error}") from None

    def table(self, key: str) -> "Table":
        self._left.discard(key)
        return Table(self._values.get(key), self._named(key), self._sources)

    def tables(self, key: str) -> Iterator["Table"]:
        """A list of tables, none if it is missing."""
        self._left.discard(key)
        for index, values in enumerate(self._values.get(key, [])):
            yield Table(values, f"{self._named(key)}[{index}]", self._sources)

    def keys(self) -> list[str]:
        return list(self._values)

    def done(self) -> None:
        """Raises ValueError naming the keys that nothing has read."""
        if self._left:
            raise ValueError(f"{self.place} has unknown keys: {', '.join(sorted(self._left))}")

    def _named(self, key: str) -> str:
        return f"{self.place}{' ' if self.place.endswith(':') else '.'}{key}"

    def _value(self, key: str) -> dict[str, Any]:
        if key not in self:
            raise ValueError(f"{self._named(key)} is missing")
        entry = self.plain(key, dict)
        unknown = set(entry) - {"value", "unit", "source", "assumed"}
        if "value" not in entry or unknown:
            raise ValueError(f"{self._named(key)} must be {{ value, unit, source }}, with assumed = true if it is")
        source = entry.get("source")
        if not isinstance(source, str) or not source.strip():
            raise ValueError(f"{self._named(key)} has no source: say in words where the value comes from")
        self._sources[self._named(key).split(": ", 1)[-1]] = Source(source, bool(entry.get("assumed", False)))
        return entry

    def _of_kind(self, key: str, unit: str, kind: type, meaning: str) -> Any:
        entry = self._value(key)
        if entry.get("unit") != unit or not isinstance(entry["value"], kind):
            raise ValueError(f"{self._named(key)} must be {meaning}, in unit {unit!r}")
        return entry["value"]


def _is_pair(pair: Any) -> bool:
    return (isinstance(pair, list) and len(pair) == 2
            and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair))


def dumps(document: dict[str, Any]) -> str:
    """TOML text of a document of records: tables of values, lists of tables, text at the top."""
    return "\n".join(_lines(document, "")).lstrip("\n") + "\n"


def _lines(table: dict[str, Any], name: str) -> Iterator[str]:
    nested = {key: value for key, value in table.items() if _is_nested(value)}
    for key, value in table.items():
        if key not in nested:
            yield f"{key} = {_inline(value)}"
    for key, value in nested.items():
        full = f"{name}.{key}" if name else key
        heads = [(f"[{full}]", value)] if isinstance(value, dict) else [(f"[[{full}]]", item) for item in value]
        for head, content in heads:
            yield from ("", head)
            yield from _lines(content, full)


def _is_nested(value: Any) -> bool:
    if isinstance(value, dict):
        return not _is_value(value)
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return _wrapped([_inline(item) for item in value])
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _wrapped(items: list[str]) -> str:
    """An array on one line, or on several of at most WIDTH."""
    one = ", ".join(items)
    if len(one) < WIDTH - 40:
        return f"[{one}]"
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(["[", *lines, line, "]"])
