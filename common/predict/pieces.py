"""The pieces that stages are made of: what stands before the layers, a layer, what stands behind them.

Each is traced once, with the real code at its real size (common/trace), in a model of three layers of its kind: a layer
in the middle of a model runs and keeps the same wherever it stands. A stage is its pieces one after the other.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from common.grid import Grid
from common.layers.context import Context
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.pipeline.wire import Cut
from common.precision.policy import precision
from common.recompute.policy import Policy
from common.trace.record import Message, Operation
from common.trace.trace import Trace, blank_record, trace
from common.trace.world import world
from common.training.step import Execution

WEIGHT_GRADIENT = "common.weight_gradient"
BIAS_GRADIENT = ("aten.sum", "aten.add_")  # behind its weight's, in the same layer


@dataclass(frozen=True)
class Way:
    """All that decides what a piece of a model runs on one rank. recompute: of the piece's own layer, all of it or none."""

    tp: int
    micro_batch: int
    kernels: str
    sequence_parallel: bool
    recompute: str
    precision: str
    overlap: bool = True

    @classmethod
    def of(cls, execution: Execution, tp: int, micro_batch: int, recompute: str) -> "Way":
        return cls(tp, micro_batch, execution.kernels, execution.sequence_parallel, recompute, execution.precision,
                   execution.overlaps("tp"))


@dataclass(frozen=True)
class Pass:
    """Operations in order, and messages whose start and end count the operations of this pass before them."""

    operations: tuple[Operation, ...] = ()
    messages: tuple[Message, ...] = ()

    @classmethod
    def cut(cls, operations: Sequence[Operation], messages: Sequence[Message],
            chosen: Callable[[Operation | Message], bool]) -> "Pass":
        """The part of a longer record that `chosen` names."""
        before, count = [], 0
        for operation in operations:
            before.append(count)
            count += chosen(operation)
        before.append(count)
        sent = tuple(replace(m, start=before[m.start], end=before[m.start if m.end is None else m.end])
                     for m in messages if chosen(m))
        return cls(tuple(o for o in operations if chosen(o)), sent)

    def split(self) -> tuple["Pass", "Pass"]:
        """Without the weight gradients, and they alone, for schedules that put them off."""
        later, module = set(), None
        for i, o in enumerate(self.operations):
            if o.name == WEIGHT_GRADIENT:
                later.add(i)
                module = o.module
            elif o.module == module and o.name in BIAS_GRADIENT:
                later.add(i)
            else:
                module = None
        before = [0]
        for i in range(len(self.operations)):
            before.append(before[-1] + (i not in later))
        sent = tuple(replace(m, start=before[m.start], end=before[m.end]) for m in self.messages)
        return (Pass(tuple(o for i, o in enumerate(self.operations) if i not in later), sent),
                Pass(tuple(o for i, o in enumerate(self.operations) if i in later)))

    @property
    def flops(self) -> int:
        return sum(o.flops for o in self.operations)


@dataclass(frozen=True)
class Piece:
    """forward, backward: of one micro-batch; recomputation stands in its place in backward.

    parameters: elements that one rank stores; state: bytes of them that stay from step to step, by kind, where nothing is
    shared among data ranks. saved: bytes kept from forward for backward, by tensor. shared: elements whose gradients are
    summed over ranks of the model first. moment: the most bytes that a pass holds for a moment beyond what is kept, with
    one layer in front of an output or behind an embedding. logical: parameters of all tensor ranks together.
    """

    forward: Pass = field(repr=False)
    backward: Pass = field(repr=False)
    parameters: int
    logical: int
    shared: int
    state: dict[str, int]
    saved: dict[str, int]
    moment: int

    @property
    def kept(self) -> int:
        return sum(self.saved.values())

    @cached_property
    def halves(self) -> tuple[Pass, Pass]:
        """Backward without the weight gradients, and they alone."""
        return self.backward.split()


@dataclass(frozen=True)
class Pieces:
    """embedding and output: what a first and a last stage have besides their layers."""

    embedding: Piece
    output: Piece
    layer: Piece


def pieces(model: LanguageModelConfig, unit: str, way: Way, alone: bool = False) -> Pieces:
    """Of a model whose layers are all `unit`; its depth does not matter. alone: one stage holds all of it, so that an
    output that is tied to the embedding has no table of its own.
    """
    return _pieces(replace(model, pattern=f"[{unit}]*3"), way, alone)


