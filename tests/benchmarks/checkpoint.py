"""What a checkpoint beside training keeps training from, against one that training waits for: the same state on the disk."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from common.checkpoint import store
from common.device import keep_freed_memory
from common.layout import SERIAL
from common.parameters import Facts, Slice

PAIRS = 7
SHAPE = (4096, 4096)  # of a weight, 64 MiB in fp32


@dataclass(frozen=True)
class Contest:
    """bytes: of the state at least. most: the pause over the time of a save that training waits for."""

    name: str
    bytes: int = 1 << 30
    most: float = 0.1


CONTESTS = (Contest("checkpoint, 1 GiB beside training"),)


def run(contest: Contest) -> dict:
    """Alternated; a pause is what start_save takes, the rest is waited for before the next."""
    keep_freed_memory()
    kinds = ("parameters", "exp_avg", "exp_avg_sq")
    layers = -(-contest.bytes // (len(kinds) * 4 * SHAPE[0] * SHAPE[1]))
    facts = {f"layer.{i}.weight": Facts(SHAPE) for i in range(layers)}
    state = {kind: {name: Slice(torch.randn(SHAPE[0] * SHAPE[1])) for name in facts} for kind in kinds}
    pauses, waits = [], []
    with tempfile.TemporaryDirectory(prefix=".checkpoints-", dir=Path.cwd()) as folder:
        for pair in range(-1, PAIRS):  # the first is not counted
            start = time.perf_counter()
            store.save(Path(folder), state, facts, SERIAL, {"step": 1}, keep=1)
            middle = time.perf_counter()
            saving = store.start_save(Path(folder), state, facts, SERIAL, {"step": 2}, keep=1)
            end = time.perf_counter()
            saving.wait()
            if pair >= 0:
                waits.append(middle - start)
                pauses.append(end - middle)
    return {"contest": contest.name, "bytes": len(kinds) * layers * 4 * SHAPE[0] * SHAPE[1], "most": contest.most,
            "pauses_s": pauses, "waits_s": waits}
