"""`python -m infra.plan`: whether a recipe fits on named hardware, how fast it runs, and where the time goes.

    python -m infra.plan interleaved_pipelining:gpt_1t --cluster selene
    python -m infra.plan path/to/config.json --cluster dgx_h100 --gpus 64
    python -m infra.plan interleaved_pipelining:gpt3_175b --cluster selene --gpus 1024 --search --draw all.png

Nothing is run: the recipe's own code is traced at its real size, and its operations and messages are priced
on the hardware's record. What cannot be, or does not fit, is one line on standard error and exit status 2.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn

import tyro
from rich.console import Console

from common.claims.command import finish
from common.claims.target import PICTURES, check_target
from common.predict import timeline
from common.predict.hardware import cluster
from common.predict.iteration import Prediction, check, predict
from common.predict.machine import Cluster
from common.predict.price import Costs
from common.predict.search import Search, breaking, describe, search
from common.training.recipe import Recipe
from infra import plan_search
from infra.plan_model import Named, named
from infra.plan_page import as_json, page

PROGRAM = "python -m infra.plan"
WIDTH = 100
TRIED = 3
"""Numbers of ranks, each twice the last, on which a layout that fits is looked for, where none does on those
asked for. The first is the least that could hold what the closest layout holds."""


@dataclass(frozen=True)
class Plan:
    """Whether a recipe fits on named hardware, how fast it runs, and where the time goes."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    cluster: str
    """A record of infra/hardware/ by its name, or a file of your own."""
    gpus: int | None = None
    """On how many; by default as many as the recipe has ranks. Data ranks make up the number."""
    search: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Find the fastest layouts that fit, among all that can be, in place of the recipe's own."""
    tokens: float | None = None
    """To train on, for the days it takes; by default 20 for each parameter."""
    timeline: Path | None = None
    """Write the iteration as a Chrome trace (.json) or as a picture (.png, .svg, .pdf)."""
    draw: Path | None = None
    """With --search: draw time against memory of all layouts (.png, .svg, .pdf)."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace files that exist."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON in place of the page."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    words = list(sys.argv[1:] if arguments is None else arguments)
    finish(lambda: _main(words))


def _main(words: list[str]) -> list[str]:
    if not words or words[0].startswith("-"):
        print(
            f"usage: {PROGRAM} RECIPE|config.json --cluster NAME [--gpus N] [--search] [--key value ...]\n"
            f"       {PROGRAM} RECIPE --help          every key; RECIPE is PAPER:NAME, or a run's config.json"
        )
        return []
    found = named(words[0])
    options = tyro.cli(
        Plan, prog=f"{PROGRAM} {words[0]}", args=words[1:], default=Plan(found.recipe, tyro.MISSING)
    )
    return work(
        options, replace(found, open=found.open and not any(word.startswith("--grid") for word in words))
    )


def work(options: Plan, asked: Named) -> list[str]:
    """Raises ValueError for what cannot be done, and for a recipe that does not fit after its page."""
    known = cluster(options.cluster)
    _check_options(options)
    searched = options.search or asked.open
    recipe = options.recipe if searched else _on(options.recipe, options.gpus, asked.recipe)
    ranks = (options.gpus or recipe.grid.world) if searched else recipe.grid.world
    known.check_size(ranks)
    costs = Costs(known, ranks, software=asked.software)
    layouts = None
    if searched:
        layouts = _search(recipe, known, costs, ranks)
        if not layouts.best:
            raise ValueError(
                f"{recipe.name} fits on {ranks:,} x {known.name} in no layout: "
                + _nowhere(layouts, recipe, known, costs, ranks)
            )
        found = layouts.best[0]
    else:
        check(recipe, known)
        found = predict(recipe, known, costs)
    _show(options, found, known, _notes(asked), layouts)
    if not found.memory.fits:
        raise ValueError(_too_large(found, known, costs))
    return []


def _notes(asked: Named) -> list[str]:
    if asked.software == 1:
        return list(asked.notes)
    return [
        f"operations take {asked.software:.3f} times as long as measured kernels say, which is fitted on one "
        f"row of {asked.paper}; a recipe of another origin gets 1",
        *asked.notes,
    ]


def _check_options(options: Plan) -> None:
    if options.gpus is not None and options.gpus < 1:
        raise ValueError(f"--gpus {options.gpus}: needs at least 1")
    if options.tokens is not None and not options.tokens > 0:
        raise ValueError(f"--tokens {options.tokens}: needs more than 0")
    if options.timeline is not None:
        check_target(options.timeline, "--timeline", timeline.ENDINGS, options.force)
    if options.draw is not None:
        if not options.search:
            raise ValueError(
                "--draw draws all layouts: give --search as well; --timeline draws one iteration"
            )
        check_target(options.draw, "--draw", PICTURES, options.force)


def _on(recipe: Recipe, gpus: int | None, asked: Recipe) -> Recipe:
    """The recipe on so many ranks, data ranks making up the number."""
    if gpus is None or gpus == recipe.grid.world:
        return recipe
    inner = recipe.grid.world // recipe.grid.dp
    if recipe.grid.dp != asked.grid.dp:
        raise ValueError(
            f"--gpus {gpus} and --grid.dp {recipe.grid.dp}: tp x cp x dp x pp is {recipe.grid.world}; "
            "give one of the two"
        )
    if gpus % inner:
        near = [n for n in (gpus // inner * inner, (gpus // inner + 1) * inner) if n]
        raise ValueError(
            f"--gpus {gpus} is no multiple of tp x cp x pp = {inner}: use {' or '.join(map(str, near))}, "
            "other --grid.tp and --grid.pp, or --search"
        )
    return replace(recipe, grid=replace(recipe.grid, dp=gpus // inner))


def _search(recipe: Recipe, known: Cluster, costs: Costs, ranks: int) -> Search:
    notes = Console(stderr=True)
    if notes.is_terminal:  # elsewhere standard error holds nothing but an error
        notes.print(f"searching layouts of {recipe.name} on {ranks:,} ranks", style="dim", markup=False)
    return search(recipe, known, costs, ranks)


def _too_large(found: Prediction, known: Cluster, costs: Costs) -> str:
    """The term that breaks it, and what would fit."""
    peak, limit, recipe = found.memory.peak, found.memory.limit, found.recipe
    term = breaking({**peak.by_group(), "fragmentation": peak.apart}, limit)
    ranks = recipe.grid.world
    layouts = _search(recipe, known, costs, ranks)
    if layouts.best:
        best = layouts.best[0]
        advice = (
            f"on the same ranks fits {describe(best.recipe)}, with {best.memory.peak.needed / 1e9:.1f} GB "
            f"and {best.seconds:.3g} s an iteration"
        )
    else:
        advice = _nowhere(layouts, recipe, known, costs, ranks)
    return (
        f"{recipe.name} does not fit on {known.name}: pipeline rank {peak.rank} needs "
        f"{peak.needed / 1e9:.1f} GB of {limit / 1e9:.1f}, and {term} pass the limit; {advice}"
    )


def _nowhere(layouts: Search, recipe: Recipe, known: Cluster, costs: Costs, ranks: int) -> str:
    """What comes closest on these ranks, and where more ranks would do."""
    closest = layouts.closest
    if closest is None:
        reasons = "; ".join(layouts.refused.examples.values())
        return f"none can be laid out: {reasons}"
    said = (
        f"the closest, {describe(closest.recipe)}, needs {closest.needed / 1e9:.1f} GB of "
        f"{layouts.limit / 1e9:.1f}, and {closest.breaks or 'the simulated peak'} pass the limit"
    )
    first = ranks * 2 ** max(math.ceil(math.log2(closest.needed / layouts.limit)), 1)
    tried = [n for n in (first << i for i in range(TRIED)) if known.size is None or n <= known.size]
    for more in tried:
        wider = _search(recipe, known, Costs(known, more, software=costs.software), more)
        if wider.best:
            return f"{said}; on {more:,} ranks fits {describe(wider.best[0].recipe)}"
    return (
        f"{said}; nor is there one on {tried[-1]:,} ranks"
        if tried
        else f"{said}; {known.name} is too small for it"
    )


def _show(
    options: Plan, found: Prediction, known: Cluster, notes: Sequence[str], layouts: Search | None
) -> None:
    if options.timeline is not None:
        timeline.write(found, options.timeline)
    if options.draw is not None:
        plan_search.draw(layouts, known, options.draw)
    if options.json:
        report = as_json(found, known, options.tokens, notes)
        if layouts is not None:
            report["search"] = plan_search.as_json(layouts)
        print(json.dumps(report, indent=1, allow_nan=False))
        return
    terminal = Console(highlight=False)
    out = terminal if terminal.is_terminal else Console(highlight=False, width=WIDTH)
    for part in page(found, known, options.tokens, notes, searched=layouts is not None):
        out.print(part)
    if layouts is not None:
        for part in plan_search.page(layouts):
            out.print(part)


if __name__ == "__main__":
    main()