@cache
def _pieces(model: LanguageModelConfig, way: Way, alone: bool) -> Pieces:
    plain = replace(way, recompute="none")  # what stands outside the layers is never made again
    layer = _inside(_traced(model, way, 1, 2))
    return Pieces(*_ends(model, plain, alone), layer)


@cache
def _ends(model: LanguageModelConfig, way: Way, alone: bool) -> tuple[Piece, Piece]:
    first, middle, last = (_traced(model, way, i, i + 1) for i in range(3))
    output = _outside(last, middle)
    if alone and model.tied:
        whole = _traced(replace(model, pattern=f"[{model.layers.units[0]}]"), way, 0, 1)
        output = replace(output, parameters=whole.parameters - first.parameters, state=_beyond(whole.state, first.state))
    return _outside(first, middle), output


@cache
def updates(model: LanguageModelConfig, unit: str, way: Way) -> tuple[tuple[Operation, ...], int]:
    """What one layer's parameters cost once an iteration, norm, clipping and step, and how many a rank stores."""
    found = _traced(replace(model, pattern=f"[{unit}]*3"), way, 1, 2)
    return tuple(o for o in found.operations if o.phase == "optimizer"), found.parameters


@cache
def _traced(model: LanguageModelConfig, way: Way, first: int, last: int) -> Trace:
    return trace(model, Grid(tp=way.tp), micro_batch=way.micro_batch, kernels=way.kernels,
                 sequence_parallel=way.sequence_parallel, recompute=way.recompute,
                 dtype=precision(way.precision).parameters, first=first, last=last, overlap=way.overlap)


def _in_layer(item: Operation | Message) -> bool:
    return item.module.startswith("layers.")


def _passes(found: Trace, chosen: Callable[[Operation | Message], bool]) -> tuple[Pass, Pass]:
    def of(*phases: str) -> Pass:
        return Pass.cut(found.operations, found.messages, lambda x: x.phase in phases and chosen(x))

    return of("forward"), of("recompute", "backward")


def _shared(found: Trace) -> int:
    """Elements of the messages that sum gradients over ranks of the model; main gradients have 4 bytes or more."""
    return sum(m.bytes // (8 if m.dtype == "float64" else 4) for m in found.sent("reduce"))


def _moment(found: Trace) -> int:
    return max(found.kernel_peaks["forward"], found.kernel_peaks["backward"]) - sum(found.saved.values())


def _inside(middle: Trace) -> Piece:
    return Piece(*_passes(middle, _in_layer), middle.parameters, middle.logical_parameters, _shared(middle),
                 dict(middle.state), dict(middle.saved), _moment(middle))


def _outside(end: Trace, middle: Trace) -> Piece:
    """What a trace of an end of the model has beyond a layer."""
    return Piece(*_passes(end, lambda x: not _in_layer(x)), end.parameters - middle.parameters,
                 end.logical_parameters - middle.logical_parameters, _shared(end) - _shared(middle),
                 _beyond(end.state, middle.state), _beyond(end.saved, middle.saved), _moment(end))


def _beyond(whole: dict[str, int], part: dict[str, int]) -> dict[str, int]:
    found = Counter(whole)
    found.subtract(part)
    return {name: size for name, size in found.items() if size}


@dataclass(frozen=True)
class Border:
    """What crosses from one stage to the next for one micro-batch. bytes: that one rank sends. joined: bytes of the whole
    tensor, where tensor ranks send slices and gather them on arrival, else 0."""

    bytes: int
    joined: int

    def times(self, factor: int) -> "Border":
        return Border(factor * self.bytes, factor * self.joined)


@cache
def border(model: LanguageModelConfig, way: Way, scatter_gather: bool) -> Border:
    """As the executor cuts what a stage hands on (common/pipeline/wire.py)."""
    short = replace(model, pattern="[*]*3")
    with world(Grid(tp=way.tp)) as layout:
        context = Context(layout, way.kernels, way.sequence_parallel, precision(way.precision).parameters)
        shapes = LanguageModel(short, context, first=1, last=2).carry(blank_record(model, way.micro_batch)).values()
        cut = Cut(layout.group("tp"), scatter_gather)
        sliced = sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes if cut.sliced(s))
        return Border(sum(cut.count(s) * s.dtype.itemsize for s in shapes), sliced)


def recompute_at(policy: str, layer: int) -> str:
    """The policy of one layer by its index in the model, written for all layers."""
    return ",".join(sorted(Policy.parse(policy).at(layer))) or "none"
