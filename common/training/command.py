"""`python -m papers.<name>.train RECIPE [--key value] [--launch local:4] [--resume RUN] [--config FILE]`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import tyro

from common.device import choose
from common.layout import Layout
from common.training.recipe import Recipe
from common.training.run_directory import RunDirectory, load_config
from data.prepare import prepare, progress_bar
from infra.launch import Launch
from infra.rank_context import RankContext
from infra.rank_failure import RankFailure


@dataclass(frozen=True)
class Run:
    """recipe: its fields stand without a prefix, such as --training.steps 100.

    launch: local:N or torchrun; default as many local ranks as the grid has. runs: folder for run directories. id: the
    run directory's name, default time and recipe.
    """

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    launch: str = ""
    runs: Path = Path("runs")
    id: str | None = None


@dataclass(frozen=True)
class Resume:
    """launch: local:N or torchrun; default as many local ranks as the grid has."""

    launch: str = ""


def recipes(module: ModuleType) -> dict[str, Recipe]:
    """Recipes of a paper by name: its functions that take nothing and return one."""
    found = {}
    for name, make in vars(module).items():
        if callable(make) and getattr(make, "__module__", "") == module.__name__ and not name.startswith("_") \
                and getattr(make, "__annotations__", {}) == {"return": Recipe}:
            found[name] = make()
    return found


def find(module: ModuleType, name: str) -> Recipe:
    known = recipes(module)
    if name not in known:
        raise ValueError(f"recipe {name!r} is unknown: use one of {', '.join(known)}")
    return known[name]


def main(module: ModuleType, arguments: list[str] | None = None) -> None:
    """The train command of the paper whose recipes are in `module`; a user's error is one line and exit status 2."""
    words = sys.argv[1:] if arguments is None else arguments
    program = f"python -m {module.__name__.removesuffix('.recipes')}.train"
    try:
        _main(module, program, words)
    except (ValueError, RankFailure) as error:
        sys.exit(f"{program}: {error}")


def _main(module: ModuleType, program: str, words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {program} RECIPE [--key value ...] [--launch local:N | torchrun]\n"
              f"       {program} --config RUN/config.json [--key value ...]      the same run again\n"
              f"       {program} --resume RUN [--launch ...]                     go on from its last checkpoint\n"
              f"       {program} RECIPE --help                                   every key\n"
              f"recipes: {', '.join(recipes(module))}")
        return
    if words[0] == "--resume":
        if len(words) < 2:
            raise ValueError("--resume needs the run's directory, such as runs/<id>")
        directory = RunDirectory.open(Path(words[1]))
        recipe = directory.load_config(Recipe)
        launch = tyro.cli(Resume, prog=f"{program} --resume", args=words[2:]).launch
        _start(recipe, launch, lambda: directory, resume=True)
        return
    if words[0] == "--config":
        if len(words) < 2:
            raise ValueError("--config needs a file, such as runs/<id>/config.json")
        default, words = load_config(Path(words[1]), Recipe), words[1:]
    else:
        default = find(module, words[0])
    run = tyro.cli(Run, prog=f"{program} {words[0]}", default=Run(default), args=words[1:])
    _start(run.recipe, run.launch, lambda: RunDirectory.create(run.runs, run.recipe, recipe=run.recipe.name,
                                                               seed=run.recipe.training.seed, id=run.id), resume=False)


def _start(recipe: Recipe, launch_text: str, directory, resume: bool) -> None:
    """Checks everything, prepares the data, makes the run's directory, and only then starts ranks."""
    recipe.check()
    if recipe.grid.cp > 1:
        raise ValueError(f"cp={recipe.grid.cp}: training runs tensor, pipeline and data ranks; use cp=1")
    choose().require(recipe.execution.precision)
    launch = Launch.parse(launch_text or f"local:{recipe.grid.world}")
    if launch.size != recipe.grid.world:
        raise ValueError(f"launch has {launch.size} ranks, the grid needs tp x cp x dp x pp = {recipe.grid.world}: "
                         f"use --launch local:{recipe.grid.world}, or change --grid")
    if launch.leads:
        with progress_bar() as progress:
            prepare(recipe.data, progress=progress)
    path = launch.once(lambda: str(directory().path))
    summary = launch.run(rank, recipe, path, resume, logs=Path(path) / "logs")
    if launch.leads and summary is not None:
        print(f"{path}: {summary.steps} steps, loss {summary.loss:.4f}, held-out loss {summary.valid_loss:.4f}, "
              f"{summary.tokens_per_s:,.0f} tokens/s" + (", stopped by a signal" if summary.stopped else ""))


def rank(context: RankContext, recipe: Recipe, path: str, resume: bool):
    """What one rank does."""
    from common.training.loop import train

    layout = Layout(recipe.grid, context.rank)
    return train(recipe, prepare(recipe.data), RunDirectory.open(Path(path)), layout, context.device, resume)
