"""The constants of the cost model, each with its source (common/predict/constants.toml)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType

FILE = Path(__file__).with_name("constants.toml")
KINDS = ("sourced", "measured", "assumed", "fitted")
SOFTWARE = "software."
UNITS = {"1": 1.0, "elements": 1.0, "tokens": 1.0, "us": 1e-6}


@dataclass(frozen=True)
class Constant:
    """One value in SI. row: of a paper, for fitted ones alone."""

    name: str
    value: float
    kind: str
    source: str
    row: str | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"constant {self.name} has kind {self.kind!r}: use one of {', '.join(KINDS)}")
        if not self.source or (self.kind == "fitted") != (self.row is not None):
            raise ValueError(f"constant {self.name}: give a source, and the row if and only if it is fitted")


@dataclass(frozen=True)
class Generation:
    """What accelerators of one generation have in common.

    names: parts of their names. rate: share of the dense peak that long products of 16 bits sustain at `power` W.
    forward, backward: share of the peak that fused attention tends to, for long sequences and wide heads.
    """

    names: tuple[str, ...]
    rate: float
    power: float
    forward: float
    backward: float
    kind: str
    source: str


@dataclass(frozen=True)
class Constants:
    """Values in SI; each is explained in the file. software: by paper, how many times longer operations took with its
    software than the records' measurements say; the only ones fitted to training runs."""

    product_ramp: float
    product_edge: float
    product_overlap: float
    product_start: float
    sustained: float
    power: float
    kernel_bandwidth: float
    kernel_start: float
    attention_start: float
    attention_dim: float
    collective_channels: float
    network_channels: float
    generations: tuple[Generation, ...]
    software: Mapping[str, float]

    def generation(self, accelerator: str) -> Generation | None:
        """That of an accelerator by its name; None for one that belongs to none."""
        return next((g for g in self.generations if any(name in accelerator for name in g.names)), None)


@cache
def table(path: Path = FILE) -> tuple[Constant, ...]:
    """All single constants with their sources. Raises ValueError for one without."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    del entries["generations"]
    entries |= {f"{SOFTWARE}{paper}": entry for paper, entry in entries.pop("software").items()}
    return tuple(Constant(name, entry["value"] * UNITS[entry["unit"]], entry["kind"], entry["source"], entry.get("row"))
                 for name, entry in entries.items())


@cache
def constants(path: Path = FILE) -> Constants:
    """As the file has them."""
    values = {constant.name: constant.value for constant in table(path)}
    generations = tuple(Generation(names=tuple(entry.pop("names")), **entry)
                        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["generations"])
    software = {name.removeprefix(SOFTWARE): values.pop(name) for name in list(values) if name.startswith(SOFTWARE)}
    wanted = {f.name for f in fields(Constants)} - {"generations", "software"}
    if values.keys() != wanted:
        raise ValueError(f"{path.name}: constants {', '.join(sorted(values.keys() ^ wanted))} are unknown or missing")
    return Constants(**values, generations=generations, software=MappingProxyType(software))
