"""`python -m infra.compare`: training steps of recipes on this machine, measured beside what is predicted for them.

    python -m infra.measure -o mine.toml
    python -m infra.compare --cluster mine.toml                                      the laptop recipes
    python -m infra.compare interleaved_pipelining:laptop_figure17 --cluster mine.toml --draw steps.png

Close other programs first. Tokens are random; a step is what training runs, the update included.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from common.checkpoint.files import write_text
from common.claims.command import finish, parse
from common.claims.origin import origin_of
from common.claims.target import PICTURES, check_target
from common.predict import timeline
from common.predict.hardware import cluster
from common.predict.iteration import Prediction, check, predict
from common.predict.price import Costs
from infra.compare_page import HEADS, STORED, cells, draw
from infra.launch import run_local
from infra.plan_model import named
from infra.timed_steps import Step, on_rank

PROGRAM = "python -m infra.compare"
RECIPES = ("sequence_parallelism:laptop", "sequence_parallelism:laptop_22b", "interleaved_pipelining:laptop",
           "interleaved_pipelining:laptop_figure16", "interleaved_pipelining:laptop_figure17", "mt_nlg:laptop")


@dataclass(frozen=True)
class Compare:
    """Measure training steps of recipes on this machine beside what is predicted for them."""

    recipes: tyro.conf.Positional[tuple[str, ...]] = ()
    """PAPER:NAME, each; without any, the laptop recipes."""
    cluster: str = tyro.MISSING
    """The record of this machine, by its name or file: `python -m infra.measure` makes one."""
    steps: int = 9
    """Measured of each, after two that are not."""
    draw: Path | None = None
    """Draw the timelines of the last recipe, measured above predicted (.png, .svg, .pdf)."""
    store: Path | None = None
    """Write the results to this file, as JSON, with their origin; the report shows those of infra/results/steps.json."""
    force: bool = False
    """Replace files that exist; steps.json is replaced in any case."""


@dataclass(frozen=True)
class Compared:
    """seconds: of each step, from the first rank's start to the last one's end."""

    name: str
    seconds: tuple[float, ...]
    predicted: Prediction
    ranks: tuple[Step, ...]

    @property
    def measured(self) -> float:
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.measured - 1


def compare(word: str, name: str, steps: int) -> Compared:
    """Raises ValueError for a recipe or a record that does not exist, or where the one cannot run on the other."""
    recipe, where = named(word).recipe, cluster(name)
    check(recipe, where)
    found = predict(recipe, where, Costs(where, recipe.grid.world))
    ranks = tuple(run_local(on_rank, recipe.grid.world, recipe, steps, timeout=60 + 20 * steps * found.seconds))
    seconds = tuple(max(end for _, end in step) - min(start for start, _ in step)
                    for step in zip(*(rank.spans for rank in ranks), strict=True))
    return Compared(word, seconds, found, ranks)


def as_json(one: Compared) -> dict[str, Any]:
    """Lanes: of each pipeline rank in the last step, (kind, micro-batch, start, end) of its passes."""
    grid = one.predicted.recipe.grid
    predicted: list[list] = [[] for _ in range(grid.pp)]
    for e in timeline.events(one.predicted):
        if e.chunk is not None:
            predicted[e.rank].append((e.name, e.micro_batch, e.start, e.end))
    measured = [[(kind, micro_batch, start, end) for kind, _, micro_batch, start, end in one.ranks[grid.rank(pp=i)].actions]
                for i in range(grid.pp)]
    return {"recipe": one.name, "ranks": len(one.ranks), "seconds": one.seconds, "measured": one.measured,
            "predicted": one.predicted.seconds, "error": one.error, "measured lanes": measured, "predicted lanes": predicted}


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table(*HEADS, title=f"one training step, median of {len(found[0]['seconds'])}")
    for one in found:
        shown.add_row(*cells(one))
    return shown


def work(options: Compare) -> list[str]:
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps}: needs at least 1")
    if options.draw is not None:
        check_target(options.draw, "--draw", PICTURES, options.force)
    if options.store is not None:
        own = options.store.resolve() == STORED.resolve()
        check_target(options.store, "--store", (".json",), options.force or own, new_folders=True)
    found = []
    for word in options.recipes or RECIPES:
        Console(stderr=True).print(f"{word} ...", style="dim", markup=False)
        found.append(as_json(compare(word, options.cluster, options.steps)))
    Console(width=110 if not sys.stdout.isatty() else None).print(table(found))
    if options.draw is not None:
        draw(options.draw, found[-1])
    if options.store is not None:
        origin = asdict(origin_of(f"{PROGRAM} --cluster {options.cluster} --store"))
        write_text(options.store, json.dumps({"origin": origin, "results": found}) + "\n")
    return []


if __name__ == "__main__":
    given = parse(Compare, PROGRAM, None)
    finish(lambda: work(given))
