"""One iteration of fully sharded training at any size: messages, what each may overlap with, and operations.

The model is cut by common/parallel/fully_sharded.py and run by torch's `fully_shard` on fake tensors and a
fake process group; no byte is computed from a formula. Three things differ from a run, and change none of
what is recorded: parameters are cut as meta tensors and become fake ones after, since cutting fake ones into
a thousand parts takes minutes; the CPU device's streams, which do nothing, keep account
(common/trace/streams.py); and a few layers are run, of which one in the middle stands for those left out,
after a check that its neighbour did the same.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor

from common.grid import Grid
from common.layers.context import Context
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.parallel import fully_sharded
from common.parallel.fully_sharded import FullyShardedGradients
from common.precision.policy import precision
from common.recompute.policy import Policy
from common.trace.record import Operation, recording
from common.trace.streams import Streams, Transfer
from common.trace.trace import blank_record
from common.trace.world import TracedLayout, world
from common.training.optimizer import AdamWConfig, Optimizer
from common.training.step import Execution

MIDDLE = 1  # the layer that stands for those left out; the next one is held to it
TRACED = 4  # layers run: the first, two in the middle, the last
Blocks = dict[tuple[str, str], tuple[int, int]]
EXECUTION = Execution(kernels="paper", recompute="full", precision="bf16")


@dataclass(frozen=True)
class FullyShardedTrace:
    """What one rank runs and sends for one micro-batch, and for the update of an iteration.

    parameters: elements of the whole model. state: bytes that stay from step to step on this rank, by kind.
    operations: of the computing stream. Every micro-batch repeats the phases forward, recompute and backward,
    messages and all: parameters are let go after each backward, and gradients reduced in each. A layer is run
    again within the time that its parameters are gathered for backward, so recomputation sends nothing. The
    phases reduce (the norm) and optimizer come once an iteration.
    """

    config: LanguageModelConfig
    grid: Grid
    rank: int
    micro_batch: int
    execution: Execution
    parameters: int
    state: dict[str, int]
    operations: tuple[Operation, ...] = field(repr=False)
    messages: tuple[Transfer, ...] = field(repr=False)

    def totals(self, micro_batches: int = 1) -> dict[tuple[str, str], tuple[int, int]]:
        """(message, phase) -> how many and how many bytes in an iteration of so many micro-batches."""
        number, amount = Counter(), Counter()
        for m in self.messages:
            times = 1 if m.phase in ("reduce", "optimizer") else micro_batches
            number[m.name, m.phase] += times
            amount[m.name, m.phase] += times * m.bytes
        return {key: (number[key], amount[key]) for key in number}

    def beside(self, message: Transfer) -> tuple[Operation, ...]:
        """The operations that may run while the message travels."""
        return self.operations[message.start:message.end]


def _named(kind: type, streams: Streams, module: str):
    """fully_shard's own message of this kind, noted as one for the parameters of `module`."""

    class Named(kind):
        def __call__(self, *args, **kwargs) -> dist.Work | None:
            with streams.sending(module):
                return super().__call__(*args, **kwargs)

    return Named()


def trace(config: LanguageModelConfig, grid: Grid, rank: int = 0, micro_batch: int = 1,
          execution: Execution = EXECUTION, reduce: torch.dtype | None = None,
          layers: int = TRACED) -> FullyShardedTrace:
    """Forward and backward of one micro-batch and the update, as `rank` of data ranks runs them.

    reduce: dtype that gradients travel in; default the main gradients'. layers: how many are run (all, where
    the model has no more). Raises ValueError for what cannot be run fully sharded, and for models whose
    layers are not all alike.
    """
    fully_sharded.check(config, execution, grid)
    units = set(config.layers.units)
    if len(units) > 1 or Policy.parse(execution.recompute).first is not None:
        raise ValueError(f"pattern={config.pattern!r}, recompute={execution.recompute!r}: one layer stands "
                         "for many in a fully sharded trace, so all must be alike and run alike")
    if micro_batch < 1 or layers < TRACED:
        raise ValueError(f"micro_batch={micro_batch}, layers={layers}: needs at least 1 sequence and "
                         f"{TRACED} layers")
    layers = min(layers, config.depth)
    types = precision(execution.precision)
    with world(grid, rank) as layout:
        short = replace(config, pattern=f"[{units.pop()}]*{layers}")
        model, gradients = _model(short, execution, layout, reduce or types.gradients)
        extra = config.depth - layers
        optimizer = Optimizer(_Lengthened(gradients, extra), AdamWConfig())
        optimizer.state()  # made now, so that the recorded update is any but the first
        streams = _step(model, optimizer, layout, micro_batch)
        operations, messages = streams.told_apart()
        if extra:
            operations, messages = _lengthened(operations, messages, streams.blocks, extra)
        parameters = sum(math.prod(facts.shape) * (1 + extra * (_layer(name) == MIDDLE))
                         for name, _, facts in gradients.parameters)
        return FullyShardedTrace(config, grid, rank, micro_batch, execution, parameters, _state(optimizer),
                                 tuple(operations), tuple(messages))


def _model(config: LanguageModelConfig, execution: Execution, layout: Layout,
           reduce: torch.dtype) -> tuple[LanguageModel, FullyShardedGradients]:
    """A sharded model whose parts are fake tensors, and its gradients."""
    types = precision(execution.precision)
    with unset_fake_temporarily():
        context = Context(layout, execution.kernels, dtype=types.main, device="meta")
        model = LanguageModel(config, context, execution.recompute)
        facts = fully_sharded.shard(model, fully_sharded.mesh(layout), types.parameters, reduce)
    model._apply(_fake)
    return model, FullyShardedGradients(model, facts, layout, types.gradients)


