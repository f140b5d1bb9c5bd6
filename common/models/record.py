"""One micro-batch, as every stage of a model sees it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """tokens, labels, positions: int64 (B, S). loss_mask: bool (B, S), which labels count.

    documents: int64 (B, S) or None; tokens attend only within equal ids. samples: the global number of each sequence;
    with seed and step it keys the dropout masks, so they follow the data and not the rank.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    positions: Tensor
    documents: Tensor | None = None
    samples: tuple[int, ...] = ()
    step: int = 0
    seed: int = 0
    _made: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        if isinstance(self.samples, Tensor):
            object.__setattr__(self, "samples", tuple(self.samples.tolist()))
        if len(self.samples) != self.tokens.shape[0]:
            raise ValueError(f"samples names {len(self.samples)} sequences, the micro-batch holds {self.tokens.shape[0]}")

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """make(), the first time that `what` is asked for of this record; later the same object.

        For what every layer derives alike, such as tables of positions.
        """
        if what not in self._made:
            self._made[what] = make()
        return self._made[what]

    def to(self, device: torch.device | str) -> "Record":
        """The same record with its tensors on `device`."""
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)
                 if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **moved)


def random_records(vocab: int, sequence: int, micro_batch: int, count: int) -> list[Record]:
    """`count` micro-batches of random tokens, every one of which counts: for timing, where text does not matter."""
    gen = torch.Generator().manual_seed(1)
    tokens_BS = [torch.randint(vocab, (micro_batch, sequence + 1), generator=gen) for _ in range(count)]
    everywhere, positions = torch.ones(micro_batch, sequence, dtype=torch.bool), torch.arange(sequence)
    return [Record(x[:, :-1], x[:, 1:], everywhere, positions.expand(micro_batch, sequence),
                   samples=tuple(range(i * micro_batch, (i + 1) * micro_batch))) for i, x in enumerate(tokens_BS)]
