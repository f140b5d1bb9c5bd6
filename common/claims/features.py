"""Where each feature has actually run: a tracked file of runs as a table of features against places."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path


@dataclass(frozen=True)
class FeatureRun:
    """One run of a feature at a place, that ended well: when, at which commit, by which command."""

    feature: str
    place: str
    date: date
    commit: str
    command: str


@dataclass(frozen=True)
class Features:
    """The places, the features and the runs, in the order of the file."""

    places: tuple[str, ...]
    names: tuple[str, ...]
    runs: tuple[FeatureRun, ...]

    def latest(self, feature: str, place: str) -> FeatureRun | None:
        """The latest run of a feature at a place; None if it never ran there."""
        found = [run for run in self.runs if (run.feature, run.place) == (feature, place)]
        return max(found, key=lambda run: run.date, default=None)

    def markdown(self) -> str:
        """The table: date and commit of the latest run, or "never"."""
        lines = ["| feature | " + " | ".join(self.places) + " |", "| --- |" + " --- |" * len(self.places)]
        for name in self.names:
            runs = [self.latest(name, place) for place in self.places]
            texts = [f"{run.date.isoformat()} `{run.commit[:7]}`" if run else "never" for run in runs]
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
        return "\n".join(lines)


def load_features(path: Path) -> Features:
    """Read and check the file; ValueError naming the file and the run for what does not fit."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if document.keys() - {"run"} != {"places", "features"}:
        raise ValueError(f"{path} needs places, features and [[run]], not {', '.join(document)}")
    places, names = tuple(document["places"]), tuple(document["features"])
    return Features(places, names, tuple(_runs(path, document.get("run", []), places, names)))


def _runs(
    path: Path, rows: list[dict], places: tuple[str, ...], names: tuple[str, ...]
) -> Iterator[FeatureRun]:
    for number, row in enumerate(rows, 1):
        where = f"{path}: run {number}"
        if row.keys() != set(FeatureRun.__dataclass_fields__):
            raise ValueError(f"{where} needs exactly {', '.join(FeatureRun.__dataclass_fields__)}")
        if row["feature"] not in names or row["place"] not in places:
            raise ValueError(f"{where}: {row['feature']!r} at {row['place']!r} is not in features and places")
        if type(row["date"]) is not date:
            raise ValueError(f"{where}: date is {row['date']!r}; write it as 2026-01-31, without quotes")
        if not re.fullmatch(r"[0-9a-f]{7,40}", str(row["commit"])):
            raise ValueError(f"{where}: commit is {row['commit']!r}, not 7 to 40 hexadecimal digits")
        yield FeatureRun(**row)