@torch.no_grad()
def _fake(p: DTensor) -> DTensor:
    with unset_fake_temporarily():
        part = p.to_local().shape
    return DTensor.from_local(torch.empty(part, dtype=p.dtype), p.device_mesh, p.placements, run_check=False,
                              shape=p.shape, stride=p.stride())


class _Lengthened(FullyShardedGradients):
    """What the rank keeps of the whole model's gradients: the middle layer's parts `extra` times more."""

    def __init__(self, short: FullyShardedGradients, extra: int):
        self.layout = short.layout
        pieces = []
        for layer, members in groupby(short.pieces(), lambda piece: _layer(piece.name)):
            of_layer = list(members)
            for shift in range(extra + 1) if layer == MIDDLE else [extra if layer > MIDDLE else 0]:
                pieces += [replace(p, name=_moved(p.name, shift), value=torch.empty_like(p.value))
                           for p in of_layer]
        self.flat = short.flat.new_empty(sum(p.value.numel() for p in pieces))
        parts = self.flat.split([p.value.numel() for p in pieces])
        self._pieces = [replace(p, gradient=part) for p, part in zip(pieces, parts, strict=True)]


def _step(model: LanguageModel, optimizer: Optimizer, layout: TracedLayout, micro_batch: int) -> Streams:
    """Runs one micro-batch and the update; returns the account of it."""
    record = blank_record(model.config, micro_batch)
    streams = Streams()
    with streams.in_place():
        with torch.no_grad():  # what fully_shard does once, in the first forward, is not recorded
            model(record, {})
        model.reshard()
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_named(DefaultAllGather, streams, name))
                module.set_custom_reduce_scatter(_named(DefaultReduceScatter, streams, name))
        with recording(model, layout) as recorder:
            streams.recorder = recorder
            term = model(record, {})[1]["language"]
            loss = term.sum / term.count
            recorder.phase = "backward"
            loss.backward(torch.empty_like(loss))
            recorder.phase = "reduce"
            optimizer.gradients.clip(1.0)
            recorder.phase = "optimizer"
            optimizer.step(1.0)
    return streams


def _state(optimizer: Optimizer) -> dict[str, int]:
    """Bytes that the rank keeps from step to step, from the objects that hold them."""
    pieces, moments = optimizer.pieces.values(), optimizer.adam.state.values()
    return {
        "main weights": sum(p.value.nbytes for p in pieces),
        "gradients": optimizer.gradients.flat.nbytes,
        "first moments": sum(m["exp_avg"].nbytes for m in moments),
        "second moments": sum(m["exp_avg_sq"].nbytes for m in moments),
        "step counters": sum(m["step"].nbytes for m in moments),
    }


def _lengthened(ran: list[Operation], sent: list[Transfer], blocks: Blocks,
                extra: int) -> tuple[list[Operation], list[Transfer]]:
    """Operations and messages with the block of the middle layer in its place `extra` times more, forward and
    backward.

    A layer's block reaches from the wait for its parameters to the wait for the next layer's. Windows of
    messages are kept as distances from where they were issued, the same wherever the blocks around are.
    """
    forward, after_forward, backward, after_backward = (
        blocks[phase, f"layers.{MIDDLE + i}"]
        for phase, i in (("forward", 0), ("forward", 1), ("backward", 0), ("backward", -1)))
    _check_alike(ran, sent, blocks)
    end = len(ran), len(sent)
    parts = [((0, 0), after_forward, 0)]
    parts += [(forward, after_forward, shift) for shift in range(1, extra + 1)]
    parts += [(after_forward, backward, extra)]
    parts += [(backward, after_backward, shift) for shift in range(extra, 0, -1)]
    parts += [(backward, end, 0)]
    operations: list[Operation] = []
    messages: list[Transfer] = []
    for (first, first_message), (last, last_message), shift in parts:
        moved = len(operations) - first
        operations += [_shifted(o, shift) for o in ran[first:last]]
        for m in sent[first_message:last_message]:
            module = _moved(m.module, shift)
            copies = tuple(_shifted(o, shift) for o in m.copies)
            messages.append(replace(m, module=module, start=m.start + moved, end=m.end + moved,
                                    issued=m.issued + moved, copies=copies))
    return operations, messages


def _layer(name: str) -> int:
    """The layer that a dotted name begins with; -1 for what stands outside the layers."""
    first, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if first == "layers" else -1


def _moved(name: str, shift: int) -> str:
    """The dotted name for the layer `shift` further on; unchanged outside the layers."""
    layer = _layer(name)
    return name if layer < 0 else f"layers.{layer + shift}{name.removeprefix(f'layers.{layer}')}"


def _shifted(o: Operation, shift: int) -> Operation:
    return replace(o, module=_moved(o.module, shift), parts=tuple(_shifted(part, shift) for part in o.parts))


def _check_alike(ran: list[Operation], sent: list[Transfer], blocks: Blocks) -> None:
    """The two layers in the middle must have done the same, else one cannot stand for others."""
    for phase, step in (("forward", 1), ("backward", -1)):
        seen = []
        for layer in (MIDDLE, MIDDLE + 1):
            first, first_message = blocks[phase, f"layers.{layer}"]
            last, last_message = blocks[phase, f"layers.{layer + step}"]
            seen.append(([(o.name, o.inputs, o.outputs) for o in ran[first:last]],
                         [(m.name, m.bytes, m.start - m.issued, m.end - m.issued, m.issued - first)
                          for m in sent[first_message:last_message]]))
        assert seen[0] == seen[1], f"layers {MIDDLE} and {MIDDLE + 1} differ in {phase}"
