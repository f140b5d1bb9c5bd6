"""Runs of a stored part as boxes of the logical tensor.

A rank stores a part of a parameter: one dimension is cut, and perhaps padded. Taken row-major the part is a
line of elements, and the rank holds a run of it: all of it, or under a sharded optimizer a shorter one. Files
hold boxes of the logical tensor, so a run becomes the rest of its first row, whole rows and the beginning of
its last row, each row in the same way: at most 2 n - 1 boxes of a part of n dimensions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from common.layout import Layout
from common.parameters import Facts, Slice

Index = tuple[int, ...]
Box = tuple[Index, Index]  # offset and size in every dimension


@dataclass(frozen=True)
class Part:
    """Where a rank's stored part lies in its logical tensor.

    shape: of the logical tensor. dim: the dimension that is cut. first, last: the logical indices of it, last
    excluded, that the part holds. rows: how many it stores, the padding behind them included.
    """

    shape: Index
    dim: int
    first: int
    last: int
    rows: int

    @classmethod
    def of(cls, facts: Facts, layout: Layout) -> "Part":
        return cls(facts.shape, facts.dim, *facts.local_range(layout), facts.local_size(layout))

    @property
    def stored(self) -> Index:
        """Shape of the part as it is stored."""
        return _with(self.shape, self.dim, self.rows)

    def boxes(self, start: int, stop: int) -> Iterator[Box]:
        """The boxes of the logical tensor that elements `start` to `stop` (excluded) of the part cover.

        Each element is in one box, in order; padding is in none.
        """
        for offset, size in _boxes(self.stored, start, stop):
            at, real = offset[self.dim], min(size[self.dim], self.last - self.first - offset[self.dim])
            if real > 0:
                yield _with(offset, self.dim, self.first + at), _with(size, self.dim, real)


@dataclass(frozen=True)
class Piece:
    """A rank's run of one tensor and the part that it is a run of."""

    part: Part
    slice: Slice

    def __post_init__(self):
        data, size = self.slice.data, math.prod(self.part.stored)
        if data.dim() != 1 or not data.is_contiguous() or not 0 <= self.slice.start <= self.stop <= size:
            raise ValueError(f"a run of shape {tuple(data.shape)} from {self.slice.start} on does not lie "
                             f"in a part of {size} elements: give a contiguous 1-D tensor within it")

    @property
    def stop(self) -> int:
        return self.slice.start + self.slice.data.numel()

    def boxes(self) -> Iterator[Box]:
        return self.part.boxes(self.slice.start, self.stop)

    def view(self, offset: Index, size: Index) -> Tensor:
        """The elements of a box that lies in the run; they share its memory."""
        stored, data = self.part.stored, self.slice.data.detach()
        strides = [math.prod(stored[i + 1:]) for i in range(len(stored))]
        here = _with(tuple(offset), self.part.dim, offset[self.part.dim] - self.part.first)
        at = sum(i * stride for i, stride in zip(here, strides, strict=True)) - self.slice.start
        return data.as_strided(tuple(size), strides, data.storage_offset() + at)


def _boxes(shape: Index, start: int, stop: int) -> Iterator[Box]:
    """Boxes that elements `start` to `stop` of a row-major array of `shape` cover."""
    if start >= stop:
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the whole rows
    if first > last:  # within one row
        yield from _in_row(last, shape, start - last * row, stop - last * row)
        return
    yield from _in_row(first - 1, shape, start - (first - 1) * row, row)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    yield from _in_row(last, shape, 0, stop - last * row)


def _in_row(row: int, shape: Index, start: int, stop: int) -> Iterator[Box]:
    for offset, size in _boxes(shape[1:], start, stop):
        yield (row, *offset), (1, *size)


def _with(index: Index, dim: int, value: int) -> Index:
    return (*index[:dim], value, *index[dim + 1:])
