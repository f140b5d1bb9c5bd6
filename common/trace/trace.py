"""One training step of one rank at any size, run on fake tensors and recorded.

The model, its layers, gradients and optimizer are those that train; nothing here is computed from a formula.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from common.grid import Grid
from common.layers.context import Context
from common.models.config import LanguageModelConfig, check
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.parameters import count
from common.recompute.meter import measuring
from common.trace.record import Message, Operation, Recorder, recording
from common.trace.world import world
from common.training.optimizer import AdamWConfig, Optimizer

STATISTICS = ("norm.statistics", "attention.statistics")  # small; arXiv:2205.05198, section 4, leaves them out


@dataclass(frozen=True)
class Trace:
    """What one rank of `grid` holds, keeps, runs and sends for one micro-batch of layers first .. last - 1.

    parameters: elements that this rank stores, padding included. logical_parameters: elements of the same
    layers over all tensor ranks, each counted once. state: bytes that stay from step to step, by kind. saved:
    bytes kept from forward for backward, by tensor name, once per storage, weights left out. peaks: most
    bytes alive in each phase of what was made in it and before, parameters and state left out. kernel_peaks: the same,
    without what lives inside a fused kernel alone.
    """

    config: LanguageModelConfig
    grid: Grid
    rank: int
    micro_batch: int
    kernels: str
    sequence_parallel: bool
    recompute: str
    dtype: str
    first: int
    last: int
    parameters: int
    logical_parameters: int
    state: dict[str, int]
    saved: dict[str, int]
    peaks: dict[str, int]
    kernel_peaks: dict[str, int]
    operations: tuple[Operation, ...] = field(repr=False)
    messages: tuple[Message, ...] = field(repr=False)

    @property
    def state_bytes(self) -> int:
        return sum(self.state.values())

    @property
    def saved_bytes(self) -> int:
        """Bytes kept for backward, statistics left out: what the papers count."""
        return sum(size for name, size in self.saved.items() if name not in STATISTICS)

    @property
    def statistics_bytes(self) -> int:
        return sum(self.saved.get(name, 0) for name in STATISTICS)

    def flops(self, *phases: str, module: str = "") -> int:
        """Of the given phases (none: all), in the module of that dotted name and those inside it."""
        return sum(o.flops for o in self.operations if _within(o, phases, module))

    def traffic(self, *phases: str, module: str = "") -> int:
        """Bytes read and written by operations."""
        return sum(o.read + o.written for o in self.operations if _within(o, phases, module))

    def sent(self, *phases: str, group: str | None = None, module: str = "") -> tuple[Message, ...]:
        """Messages of the given phases, to one group or to all."""
        return tuple(m for m in self.messages if _within(m, phases, module) and group in (None, m.group))

    def messages_by_kind(self, *phases: str) -> dict[tuple[str, str], tuple[int, int]]:
        """(operation, group) -> how many messages, how many bytes."""
        return _total(self.sent(*phases), lambda m: (m.name, m.group), lambda m: m.bytes)

    def flops_by_module(self, *phases: str, depth: int | None = None) -> dict[str, int]:
        """Module name, cut to `depth` parts -> FLOPs."""
        found = [o for o in self.operations if o.flops and _within(o, phases, "")]
        named = _total(found, lambda o: ".".join(o.module.split(".")[:depth]), lambda o: o.flops)
        return {name: flops for name, (_, flops) in named.items()}

    def operations_by_kind(self, *phases: str) -> dict[str, tuple[int, int, int]]:
        """Operation name -> how many, FLOPs, bytes read and written."""
        chosen = [o for o in self.operations if _within(o, phases, "")]
        work = _total(chosen, lambda o: o.name, lambda o: o.flops)
        moved = _total(chosen, lambda o: o.name, lambda o: o.read + o.written)
        return {name: (*work[name], moved[name][1]) for name in work}

    def to_dict(self, detail: bool = True) -> dict:
        """Plain values for JSON; without detail, operations and messages are given as totals."""
        whole = asdict(self)
        if not detail:
            whole["operations"] = self.operations_by_kind()
            whole["messages"] = {" ".join(kind): total for kind, total in self.messages_by_kind().items()}
        return whole


def _within(item: Operation | Message, phases: tuple[str, ...], module: str) -> bool:
    inside = not module or item.module == module or item.module.startswith(module + ".")
    return inside and (not phases or item.phase in phases)


def _total(items, key: Callable, value: Callable) -> dict:
    number, amount = Counter(), Counter()
    for item in items:
        number[key(item)] += 1
        amount[key(item)] += value(item)
    return {k: (number[k], amount[k]) for k in number}


def trace(config: LanguageModelConfig, grid: Grid, rank: int = 0, micro_batch: int = 1,
          kernels: str = "paper", sequence_parallel: bool = False, recompute: str = "none",
          dtype: torch.dtype = torch.bfloat16, first: int = 0, last: int | None = None, overlap: bool = True) -> Trace:
    """Forward and backward of one micro-batch, the reduction of gradients and the update, as `rank` runs them.

    Layers first .. last - 1 of the model (last None: to the end), with the embedding if first is 0 and the
    output if last is the end. Parameters and activations have `dtype`; main parameters, gradients and moments
    at least fp32. Raises ValueError for a model, a grid and settings that do not fit together.
    """
    last = config.depth if last is None else last
    check(config, grid.tp, sequence_parallel, kernels, recompute)
    if not 0 <= first < last <= config.depth:
        raise ValueError(f"first={first}, last={last}: layers 0 to {config.depth} of this model, "
                         "first below last")
    if micro_batch < 1:
        raise ValueError(f"micro_batch={micro_batch}: needs at least 1 sequence")
    with world(grid, rank) as layout:
        context = Context(layout, kernels, sequence_parallel, dtype, overlap=overlap)
        model = LanguageModel(config, context, recompute, first, last)
        gradients = Gradients([model], layout, torch.promote_types(dtype, torch.float32))
        optimizer = Optimizer(gradients, AdamWConfig())
        optimizer.state()  # made now, so that the recorded update is any but the first
        with recording(model, layout) as recorder:
            saved, peaks, kernel_peaks = _step(model, gradients, optimizer, recorder, micro_batch)
        return Trace(
            config, grid, rank, micro_batch, kernels, sequence_parallel, recompute,
            str(dtype).removeprefix("torch."), first, last, sum(p.numel() for p in model.parameters()),
            count(model), _state(model, gradients, optimizer), saved, peaks, kernel_peaks,
            tuple(recorder.operations), tuple(recorder.messages))


def layer_trace(config: LanguageModelConfig, grid: Grid, **settings) -> Trace:
    """`trace` of one layer from the middle of the model, without embedding and output; same settings."""
    if config.depth < 3:
        raise ValueError(f"pattern={config.pattern!r} has {config.depth} layers: "
                         "a middle layer needs at least 3")
    middle = config.depth // 2
    return trace(config, grid, first=middle, last=middle + 1, **settings)


def _step(model: LanguageModel, gradients: Gradients, optimizer: Optimizer, recorder: Recorder,
          micro_batch: int) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Runs one step under the recorder; returns saved bytes by name, and both kinds of peaks by phase."""
    record = blank_record(model.config, micro_batch)
    carry = _carry(model, record)
    peaks, kernel_peaks = {}, {}

    def mark(phase: str) -> None:
        kernel_peaks[phase] = recorder.live.settled
        peaks[phase] = recorder.live.mark()

    recorder.live.mark()
    with measuring(model) as meter:
        carry, terms = model(record, carry)
    outputs = [t.sum / t.count for t in terms.values()] or [carry["hidden"]]
    mark("forward")
    recorder.phase = "backward"
    arriving = [torch.empty_like(x) for x in outputs]
    del carry, terms
    torch.autograd.backward(outputs, arriving)
    mark("backward")
    recorder.phase = "reduce"
    gradients.reduce()
    mark("reduce")
    recorder.phase = "optimizer"
    gradients.clip(1.0)
    optimizer.step(1.0)
    mark("optimizer")
    return dict(meter.saved), peaks, kernel_peaks


