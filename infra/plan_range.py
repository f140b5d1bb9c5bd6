"""What published measurements cover, and where a plan lies outside of it.

Covered is what lies between the runs that papers/<name>/predicted.py holds predictions against, on the
accelerator that each ran on. Outside, the model is carried further than anything has shown it to hold, and a
plan says so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from common.predict.hardware import cluster
from common.predict.machine import Cluster
from common.training.recipe import Recipe
from papers.series import ALL

NUMBERS: dict[str, Callable[[Recipe], int]] = {
    "layers": lambda r: r.model.depth,
    "hidden size": lambda r: r.model.hidden,
    "heads": lambda r: r.model.heads,
    "head dim": lambda r: r.model.dim,
    "vocabulary": lambda r: r.model.vocab,
    "sequence": lambda r: r.model.sequence,
    "ranks": lambda r: r.grid.world,
    "tp": lambda r: r.grid.tp,
    "pp": lambda r: r.grid.pp,
    "dp": lambda r: r.grid.dp,
    "chunks": lambda r: r.execution.chunks,
    "micro-batch": lambda r: r.training.micro_batch,
    "micro-batches": lambda r: r.micro_batches,
}
KINDS: dict[str, Callable[[Recipe], str]] = {
    "kernel set": lambda r: r.execution.kernels,
    "precision": lambda r: r.execution.precision,
    "schedule": lambda r: r.execution.schedule,
    "recomputation": lambda r: r.execution.recompute,
    "sharded optimizer": lambda r: "yes" if r.execution.sharded_optimizer else "no",
    "overlap": lambda r: r.execution.overlap,
    "norm": lambda r: r.model.norm,
    "activation": lambda r: r.model.activation,
    "positions": lambda r: r.model.positions,
    "grouped queries": lambda r: "yes" if r.model.groups < r.model.heads else "no",
}


@dataclass(frozen=True)
class Covered:
    """numbers: lowest and highest of what was measured; kinds: each that was."""

    accelerators: frozenset[str]
    papers: tuple[str, ...]
    rows: int
    numbers: dict[str, tuple[int, int]]
    kinds: dict[str, frozenset[str]]

    @classmethod
    def of(cls, measured: Iterable[tuple[str, str, Recipe]]) -> "Covered":
        """measured: paper, accelerator and recipe of each."""
        papers, accelerators, found = zip(*measured, strict=True)
        return cls(
            frozenset(accelerators),
            tuple(sorted(set(papers))),
            len(found),
            {name: (min(map(read, found)), max(map(read, found))) for name, read in NUMBERS.items()},
            {name: frozenset(map(read, found)) for name, read in KINDS.items()},
        )

    def outside(self, recipe: Recipe, known: Cluster) -> list[str]:
        """What of a recipe on a cluster no measurement covers, in words."""
        said = []
        if known.accelerator.name not in self.accelerators:
            said.append(
                f"{known.accelerator.name}: never checked against a measurement of training; checked is "
                f"{', '.join(sorted(self.accelerators))}"
            )
        for name, (low, high) in self.numbers.items():
            value = NUMBERS[name](recipe)
            if not low <= value <= high:
                span = f"from {low:,} to {high:,}" if low < high else f"{low:,} alone"
                said.append(f"{name} {value:,}: measured {span}")
        for name, known_kinds in self.kinds.items():
            kind = KINDS[name](recipe)
            if kind not in known_kinds:
                said.append(f"{name} {kind}: measured {', '.join(sorted(known_kinds))}")
        return said


@cache
def covered() -> Covered:
    """By the papers whose times are predicted."""
    return Covered.of(
        (paper.paper, cluster(paper.cluster).accelerator.name, recipe)
        for paper in ALL
        for series in paper
        for recipe in series.recipes
    )
