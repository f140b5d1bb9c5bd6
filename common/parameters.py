"""Parameters carry their facts: how each is cut, who holds copies, how it starts.

Gradient reduction, the global norm, the optimizer, checkpoints and export read these facts and nothing else.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from common.layout import Layout
from common.random import generator, key

BLOCK = 64  # rows drawn at a time: a rank draws only the blocks that its slice touches


@dataclass(frozen=True)
class Normal:
    """Independent normal entries with standard deviation `std`."""

    std: float

    def draw(self, shape: tuple[int, ...], gen: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=gen) * self.std


@dataclass(frozen=True)
class Constant:
    value: float

    def draw(self, shape: tuple[int, ...], gen: torch.Generator) -> Tensor:
        return torch.full(shape, float(self.value))


@dataclass(frozen=True)
class Facts:
    """What everyone needs to know of a parameter.

    shape: of the whole logical tensor, unpadded.
    axis, dim: the grid axis that cuts dimension `dim`; axis None means replicated on every rank of the model.
    parts: into how many parts the axis cuts it, when fewer than the axis has ranks (key-value groups < tp).
    partial: axes over which the gradient of a replicated parameter is a partial sum (norms under sequence
        parallelism): it must be summed, the parameter itself counts once.
    copied: the last stage holds a copy of this parameter of the first (tied embeddings): their gradients are summed.
    copy_of: this is that copy, and this the name of the original; it starts equal, stays equal, and is not counted.
    """

    shape: tuple[int, ...]
    axis: str | None = None
    dim: int = 0
    parts: int | None = None
    partial: tuple[str, ...] = ()
    expert: bool = False
    copied: bool = False
    copy_of: str | None = None
    decay: bool = True
    init: Normal | Constant = field(default_factory=lambda: Normal(0.02))

    def cuts(self, layout: Layout) -> int:
        return 1 if self.axis is None else self.parts or layout.size(self.axis)

    def copies(self, layout: Layout) -> int:
        """How many ranks of the cutting axis hold the same part."""
        return 1 if self.axis is None else layout.size(self.axis) // self.cuts(layout)

    def local_size(self, layout: Layout) -> int:
        """Rows of dimension `dim` that each rank stores; the last ranks are padded when it does not divide."""
        return math.ceil(self.shape[self.dim] / self.cuts(layout))

    def local_shape(self, layout: Layout) -> tuple[int, ...]:
        return tuple(self.local_size(layout) if i == self.dim else n for i, n in enumerate(self.shape))

    def local_range(self, layout: Layout) -> tuple[int, int]:
        """First and last-plus-one logical index of dimension `dim` that this rank really holds."""
        part = 0 if self.axis is None else layout.index(self.axis) // self.copies(layout)
        each = self.local_size(layout)
        total = self.shape[self.dim]
        return min(part * each, total), min((part + 1) * each, total)

    def first_copy(self, layout: Layout) -> bool:
        """Whether this rank is the one that counts the parameter, among those of the model that hold it."""
        if self.copy_of is not None:
            return False
        axis = self.axis or ("etp" if self.expert else "tp")
        copies = self.copies(layout) if self.axis else layout.size(axis)
        return layout.index(axis) % copies == 0

    def slice(self, whole: Tensor, layout: Layout) -> Tensor:
        """This rank's part of a whole logical tensor, padded with zeros to the stored shape."""
        if tuple(whole.shape) != self.shape:
            raise ValueError(f"a tensor of shape {tuple(whole.shape)} was given for a parameter of shape {self.shape}")
        first, last = self.local_range(layout)
        part = whole.narrow(self.dim, first, last - first)
        missing = self.local_size(layout) - (last - first)
        if missing:
            pad = list(part.shape)
            pad[self.dim] = missing
            part = torch.cat([part, part.new_zeros(pad)], dim=self.dim)
        return part


@dataclass(frozen=True)
class Slice:
    """A run of elements of a rank's stored part of a parameter (or of its optimizer state), the part taken row-major.

    data: 1-D, sharing memory with what it is a view of. start: index of its first element in the flattened part. The
    whole part is Slice(part.view(-1)); a sharded optimizer holds shorter runs.
    """

    data: Tensor
    start: int = 0


def parameter(facts: Facts, layout: Layout, dtype: torch.dtype, device: torch.device | str | None = None) -> nn.Parameter:
    """This rank's part of a parameter, not yet initialised."""
    p = nn.Parameter(torch.empty(facts.local_shape(layout), dtype=dtype, device=device))
    p.facts = facts
    return p


def named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Facts]]:
    """Every parameter once, with its layout-independent name and its facts; a copy has the name of its original."""
    for name, p in model.named_parameters():
        yield p.facts.copy_of or name, p, p.facts


@torch.no_grad()
def initialise(model: nn.Module, layout: Layout, seed: int) -> None:
    """Fills every parameter; values depend on the seed, the parameter's name and the index, never on the layout."""
    for name, p, facts in named(model):
        first, last = facts.local_range(layout)
        p.zero_()
        for block in range(first // BLOCK, math.ceil(last / BLOCK)):
            low, high = block * BLOCK, min((block + 1) * BLOCK, facts.shape[facts.dim])
            shape = tuple(high - low if i == facts.dim else n for i, n in enumerate(facts.shape))
            drawn = facts.init.draw(shape, generator(key(seed, name, block)))
            begin, end = max(low, first), min(high, last)
            p.narrow(facts.dim, begin - first, end - begin).copy_(drawn.narrow(facts.dim, begin - low, end - begin))


def count(model: nn.Module) -> int:
    """Logical parameters of the whole model that this rank's modules belong to, copies and padding left out."""
    return sum(math.prod(f.shape) for _, _, f in named(model) if f.copy_of is None)
