"""One micro-batch, as every stage of a model sees it."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


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

    def __post_init__(self):
        if isinstance(self.samples, Tensor):
            object.__setattr__(self, "samples", tuple(self.samples.tolist()))
        if len(self.samples) != self.tokens.shape[0]:
            raise ValueError(f"samples names {len(self.samples)} sequences, the micro-batch holds {self.tokens.shape[0]}")

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def to(self, device: torch.device | str) -> "Record":
        """The same record with its tensors on `device`."""
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)
                 if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **moved)
