"""The record of everything one rank runs and sends, in order."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from common.collectives import Pending
from common.kernels import region
from common.recompute.meter import tag
from common.recompute.replay import REPLAY
from common.trace.fold import Fold
from common.trace.live import Live, tensors
from common.trace.place import Place
from common.trace.work import flops, free, traffic
from common.trace.world import TracedLayout

PHASES = ("forward", "recompute", "backward", "reduce", "optimizer")
# c10d operation -> its name here, and the argument that is the full tensor: what each rank ends with, or
# starts with where it ends with a part.
COLLECTIVES = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "broadcast_": ("broadcast", 0),
    "send": ("send", 0),
    "recv_": ("receive", 0),
}
ABSORBED = "common.absorbed"
# Outputs that autograd keeps and no code of ours ever sees.
INNER = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (1, "attention.statistics")}


@dataclass(frozen=True)
class Operation:
    """One operation that runs something; views and allocations are left out.

    name: torch's, such as "aten.mm", or common.<name> of a fused kernel. phase: one of PHASES. module: dotted name of
    the innermost module it belongs to. inputs, outputs: shapes. dtype: of the first output. flops, read, written: see
    common/trace/work.py; bytes. parts: of a fused kernel, the operations that stand for it, one by one. Those that
    stand for nothing that a GPU runs are the parts of a kernel named ABSORBED, which moves nothing.
    """

    name: str
    phase: str
    module: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtype: str
    flops: int
    read: int
    written: int
    parts: tuple["Operation", ...] = ()


@dataclass(frozen=True)
class Message:
    """One collective or point-to-point message that was issued.

    group: the layout's name for who takes part, such as "tp" or "dp+cp"; size: how many ranks. bytes: of the
    full tensor on one rank: the input of an all-reduce, reduce-scatter, all-to-all or send, the output of an
    all-gather or receive. start, end: how many operations had been recorded when it was issued and when its
    result was waited for.
    """

    name: str
    group: str
    size: int
    bytes: int
    dtype: str
    phase: str
    module: str
    start: int
    end: int | None = None

    @property
    def asynchronous(self) -> bool:
        """Whether anything ran between its start and the wait for its result."""
        return self.end is None or self.end > self.start

    @property
    def copies(self) -> tuple[Operation, ...]:
        """Operations that are part of its travel."""
        return ()

    @property
    def ahead(self) -> int:
        """How many operations after `start` the program issues it."""
        return 0


class Recorder(TorchDispatchMode):
    """Records while it is active. `phase` is set by whoever drives the model; replays carry their own mark.

    As a listener of common/kernels/region.py it makes one operation of all that runs in a fused region.
    """

    def __init__(self, layout: TracedLayout, place: Place):
        super().__init__()
        self.layout, self.place = layout, place
        self.live = Live()
        self.phase = "forward"
        self.messages: list[Message] = []
        self._operations: list[Operation] = []
        self._under_way: dict[int, int] = {}
        self._fold: Fold | None = None  # the region at work, or one left whose kernel may go on
        self._entered: list[str] = []

    def __enter__(self):
        with ExitStack() as entered:
            entered.enter_context(region.listening(self))
            super().__enter__()
            self._leaving = entered.pop_all()
        return self

    def __exit__(self, *error):
        with self._leaving:
            return super().__exit__(*error)

    @property
    def operations(self) -> list[Operation]:
        """What has been recorded; a kernel that might have gone on is complete once this is asked for."""
        if not self._entered:
            self._close()
        return self._operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace == "c10d":
            self._message(func, args)
            return out
        self.live.watch(args, kwargs, out)
        if self._entered:
            self._fold.make(args, kwargs, out)
        if not free(func):
            self._operation(func, args, kwargs, out)
        if func.overloadpacket in INNER:
            index, name = INNER[func.overloadpacket]
            tag(out[index], name)
        return out

    def enter(self, name: str, joins: bool) -> None:
        if not self._entered:
            if not (joins and self._fold is not None and self._fold.name == name):
                self._close()
                self._fold = Fold(name, *self._where())
            self.live.inside = name != region.ABSORBED
        self._entered.append(name)

    def leave(self, name: str, joins: bool) -> None:
        self._entered.pop()
        if not self._entered:
            if not joins:
                self._close()
            self.live.inside = False
            self.live.settle()

    def _close(self) -> None:
        fold, self._fold = self._fold, None
        if fold is None or fold.empty:
            return
        found = Operation(**fold.close())
        if fold.name == region.ABSORBED:
            found = replace(found, name=ABSORBED, flops=0, read=0, written=0)
        self._keep(found)

    def _keep(self, operation: Operation) -> None:
        self._operations.append(operation)

    def _where(self) -> tuple[str, str]:
        return "recompute" if REPLAY.running else self.phase, self.place.now()

    def _operation(self, func, args, kwargs, out) -> None:
        inputs, outputs = list(tensors([*args, *kwargs.values()])), list(tensors(out))
        if not inputs and not outputs:  # a question about types
            return
        operation = Operation(
            f"{func.namespace}.{func.overloadpacket.__name__}", *self._where(),
            tuple(tuple(x.shape) for x in inputs), tuple(tuple(x.shape) for x in outputs),
            _dtype((outputs or inputs)[0]), flops(func, args, kwargs, out),
            *traffic(func, args, kwargs, out))
        if region.ABSORBED in self._entered:
            self._fold.skip(operation)
            return
        if self._entered:
            self._fold.add(func, args, kwargs, out, operation)
            return
        self._close()
        self._keep(operation)

    def _message(self, func, args) -> None:
        kind = func.overloadpacket.__name__
        if kind not in COLLECTIVES:
            raise NotImplementedError(f"c10d.{kind} is not among the messages a trace knows: "
                                      f"{', '.join(COLLECTIVES)}")
        assert not self._entered, f"a message inside the kernel {self._entered[0]!r}"
        name, full = COLLECTIVES[kind]
        position = [a.name for a in func._schema.arguments].index("process_group")
        group = self.layout.find(dist.ProcessGroup.unbox(args[position]))
        whole = list(tensors(args[full]))
        self.messages.append(Message(name, group.name, group.size, sum(x.numel() * x.itemsize for x in whole),
                                     _dtype(whole[0]), *self._where(), len(self.operations)))
        self._under_way[_storage(next(tensors(args[0])))] = len(self.messages) - 1

    def wait(self, output: Tensor) -> None:
        """The result of a message under way, given by its output tensor, is waited for now."""
        at = self._under_way.pop(_storage(output))
        self.messages[at] = replace(self.messages[at], end=len(self.operations))


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


@contextmanager
def recording(model: nn.Module, layout: TracedLayout) -> Iterator[Recorder]:
    """Records all that `model` and what trains it run inside, on the layout of a traced world."""
    wait = Pending.wait
    with Place(model).following() as place, Recorder(layout, place) as recorder:
        def noted(pending: Pending) -> Tensor:
            if pending.work is not None:
                recorder.wait(pending.output)
            return wait(pending)

        Pending.wait = noted
        try:
            yield recorder
        finally:
            Pending.wait = wait
