"""What a schedule is: for each pipeline rank, the actions it runs, in order, packed as numbers.

The same object is validated, simulated, drawn and executed. A model is cut into p x v stages; rank r holds v chunks of
it, chunk c being stage c p + r. Stage s passes activations to stage s + 1 and gradients to stage s - 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Kind:
    """A kind of action on one micro-batch in one stage.

    needs: the kind that must have run before on the same micro-batch and stage. message: where the stage's input comes
    from: -1 the stage before (activations), +1 the stage after (gradients), 0 none. Its output goes the other way.
    serves: which work of a backward pass it does, so that each is done once.
    """

    letter: str
    needs: str | None
    message: int
    serves: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "forward": Kind("F", None, -1),
    "backward": Kind("B", "forward", +1, ("input gradient", "weight gradient")),
    "input_gradient": Kind("I", "forward", +1, ("input gradient",)),
    "weight_gradient": Kind("W", "input_gradient", 0, ("weight gradient",)),
}
CODE = {name: code for code, name in enumerate(KINDS)}
NAMES = tuple(KINDS)
KEEP = 1  # flag of a forward action: keep all activations of this micro-batch, whatever the recomputation policy


class Action(NamedTuple):
    kind: str
    chunk: int
    micro_batch: int
    flags: int = 0


@dataclass(frozen=True)
class Schedule:
    """actions: for each rank an int32 array (n, 4) with columns kind code, chunk, micro-batch, flags.

    buffers: how many messages of one channel may be under way, sent and not consumed, before its sender waits. 1 is
    enough for each of common/pipeline/schedules.py: none locks, since what a rank does before it consumes a message
    never needs what the sender does after its next one; and none loses time while a message takes no longer than the
    shortest action. Slower messages want more.
    """

    name: str
    ranks: int
    chunks: int
    micro_batches: int
    actions: tuple[np.ndarray, ...] = field(repr=False)
    buffers: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def stage(self, rank: int, chunk: int) -> int:
        return chunk * self.ranks + rank

    def of(self, rank: int) -> Iterator[Action]:
        """The actions of one rank, in order."""
        for code, chunk, micro_batch, flags in self.actions[rank].tolist():
            yield Action(NAMES[code], chunk, micro_batch, flags)


def pack(kind: str, chunk: np.ndarray | int, micro_batch: np.ndarray, flags: int = 0) -> np.ndarray:
    """Actions of one kind as an array (n, 4)."""
    packed = np.empty((len(micro_batch), 4), dtype=np.int32)
    packed[:, 0], packed[:, 1], packed[:, 2], packed[:, 3] = CODE[kind], chunk, micro_batch, flags
    return packed


def alternate(forwards: np.ndarray, backwards: np.ndarray, warmup: int) -> np.ndarray:
    """`warmup` forwards, then one forward and one backward in turn, then the backwards that are left."""
    steady = len(forwards) - warmup
    pairs = np.stack([forwards[warmup:], backwards[:steady]], axis=1).reshape(-1, 4)
    return np.concatenate([forwards[:warmup], pairs, backwards[steady:]])
