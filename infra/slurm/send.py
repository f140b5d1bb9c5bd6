"""A command becomes a SLURM job: its plan is checked, its folder filled, its script submitted."""

import json
import os
import shlex
import shutil
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import tyro

from common.training.command import Resume, Run, find
from common.training.config_json import to_json
from common.training.recipe import Recipe
from common.training.run_directory import RunDirectory, load_config, new_id
from infra.slurm.budget import Budget, budget
from infra.slurm.local_cluster import use_running_cluster
from infra.slurm.script import Script, allocation
from infra.slurm.settings import Settings
from infra.snapshot import snapshot

FOLDER = "jobs"


@dataclass(frozen=True)
class Sent:
    """What a training command is about: its recipe, and its run's directory (`resumes` for one that is there)."""

    recipe: Recipe
    run: Path
    resumes: bool


def send(settings: Settings, module: str, arguments: list[str], *, ranks: int | None = None, print_only: bool = False,
         anyway: bool = False) -> None:
    """Submits `python -m module arguments`, or runs it in this process's allocation, and says where it can be watched.

    ranks: of the command, where the caller knows. print_only: prints the script and the plan, and does nothing.
    anyway: also where the plan does not fit. Raises ValueError, before anything is written, for what cannot be.
    """
    settings.check()
    asked = training(module, arguments)
    if allocation() and not settings.nodes:
        settings = replace(settings, nodes=int(os.environ["SLURM_JOB_NUM_NODES"]))
    if asked is not None:
        ranks = asked.recipe.grid.world
        arguments = _launched(arguments, asked)
    elif ranks is None:
        ranks = max(settings.nodes, 1) * max(settings.tasks_per_node, 1) if "slurm" in arguments else 1
    name = asked.run.name if asked else new_id(module)
    runs = asked.run.parent if asked else Path("runs").absolute()
    folder = runs / FOLDER / (new_id(asked.run.name) if asked and asked.resumes else name)
    script = Script(settings, name, ranks, folder, Path.cwd(), (runs,))
    text = script.text
    plan = budget(asked.recipe, module, settings) if asked and settings.hardware else None
    if print_only:
        print(text)
    if plan is not None:
        print(plan.line)
        if not (plan.fits or anyway or print_only):
            raise ValueError(f"{asked.recipe.name} does not fit on {settings.hardware}: {plan.reason}; `python -m infra.plan` "
                             "with --search finds layouts that do, --anyway submits all the same")
    elif asked:
        print("no plan: the cluster's settings name no hardware")
    if print_only:
        return
    _check_slurm()
    _fill(script, module, arguments, asked, plan)
    _go(script)


def training(module: str, arguments: list[str]) -> Sent | None:
    """None for a command that does not train. Raises ValueError for a recipe or run that is not there."""
    parts = module.split(".")
    if len(parts) != 3 or parts[0] != "papers" or parts[2] != "train" or not arguments or arguments[0].startswith("-h"):
        return None
    program, first, rest = f"python -m {module}", arguments[0], arguments[1:]
    if first in ("--resume", "--config") and not rest:
        raise ValueError(f"{program} {first} needs a run's directory or config.json")
    if first == "--resume":
        directory = RunDirectory.open(Path(rest[0]))
        tyro.cli(Resume, prog=f"{program} --resume", args=rest[1:])
        return Sent(directory.load_config(Recipe), directory.path.absolute(), True)
    if first == "--config":
        default, rest = load_config(Path(rest[0]), Recipe), rest[1:]
    else:
        default = find(import_module(f"papers.{parts[1]}.recipes"), first)
    run = tyro.cli(Run, prog=f"{program} {first}", default=Run(default), args=rest)
    run.recipe.check()
    place = run.runs.absolute() / (run.id or new_id(run.recipe.name))
    if place.exists():
        raise ValueError(f"run {str(place)!r} exists already: choose another --id, or --resume it")
    return Sent(run.recipe, place, False)


def _launched(arguments: list[str], asked: Sent) -> list[str]:
    """With the run's name fixed, so that a job that is requeued finds it again."""
    named = asked.resumes or any(word == "--id" or word.startswith("--id=") for word in arguments)
    return [*arguments, *([] if named else ["--id", asked.run.name]),
            *([] if "--launch" in arguments else ["--launch", "slurm"])]


def _fill(script: Script, module: str, arguments: list[str], asked: Sent | None, plan: Budget | None) -> None:
    _, tasks = script.settings.divided(script.ranks)
    try:
        snapshot(script.folder / "snapshot")
    except FileExistsError:
        raise ValueError(f"job folder {str(script.folder)!r} exists already: choose another --id") from None
    job = {"module": module, "arguments": arguments, "directory": str(script.directory), "tasks_per_node": tasks,
           "ranks": script.ranks, "environment": script.settings.environment, "settings": to_json(script.settings),
           "run": str(asked.run) if asked else None, "resumes": bool(asked and asked.resumes),
           "plan": plan.line if plan else None}
    (script.folder / "job.json").write_text(json.dumps(job, indent=1), encoding="utf-8")


def _check_slurm() -> None:
    use_running_cluster()
    if shutil.which("sbatch") is None:
        raise ValueError("sbatch is not found: submit where SLURM's commands are, or start a cluster on this machine "
                         "(python -m infra.slurm install, then start)")


def _go(script: Script) -> None:
    if allocation():
        script.run()
    number = script.submit()
    (script.folder / "id").write_text(number, encoding="utf-8")
    folder = shlex.quote(str(script.folder))
    print(f"job {number} is submitted: output in {folder}/{number}.out, state with python -m infra.status")
