"""Results on disk: `papers/<name>/results/<function>.json`, each row with its origin."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from common.checkpoint.files import write_text
from common.claims.schema import Contradiction, Origin, Paper, Producer, Result


def load_results(paper: Paper) -> dict[str, Result]:
    """All stored results of the paper by claim id.

    Raises ValueError naming the file for JSON that is broken or of another shape, and for a result that no
    producer of that name declares any more.
    """
    declared = {producer.name: {item.id for item in producer.quantities} for producer in paper.producers}
    results: dict[str, Result] = {}
    for path in sorted(paper.results.glob("*.json")):
        if path.stem not in declared:
            raise ValueError(f"{path}: {paper.name} has no producer {path.stem!r}; remove the file")
        for result in read(path):
            if result.claim not in declared[path.stem]:
                raise ValueError(
                    f"{path}: {path.stem} no longer declares {result.claim!r}; run "
                    f"`python -m papers.{paper.name}.reproduce '{path.stem}' --store`"
                )
            results[result.claim] = result
    return results


def save_results(paper: Paper, producer: Producer, fresh: Iterable[Result]) -> Path:
    """Write fresh results over the stored ones of this producer, keep its others, drop undeclared ones."""
    path = paper.results / f"{producer.name}.json"
    kept = {result.claim: result for result in read(path)} if path.exists() else {}
    kept |= {result.claim: result for result in fresh}
    write(path, [kept[item.id] for item in producer.quantities if item.id in kept])
    return path


def read(path: Path) -> list[Result]:
    """The results in one file, marked as stored."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        origins = [Origin(**{**item, "run": "stored"}) for item in document["origins"]]
        return [_result(row, origins) for row in document["results"]]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a file of results ({reason}); remove it") from None


def write(path: Path, results: Iterable[Result]) -> None:
    """Write results to one file, all at once or not at all."""
    origins: list[Origin] = []
    rows = []
    for result in results:
        if result.origin is None:
            raise ValueError(f"{result.claim} has no origin and cannot be stored")
        stored = replace(result.origin, run="stored")
        if stored not in origins:
            origins.append(stored)
        rows.append({**asdict(result), "origin": origins.index(stored)})
    listed = [{key: value for key, value in asdict(item).items() if key != "run"} for item in origins]
    write_text(path, json.dumps({"origins": listed, "results": rows}, indent=1, allow_nan=False) + "\n")


def _result(row: Mapping[str, Any], origins: list[Origin]) -> Result:
    other = row["contradiction"]
    return Result(
        **{
            **row,
            "contradiction": Contradiction(**other) if other else None,
            "seeds": tuple(row["seeds"]),
            "origin": origins[row["origin"]],
        }
    )