def blank_record(config: LanguageModelConfig, micro_batch: int) -> Record:
    shape = micro_batch, config.sequence
    tokens, labels, positions = (torch.empty(shape, dtype=torch.int64) for _ in range(3))
    counted = torch.empty(shape, dtype=torch.bool)
    return Record(tokens, labels, counted, positions, samples=tuple(range(micro_batch)))


def _carry(model: LanguageModel, record: Record) -> dict[str, Tensor]:
    """What the stage before would hand on."""
    if model.embedding is not None:
        return {}
    return {name: torch.empty(x.shape, dtype=x.dtype, requires_grad=x.dtype.is_floating_point)
            for name, x in model.carry(record).items()}


def _state(model: LanguageModel, gradients: Gradients, optimizer: Optimizer) -> dict[str, int]:
    """Bytes of what stays from step to step, from the objects that hold it."""
    moments = optimizer.adam.state.values()
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "main weights": sum(m.nbytes for n, m in optimizer.main.items() if m is not optimizer.pieces[n].value),
        "gradients": sum(b.flat.nbytes for b in gradients.buckets),
        "first moments": sum(s["exp_avg"].nbytes for s in moments),
        "second moments": sum(s["exp_avg_sq"].nbytes for s in moments),
        "step counters": sum(s["step"].nbytes for s in moments),
    }
