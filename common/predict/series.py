"""Published times and rates of training runs, beside what is predicted for the recipes that they were measured with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING

from common.claims.published import Facts
from common.predict.constants import SOFTWARE, constants, table

if TYPE_CHECKING:  # torch is imported when something is predicted, not when claims are listed
    from common.predict.iteration import Prediction, Rates
    from common.predict.price import Costs
    from common.training.recipe import Recipe

TERA = 1e12
MEASURES: dict[str, Callable[["Rates"], float]] = {
    "TFLOP/s per GPU": lambda found: found.flops_per_second("hardware") / TERA,
    "s": lambda found: found.seconds,
    "sequences/s": lambda found: found.recipe.training.batch / found.seconds,
}


@dataclass(frozen=True)
class Series:
    """A published number, or list of them, of one claim. table: what its errors are summed up under. make: the recipes,
    one for each number. unit: one of MEASURES; rates count all FLOPs that run, attention's whole square among them.
    how: predicts a recipe, where it ran otherwise than this project's training runs it."""

    source: str
    key: str
    table: str
    make: "Callable[[], tuple[Recipe, ...]]" = field(repr=False)
    unit: str = "TFLOP/s per GPU"
    several: bool = False
    how: "Callable[[Recipe, Costs], Rates] | None" = field(default=None, repr=False)

    @cached_property
    def recipes(self) -> "tuple[Recipe, ...]":
        return self.make()

    @property
    def id(self) -> str:
        return f"{self.source}/{self.key}"

    def published(self, facts: Facts) -> tuple[float, ...]:
        value = facts[self.source].values[self.key]
        return tuple(map(float, value)) if self.several else (float(value),)

    def predicted(self, paper: "Predicted", software: float | None = None) -> tuple[float, ...]:
        """software: another factor than the stored one."""
        found = (self.how(recipe, paper.costs(software)) if self.how else paper.of(recipe, software) for recipe in self.recipes)
        return tuple(map(MEASURES[self.unit], found))


@dataclass(frozen=True)
class Predicted:
    """A paper's series, the record of the machine that it ran on, and the name of its software factor."""

    paper: str
    cluster: str
    series: tuple[Series, ...] = field(repr=False)

    def costs(self, software: float | None = None) -> "Costs":
        """software: another factor than the stored one."""
        return _costs(self.cluster, constants().software[self.paper] if software is None else software)

    def of(self, recipe: "Recipe", software: float | None = None) -> "Prediction":
        return _predict(recipe, self.costs(software))

    def note(self, series: Series) -> str:
        """What a result of a series says of itself."""
        fitted = "; the row that the software factor is fitted on" if series.id == self.fitted else ""
        return f"on {self.cluster}{fitted}"

    @property
    def fitted(self) -> str:
        """The id of the row that the factor was fitted on."""
        return next(constant.row for constant in table() if constant.name == SOFTWARE + self.paper)

    def __iter__(self) -> Iterator[Series]:
        return iter(self.series)


@cache
def _costs(name: str, software: float) -> "Costs":
    from common.predict.hardware import cluster
    from common.predict.price import Costs

    return Costs(cluster(name), software=software)


@cache
def _predict(recipe: "Recipe", costs: "Costs") -> "Prediction":
    """costs: by identity, which `_costs` keeps."""
    from common.predict.iteration import predict

    return predict(recipe, costs.cluster, costs)
