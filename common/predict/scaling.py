"""Pieces at other sizes of micro-batch and tensor axis, from traces at a few sizes.

Every number of a trace (a dim, FLOPs, bytes) is a sum of terms that are constant, grow with the micro-batch b, shrink with
the tensor size t, or both: a + b x + y / t + b z / t. Traces at two sizes of each give all four exactly, but for numbers
that are rounded (a vocabulary that t does not divide) and peaks. A peak is the largest of several such sums, and so at
most what lies on the line between two sizes: traces are far apart, so that what is asked for lies between them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from common.models.config import LanguageModelConfig
from common.predict.pieces import Pass, Piece, Pieces, Way, pieces
from common.trace.record import Operation

SMALL, LARGE = (1, 2), 16
"""Micro-batches that are traced: one of the small ones and the large one. 2 where 1 is another kind of trace, as with
copies that a single sequence does not need."""


class Scaler:
    """Makes pieces as `pieces` does. sizes: of the tensor axis, all that will be asked for.

    One size is traced as it is. Sizes at which ranks hold copies of key-value groups, a single group or a single head are
    other kinds of trace, scaled apart.
    """

    def __init__(self, model: LanguageModelConfig, sizes: Iterable[int]):
        kinds: dict[tuple[bool, ...], list[int]] = {}
        for t in sorted(set(sizes)):
            kinds.setdefault((t == 1, t > model.groups, t == model.groups, t == model.heads), []).append(t)
        self._bases: dict[int, tuple[int, ...]] = {}
        for members in kinds.values():
            even = [t for t in members if model.vocab % t == 0]
            ends = even if len(even) > 1 else members
            self._bases |= {t: tuple(sorted({ends[0], ends[-1]})) for t in members}
        self._made = cache(self._make)

    def __call__(self, model: LanguageModelConfig, unit: str, way: Way, alone: bool = False) -> Pieces:
        return self._made(replace(model, pattern=f"[{unit}]*3"), unit, way, alone)

    def _make(self, model: LanguageModelConfig, unit: str, way: Way, alone: bool) -> Pieces:
        sizes = self._bases[way.tp]
        sizes = (way.tp,) if way.tp in sizes else sizes
        for batches in [(1,)] if way.micro_batch == 1 else [(small, LARGE) for small in SMALL]:
            if way.tp in sizes and way.micro_batch in batches:
                return pieces(model, unit, way, alone)
            base = [pieces(model, unit, replace(way, tp=t, micro_batch=b), alone) for t in sizes for b in batches]
            parts = [[getattr(p, name) for p in base] for name in ("embedding", "output", "layer")]
            if all(_alike(part) for part in parts):
                weights = np.outer(_weights([1 / t for t in sizes], 1 / way.tp), _weights(batches, way.micro_batch))
                return Pieces(*(_scaled(part, weights.ravel(), way.tp) for part in parts))
        return pieces(model, unit, way, alone)  # another kind of trace, which nothing here stands for


def _weights(points: Iterable[float], at: float) -> np.ndarray:
    """What the values at one or two points count for in the value of the line through them."""
    points = list(points)
    if len(points) == 1:
        return np.ones(1)
    low, high = points
    return np.array([high - at, at - low]) / (high - low)


def _alike(base: list[Piece]) -> bool:
    return len({_kind(piece) for piece in base}) == 1


def _kind(piece: Piece) -> tuple:
    """All of a piece that is not a number."""
    return (*(_pass_kind(p) for p in (piece.forward, piece.backward)), tuple(sorted(piece.saved)), tuple(sorted(piece.state)))


def _pass_kind(one: Pass) -> tuple:
    return (tuple(map(_operation_kind, one.operations)),
            tuple((m.name, m.group, m.dtype, m.phase, m.module, m.start, m.end) for m in one.messages))


def _operation_kind(o: Operation) -> tuple:
    return (o.name, o.phase, o.module, o.dtype, tuple(map(len, o.inputs)), tuple(map(len, o.outputs)),
            tuple(map(_operation_kind, o.parts)))


def _scaled(base: list[Piece], weights: np.ndarray, tp: int) -> Piece:
    values = np.rint(weights @ np.array([list(_numbers(piece)) for piece in base], dtype=float)).astype(np.int64).tolist()
    return _with(base[0], iter(values), tp)


def _numbers(piece: Piece) -> Iterator[int]:
    for one in (piece.forward, piece.backward):
        for operation in one.operations:
            yield from _operation_numbers(operation)
        yield from (m.bytes for m in one.messages)
    yield from (piece.parameters, piece.logical, piece.shared, piece.moment)
    for sizes in (piece.state, piece.saved):
        yield from (sizes[name] for name in sorted(sizes))


def _operation_numbers(o: Operation) -> Iterator[int]:
    for shape in (*o.inputs, *o.outputs):
        yield from shape
    yield from (o.flops, o.read, o.written)
    for part in o.parts:
        yield from _operation_numbers(part)


def _with(piece: Piece, values: Iterator[int], tp: int) -> Piece:
    """The piece with other numbers, in the order of `_numbers`."""
    passes = []
    for one in (piece.forward, piece.backward):
        operations = tuple(_operation_with(o, values) for o in one.operations)
        passes.append(Pass(operations, tuple(replace(m, bytes=next(values), size=tp) for m in one.messages)))
    numbers = {name: next(values) for name in ("parameters", "logical", "shared", "moment")}
    state, saved = ({name: next(values) for name in sorted(sizes)} for sizes in (piece.state, piece.saved))
    return Piece(*passes, state=state, saved=saved, **numbers)


def _operation_with(o: Operation, values: Iterator[int]) -> Operation:
    inputs, outputs = (tuple(tuple(next(values) for _ in shape) for shape in shapes) for shapes in (o.inputs, o.outputs))
    flops, read, written = next(values), next(values), next(values)
    return replace(o, inputs=inputs, outputs=outputs, flops=flops, read=read, written=written,
                   parts=tuple(_operation_with(part, values) for part in o.parts))
