"""What others measured on other systems, beside what is predicted; none of it was used to fit anything.

    python -m common.predict.third_party
    python -m common.predict.third_party BL-55 LF-042 --json
    python -m common.predict.third_party --markdown --draw third_party.svg

Throughput of one configuration has moved by tens of percent between software releases: judge by the
distribution.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, NoReturn

import torch
import tyro
from rich.progress import track

from common.checkpoint.files import write_text
from common.claims.command import finish
from common.claims.origin import origin_of
from common.claims.render import console
from common.claims.target import PICTURES, check_folder, check_target
from common.predict import fully_sharded, iteration
from common.predict import third_party_software as software
from common.predict.hardware import cluster
from common.predict.machine import Cluster
from common.predict.price import Costs
from common.predict.third_party_page import chart, html, markdown, terminal
from common.predict.third_party_points import Point, points
from common.training.recipe import Recipe

PROGRAM = "python -m common.predict.third_party"
STORED = Path(__file__).parent / "results" / "third_party.json"
CLOSE = 0.25  # an error that one release of the software makes, too


@dataclass(frozen=True)
class Row:
    """A point with what is predicted for it; None for both where the project cannot express it. value: in the
    point's unit. needed: bytes of the fullest rank; fits: whether they are there. time: seconds of an
    iteration by what takes them."""

    point: Point
    value: float | None = None
    needed: float | None = None
    fits: bool | None = None
    time: dict[str, float] | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return self.value / self.point.value - 1 if self.value and self.point.value else None

    @property
    def right(self) -> bool | None:
        """Whether it is known to fit, or not to."""
        return None if self.fits is None else self.fits == self.point.fits

    def as_json(self) -> dict[str, object]:
        p = self.point
        return {"id": p.id, "source": p.source, "cluster": p.cluster, "ranks": p.ranks, "layout": p.layout,
                "quality": p.quality, "counted": p.counted, "not_covered": list(p.features), "unit": p.unit,
                "measured": p.value, "predicted": self.value, "error": self.error,
                "memory_measured": p.memory, "memory_predicted": self.needed, "ran": p.fits,
                "fits": self.fits, "time": self.time}


@dataclass(frozen=True)
class Summary:
    """Of counted rows. points: with a measured value; median, worst: of absolute errors; close: share of them
    within 25 %; verdicts: of rows, right: share of them that is known to fit, or not to; memory: median error
    of bytes, or None."""

    points: int
    median: float
    worst: float
    close: float
    verdicts: int
    right: float
    memory: float | None


def judge(point: Point, plain: bool = False) -> Row:
    """Without a prediction where the point has features that are not covered. plain: with this project's
    software alone."""
    if point.features:
        return Row(point)
    where = cluster(point.cluster)
    costs = Costs(where) if plain else software.costs(point, where)
    found = [_predicted(point, recipe, where, costs) for recipe in point.recipes()]
    memories = [one.memory if plain else software.memory(point, one) for one in found]
    seconds, needed = mean(one.seconds for one in found), mean(one.peak.needed for one in memories)
    value = seconds if point.unit == "s" else found[0].tokens / seconds / point.ranks
    time = {name: mean(one.time[name] for one in found) for name in found[0].time}
    return Row(point, value, needed, needed <= memories[0].limit, time)


def _predicted(point: Point, recipe: Recipe, where: Cluster, costs: Costs):
    if not point.fully_sharded:
        return iteration.predict(recipe, where, costs)
    sums = torch.bfloat16 if point.gradients == "16 bits" else None
    return fully_sharded.predict(recipe, where, costs, sums, keep=point.sharding == "kept")


def summary(rows: Iterable[Row]) -> Summary | None:
    """None without a row that counts."""
    counted = [row for row in rows if row.point.counted]
    errors = [abs(row.error) for row in counted if row.error is not None]
    if not errors:
        return None
    bytes_ = [abs(row.needed / row.point.memory - 1) for row in counted if row.point.memory]
    close = sum(error <= CLOSE for error in errors) / len(errors)
    return Summary(len(errors), median(errors), max(errors), close, len(counted),
                   sum(row.right for row in counted) / len(counted), median(bytes_) if bytes_ else None)


def summaries(rows: Sequence[Row]) -> dict[str, Summary]:
    """Of every source, and "all"."""
    found = {source: summary(row for row in rows if row.point.source == source)
             for source in dict.fromkeys(row.point.source for row in rows)} | {"all": summary(rows)}
    return {name: one for name, one in found.items() if one is not None}


@dataclass(frozen=True)
class ThirdParty:
    """Predict what others measured on other systems."""

    ids: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which points; all without any."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON in place of the table."""
    markdown: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the page as Markdown."""
    plain: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Leave out what the software of the runs is known to have done otherwise than this project."""
    draw: Path | None = None
    """Also draw measured against predicted (.png, .svg, .pdf)."""
    store: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Keep all rows where the report finds them."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace a picture that exists."""


def chosen(ids: Sequence[str]) -> list[Point]:
    known = {point.id: point for point in points()}
    if wrong := [name for name in ids if name not in known]:
        raise ValueError(f"point {wrong[0]!r} is unknown: use some of {', '.join(known)}")
    return [known[name] for name in ids or known]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    options = tyro.cli(ThirdParty, args=arguments, prog=PROGRAM, description=__doc__)
    finish(lambda: work(options))


def work(options: ThirdParty) -> list[str]:
    """Raises ValueError for an unknown point, and for a file that cannot be drawn."""
    if options.store and (options.ids or options.plain):
        raise ValueError("--store keeps all points as they are judged: leave out ids and --plain")
    if options.store:
        check_folder(STORED.parent, "--store")
    if options.draw:
        check_target(options.draw, "--draw", PICTURES, options.force)
    shown = track(chosen(options.ids), console=console(stderr=True), transient=True)
    rows = [judge(point, options.plain) for point in shown]
    sums = summaries(rows)
    if options.json:
        summed = {name: vars(one) for name, one in sums.items()}
        print(json.dumps({"rows": [row.as_json() for row in rows], "summary": summed}, indent=1))
    elif options.markdown:
        print(markdown(rows, sums, {} if options.plain else software.NOTES))
    else:
        terminal(rows, sums, {} if options.plain else software.NOTES)
    if options.draw:
        chart(rows, options.draw)
    if options.store:
        store(rows)
    return []


def store(rows: Sequence[Row], path: Path = STORED) -> None:
    """Writes what was predicted, with its origin."""
    kept = [{"id": r.point.id, "value": r.value, "needed": r.needed, "fits": r.fits, "time": r.time} for r in rows]
    origin = vars(origin_of(f"{PROGRAM} --store"))
    write_text(path, json.dumps({"origin": origin, "rows": kept}, indent=1) + "\n")


def stored(path: Path = STORED) -> tuple[list[Row], dict[str, Any]]:
    """The rows of all points that are known, and the origin of their predictions; nothing where none are stored."""
    if not path.is_file():
        return [], {}
    kept = json.loads(path.read_text())
    known = {point.id: point for point in points()}
    rows = [Row(known[row.pop("id")], **row) for row in kept["rows"] if row["id"] in known]
    return rows, kept["origin"]


def section(path: Path = STORED) -> str:
    """The part of the report on what others measured; nothing where no predictions are stored."""
    rows, origin = stored(path)
    return html(rows, summaries(rows), software.NOTES, origin) if rows else ""


if __name__ == "__main__":
    main()
