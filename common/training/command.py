"""`python -m papers.<name>.train RECIPE [--key value] [--launch local:4] [--resume RUN] [--config FILE]`."""

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, NoReturn

import tyro

from common.checkpoint.manifest import read_manifest
from common.checkpoint.storage import remove_leavings
from common.checkpoint.store import last_good
from common.device import choose
from common.layout import Layout
from common.training.needs import check_memory
from common.training.recipe import Recipe
from common.training.resume import checked_start
from common.training.run_directory import RunDirectory, load_config
from data.prepare import prepare, progress_bar
from data.samples import Samples
from infra.launch import Launch
from infra.rank_context import RankContext
from infra.rank_failure import RankFailure


@dataclass(frozen=True)
class Run:
    """recipe: its fields stand without a prefix, such as --training.steps 100.

    launch: local:N or torchrun; default as many local ranks as the grid has. restarts: how often local ranks are started
    again, from the last good checkpoint, when one of them has died. runs: folder for run directories. id: the run
    directory's name, default time and recipe.
    """

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    launch: str = ""
    restarts: int = 0
    runs: Path = Path("runs")
    id: str | None = None


@dataclass(frozen=True)
class Resume:
    """launch: local:N or torchrun; default as many local ranks as the grid has. restarts: how often local ranks are started
    again, from the last good checkpoint, when one of them has died."""

    launch: str = ""
    restarts: int = 0


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


def guarded(program: str, work: Callable[[], None]) -> None:
    """Runs a command: what a user or the machine can cause is one line, with exit status 2 for a wrong argument, 1 for
    a run that failed and 130 for Ctrl-C."""
    try:
        work()
    except ValueError as error:
        _leave(program, str(error), 2)
    except RankFailure as error:
        _leave(program, error.shown(), 1)
    except OSError as error:
        _leave(program, str(error), 1)
    except KeyboardInterrupt as error:
        _leave(program, str(error) or "interrupted", 130)


def _leave(program: str, line: str, status: int) -> NoReturn:
    print(f"{program}: {line}", file=sys.stderr)
    sys.exit(status)


def main(module: ModuleType, arguments: list[str] | None = None) -> None:
    """The train command of the paper whose recipes are in `module`."""
    words = sys.argv[1:] if arguments is None else arguments
    program = f"python -m {module.__name__.removesuffix('.recipes')}.train"
    guarded(program, lambda: _main(module, program, words))


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
        check_paper(directory, program)
        again = tyro.cli(Resume, prog=f"{program} --resume", args=words[2:])
        _start(directory.load_config(Recipe), again.launch, again.restarts, lambda: directory, resume=True)
        return
    if words[0] == "--config":
        if len(words) < 2:
            raise ValueError("--config needs a file, such as runs/<id>/config.json")
        default, words = load_config(Path(words[1]), Recipe), words[1:]
    else:
        default = find(module, words[0])
    run = tyro.cli(Run, prog=f"{program} {words[0]}", default=Run(default), args=words[1:])
    _start(run.recipe, run.launch, run.restarts, lambda: RunDirectory.create(run.runs, run.recipe, recipe=run.recipe.name,
                                                               seed=run.recipe.training.seed, id=run.id), resume=False)


def check_paper(directory: RunDirectory, program: str) -> None:
    """ValueError for a run that another paper's command began: its recipes are not those of this one."""
    begun = re.search(r"papers\.\w+\.train\b", directory.load_environment()["command"])
    if begun and begun[0] not in program:
        raise ValueError(f"run {str(directory.path)!r} was begun by {begun[0]}: use python -m {begun[0]} --resume "
                         f"{directory.path}")


@dataclass(frozen=True)
class Ready:
    """A run's directory, and for one that goes on the checkpoint, if it has one, and whether that is of the last step."""

    path: str
    checkpoint: Path | None = None
    complete: bool = False
    again: bool = False


def _start(recipe: Recipe, launch_text: str, restarts: int, directory: Callable[[], RunDirectory], resume: bool) -> None:
    """Checks everything, prepares the data, makes the run's directory, and only then starts ranks."""
    recipe.check()
    if recipe.grid.cp > 1:
        raise ValueError(f"cp={recipe.grid.cp}: training runs tensor, pipeline and data ranks; use cp=1")
    choose().require(recipe.execution.precision)
    launch = Launch.parse(launch_text, need=recipe.grid.world)
    if restarts < 0 or (restarts and not launch.starts_ranks):
        raise ValueError(f"restarts={restarts}: 0 or more, and with local ranks; torchrun and SLURM have their own")
    if launch.shares_memory:
        check_memory(recipe)
    with ExitStack() as held:
        ready = launch.once(lambda: _ready(recipe, directory, resume, held))
        if ready.complete:
            if launch.leads:
                print(f"{ready.path} is complete: {recipe.training.steps} of {recipe.training.steps} steps are done")
            return
        summary = _run(launch, recipe, ready, restarts)
    if launch.leads and summary is not None:
        print(f"{ready.path}: {summary.steps} steps, loss {summary.loss:.4f}, held-out loss {summary.valid_loss:.4f}, "
              f"{summary.tokens_per_s:,.0f} tokens/s" + (f", stopped by {summary.stopped}" if summary.stopped else ""))


def _ready(recipe: Recipe, directory: Callable[[], RunDirectory], resume: bool, held: ExitStack) -> Ready:
    """What one process does before any rank starts; `held` keeps other processes out of the run's directory."""
    with progress_bar() as progress:
        prepared = prepare(recipe.data, progress=progress)
    for split in ("train", "valid"):
        Samples(prepared.tokens(split), recipe.model.sequence, recipe.model.vocab)
    run = directory()
    held.enter_context(run.exclusive())
    if not resume:
        return Ready(str(run.path))
    checkpoint = checked_start(run, recipe, prepared)
    step = read_manifest(checkpoint)["step"]
    if step < recipe.training.steps:
        run.add_resume(recipe.training.seed, step)
    return Ready(str(run.path), checkpoint, step >= recipe.training.steps)


def _run(launch: Launch, recipe: Recipe, ready: Ready, restarts: int):
    """Runs the ranks, and again as often as may be where one of them has died."""
    while True:
        try:
            return launch.run(rank, recipe, ready.path, ready.checkpoint, ready.again, logs=Path(ready.path) / "logs")
        except RankFailure as error:
            if not restarts or not error.passing:
                raise
            restarts -= 1
            ready = _once_more(recipe, ready.path, error, restarts)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; --resume {ready.path} goes on from its last checkpoint, if it has one"
                                    ) from None
        finally:
            if launch.leads:
                remove_leavings(Path(ready.path) / "checkpoints")


def _once_more(recipe: Recipe, path: str, error: RankFailure, left: int) -> Ready:
    """What a run goes on from after a rank has died; says so."""
    run = RunDirectory.open(Path(path))
    checkpoint = last_good(run.checkpoints)
    step = read_manifest(checkpoint)["step"] if checkpoint else 0
    print(f"rank {error.rank} of {error.size} failed: {error.message}; going on from step {step}, {left} restarts left",
          file=sys.stderr, flush=True)
    run.add_resume(recipe.training.seed, step)
    return Ready(path, checkpoint, again=True)


def rank(context: RankContext, recipe: Recipe, path: str, checkpoint: Path | None, again: bool = False):
    """What one rank does."""
    from common.training.loop import train

    layout = Layout(recipe.grid, context.rank)
    return train(recipe, prepare(recipe.data), RunDirectory.open(Path(path)), layout, context.device, checkpoint, again)
