"""What the plan says of a job: whether it fits, and how far it comes in its time."""

from dataclasses import dataclass

from common.predict.constants import constants
from common.predict.hardware import cluster
from common.predict.iteration import check, predict
from common.predict.price import Costs
from common.training.progress import clock
from common.training.recipe import Recipe
from infra.slurm.settings import Settings


@dataclass(frozen=True)
class Budget:
    """line: for a reader. fits: in the memory of each device; where not, `reason` says what is needed and what there is."""

    line: str
    fits: bool
    reason: str


def budget(recipe: Recipe, module: str, settings: Settings) -> Budget:
    """Traces the recipe on the settings' hardware. Raises ValueError where it cannot run there at all."""
    known = cluster(settings.hardware)
    ranks = recipe.grid.world
    known.check_size(ranks)
    check(recipe, known)
    software = constants().software.get(module.split(".")[1], 1.0)
    found = predict(recipe, known, Costs(known, ranks, software=software))
    needed, limit = found.memory.peak.needed / 1e9, found.memory.limit / 1e9
    steps = recipe.training.steps
    line = (f"plan on {ranks:,} x {known.name}: {needed:.3g} of {limit:.3g} GB on the fullest rank, {found.seconds:.3g} s a "
            f"step, {steps:,} steps in {clock(steps * found.seconds)}")
    limit_seconds = settings.seconds
    if limit_seconds and steps * found.seconds > limit_seconds:
        reached = int(max(limit_seconds - settings.warn_seconds, 0) / found.seconds)
        line += f"; the limit of {settings.time} ends a start after about {reached:,} steps"
    return Budget(line, found.memory.fits, f"rank {found.memory.peak.rank} of the pipeline needs {needed:.3g} of {limit:.3g} GB")
