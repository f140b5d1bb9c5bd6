"""Tensors with every kind of cut, held as ranks of a layout hold them; their values depend on names alone."""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from common.checkpoint import store
from common.grid import Grid
from common.layout import Layout
from common.parameters import Facts, Slice

LAYERS = 8
KINDS = ("parameters", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Spec:
    """A layout. chunks: per pipeline rank. sharded: each data rank holds an equal run of its stages'
    elements."""

    grid: Grid
    chunks: int = 1
    sharded: bool = False


def facts(tp: int) -> dict[str, Facts]:
    """Of the whole model, in its order."""
    found = {"embedding.tokens": Facts((37, 6), "tp", 0)}  # padded by every tp but 1
    for i in range(LAYERS):
        found |= {
            f"layers.{i}.norm": Facts((6,)),
            f"layers.{i}.qkv": Facts((2, 4, 3, 6), "tp", 0, parts=min(tp, 2)),  # two groups: tp 4 has copies
            f"layers.{i}.out": Facts((6, 8), "tp", 1),
            f"layers.{i}.odd": Facts((5, 7), "tp", 1),  # padded columns
        }
    return found | {"output.norm": Facts((6,)), "output.bias": Facts((37,), "tp", 0)}


def stage_of(name: str, stages: int) -> set[int]:
    """Where a parameter lives; the embedding at both ends, as it is tied."""
    if name.startswith("layers"):
        return {int(name.split(".")[1]) * stages // LAYERS}
    return {0, stages - 1} if name == "embedding.tokens" else {stages - 1}


def whole(kind: str, name: str) -> torch.Tensor:
    gen = torch.Generator().manual_seed(zlib.crc32(f"{kind}.{name}".encode()))
    return torch.randn(facts(1)[name].shape, generator=gen)


def runs(spec: Spec, layout: Layout) -> dict[str, tuple[Facts, int, int]]:
    """(facts, first and last-plus-one element of the stored part) of what this rank holds."""
    pp, mine = spec.grid.pp, {}
    for name, f in facts(spec.grid.tp).items():
        if any(stage % pp == layout.index("pp") for stage in stage_of(name, pp * spec.chunks)):
            mine[name] = f, 0, math.prod(f.local_shape(layout))
    if not spec.sharded:
        return mine
    each = -(-sum(size for _, _, size in mine.values()) // spec.grid.dp)
    at, low, found = 0, each * layout.index("dp"), {}
    for name, (f, _, size) in mine.items():
        start, stop = max(low - at, 0), min(low + each - at, size)
        if start < stop:
            found[name] = f, start, stop
        at += size
    return found


def state(spec: Spec, layout: Layout) -> dict[str, dict[str, Slice]]:
    """By kind and name; the runs of a kind are views of one buffer."""
    found: dict[str, dict[str, Slice]] = {}
    for kind in KINDS:
        held = {name: f.slice(whole(kind, name), layout).reshape(-1)[start:stop]
                for name, (f, start, stop) in runs(spec, layout).items()}
        views = torch.cat([*held.values()]).split([x.numel() for x in held.values()])
        starts = [start for _, start, _ in runs(spec, layout).values()]
        found[kind] = {name: Slice(x, start) for name, x, start in zip(held, views, starts, strict=True)}
    return found


def names(layout: Layout) -> dict[str, Facts]:
    return facts(layout.size("tp"))


def save(context, spec: Spec, folder: str, step: int = 1, **options) -> str:
    layout = Layout(spec.grid, context.rank if context else 0)
    held = state(spec, layout)
    return str(store.save(Path(folder), held, names(layout), layout, {"step": step}, **options))


def load(context, spec: Spec, source: str, target: str = "") -> int:
    """Loads into NaNs; what is logical must be as saved, padding as it was. Then saves under this layout, if
    asked to.

    Returns the number of runs compared.
    """
    layout = Layout(spec.grid, context.rank if context else 0)
    right, held = state(spec, layout), state(spec, layout)
    for part in held.values():
        for x in part.values():
            x.data.fill_(math.nan)
    store.load(Path(source), held, names(layout), layout)
    for kind, part in held.items():
        for name, (f, start, stop) in runs(spec, layout).items():
            real = f.slice(torch.ones(f.shape), layout).reshape(-1)[start:stop].bool()
            assert torch.equal(part[name].data[real], right[kind][name].data[real]), (kind, name)
            assert part[name].data[~real].isnan().all(), (kind, name)
    if target:
        store.save(Path(target), held, names(layout), layout, {"step": 1})
    return sum(map(len, held.values()))
