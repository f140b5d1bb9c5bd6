"""Measured runs of other public systems, as data and as recipes of this project.

BLOOM's tuning ran Megatron's layout with a sharded optimizer under DeepSpeed, with the fused kernels and the
unfused attention of its time; its messages are waited for, and the embedding and the output count as a layer
each where layers do not divide the stages. The others ran fully sharded with fused attention.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.predict.units import to_si
from common.training.recipe import Recipe, TrainingConfig
from common.training.step import Execution
from data.config import DataConfig

FILE = Path(__file__).with_name("third_party.toml")
DOUBTFUL = "C"
EVERY_SECOND = "every second layer"
BEYOND = {
    "compile": "compiled graphs are not priced",
    "float8": "float8 products are not run here yet",
    "context parallel": "context parallelism is not run here yet",
    "asynchronous tensor parallel": "products cut into the steps of their messages are not run here",
    "two-dimensional sharding": "full sharding beside tensor or pipeline ranks is not run here",
    "selected operations": "every second product kept, the rest of a layer recomputed, is no policy here",
}


@dataclass(frozen=True)
class Point:
    """One measured run. model: layers, sizes and settings. sharding: full, kept (parameters are
    whole from forward to backward), or of the optimizer alone.
    gradients: what they are sent in, and kept in where a rank keeps them whole. value: in `unit`, None where
    it ran out of memory. memory: bytes of the fullest rank, as seen from outside. features: what the project
    cannot express, keys of BEYOND."""

    id: str
    source: str
    model: Mapping[str, object]
    cluster: str
    dp: int
    sharding: str
    micro_batch: int
    sequence: int
    precision: str
    gradients: str
    recompute: str
    fits: bool
    quality: str
    unit: str
    value: float | None = None
    memory: float | None = None
    batch: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    doubt: str = ""
    features: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def fully_sharded(self) -> bool:
        return self.sharding in ("full", "kept")

    @property
    def layout(self) -> str:
        axes = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": self.dp}
        cut = {"full": "fully sharded", "kept": "ZeRO-2", "optimizer": "ZeRO-1"}[self.sharding]
        return " ".join([*(f"{name} {size}" for name, size in axes.items() if size > 1), cut])

    @property
    def counted(self) -> bool:
        return not self.features and self.quality != DOUBTFUL

    def recipes(self) -> tuple[Recipe, ...]:
        """Whose mean is the run's, layers being alike: two, where it recomputes every second layer.

        Raises ValueError for features that the project cannot express.
        """
        if self.recompute == EVERY_SECOND:
            return tuple(replace(self, recompute=policy).recipe() for policy in ("full", "none"))
        return (self.recipe(),)

    def recipe(self) -> Recipe:
        """Raises ValueError for features that the project cannot express."""
        if self.features:
            raise ValueError(f"{self.id}: {'; '.join(BEYOND[name] for name in self.features)}")
        sizes = dict(self.model)
        pattern = _pattern(sizes.pop("layers"), self.pp)
        model = LanguageModelConfig(pattern=pattern, sequence=self.sequence, **sizes)
        execution = Execution("sdpa", recompute=self.recompute, precision=self.precision)
        if not self.fully_sharded:
            execution = replace(execution, kernels="paper", sharded_optimizer=True, overlap="none",
                                reduce_in="parameters" if self.gradients == "16 bits" else "main")
        return Recipe(self.id, model, Grid(tp=self.tp, pp=self.pp, dp=self.dp), execution,
                      TrainingConfig(batch=self.batch, micro_batch=self.micro_batch),
                      data=DataConfig(vocab=model.vocab))


def _pattern(layers: int, stages: int) -> str:
    """Where layers alone do not divide, those at the ends have one less, for the embedding and the output."""
    if layers % stages == 0:
        return f"[*-]*{layers}"
    each, rest = divmod(layers + 2, stages)
    if rest:
        raise ValueError(f"layers={layers} with pp={stages}: neither they nor two more of them divide by pp")
    return "|".join(f"[*-]*{each - (stage in (0, stages - 1))}" for stage in range(stages))


@cache
def points(path: Path = FILE) -> tuple[Point, ...]:
    """All of the file. Raises ValueError for a row, a name or a feature that it does not know."""
    return tuple(_points(tomllib.loads(path.read_text(encoding="utf-8"))))


@cache
def sources(path: Path = FILE) -> dict[str, dict[str, str]]:
    """By key: the name, and where the numbers stand."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["sources"]


def _points(data: dict) -> Iterator[Point]:
    known = {f.name for f in fields(Point)}
    models = {name: data["families"][entry["like"]] | {k: v for k, v in entry.items() if k != "like"}
              for name, entry in data["models"].items()}
    for table in data["table"]:
        unit = table["all"].get("memory_unit")
        for row in table["rows"]:
            filled = {name: x for name, x in zip(table["columns"], row, strict=True) if x not in ("", [])}
            found = {"source": table["source"]} | table["all"] | filled
            found.pop("memory_unit", None)
            wrong = [name for name in found.get("features", ()) if name not in BEYOND]
            if wrong := wrong + sorted(found.keys() - known):
                raise ValueError(f"{found['id']}: {', '.join(wrong)} is unknown")
            if "memory" in found:
                found["memory"] = to_si(found["memory"], unit, "memory")
            found |= {"model": models[found["model"]], "features": tuple(found.get("features", ()))}
            yield Point(**found)
