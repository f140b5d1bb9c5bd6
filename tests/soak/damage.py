"""Checkpoints with one byte changed or one file cut, which must be refused by name and the one before loaded."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from common.checkpoint import store
from common.layout import SERIAL
from common.parameters import Facts, Slice


@dataclass(frozen=True)
class Outcome:
    """Of one case. named: the damaged file, in what was said. fallen_back: to the checkpoint before, loaded as saved."""

    file: str
    kind: str
    at: int
    named: bool
    fallen_back: bool


def save_two(folder: Path) -> tuple[dict, dict[str, Facts]]:
    """Two checkpoints of different numbers; returns the state of the older and its facts."""
    facts = {f"layer.{i}.weight": Facts((8 + i, 6)) for i in range(5)}
    draw = torch.Generator().manual_seed(3)

    def state() -> dict:
        return {kind: {name: Slice(torch.randn(f.shape, generator=draw).view(-1)) for name, f in facts.items()}
                for kind in ("parameters", "exp_avg")}

    older = state()
    for step, held in ((1, older), (2, state())):
        store.save(folder, held, facts, SERIAL, {"step": step})
    return older, facts


def campaign(folder: Path, count: int, seed: int) -> Iterator[Outcome]:
    older, facts = save_two(folder / "whole")
    draw = random.Random(seed)
    for number in range(count):
        here = folder / f"case-{number}"
        shutil.copytree(folder / "whole", here)
        path = draw.choice(sorted((here / "step-00000002").iterdir()))
        kind, at = damage(path, draw)
        said: list[str] = []
        found = store.last_good(here, say=said.append)
        blank = {kind: {name: Slice(torch.zeros_like(x.data)) for name, x in held.items()} for kind, held in older.items()}
        store.load(here / "step-00000001", blank, facts, SERIAL)
        same = all(torch.equal(x.data, blank[kind][name].data) for kind, held in older.items() for name, x in held.items())
        named = len(said) == 1 and str(path.parent) in said[0] and path.name in said[0]
        yield Outcome(path.name, kind, at, named, found == here / "step-00000001" and same)
        shutil.rmtree(here)


def damage(path: Path, draw: random.Random) -> tuple[str, int]:
    """Changes one byte, cuts the file or takes it away; what was done and where."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    kind = draw.choice(("byte", "byte", "byte", "cut", "gone"))
    if kind == "gone":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(content[:at])
    else:
        content[at] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    return kind, at
