"""Bytes of tensors that are alive, operation by operation: what really stands in memory, by no one's claim.

The saved-bytes meter says what backward will need; this says what is there. It follows storages from the
operation that makes them to their end, through weak references, on real and on fake tensors alike. Memory
that a kernel takes and gives back inside one operation is not seen, nor are tensors made before it was
entered.
"""

import weakref
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def tensors(values) -> Iterator[Tensor]:
    """The tensors in an operation's arguments or results, lists and tuples opened."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors(value)


class Live(TorchDispatchMode):
    """bytes: alive now. peak: the most since entering or since `mark`. settled: the same, times left out while
    `inside` a fused kernel, whose temporaries are no memory on a GPU. All of what was made since entering.
    """

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.peak = 0
        self.settled = 0
        self.inside = False
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.watch(args, kwargs, out)
        return out

    def watch(self, args, kwargs, out) -> None:
        """Takes note of the storages that an operation made."""
        given = None
        for x in tensors(out):
            storage = x.untyped_storage()
            if storage._cdata in self._known:
                continue
            if given is None:
                inputs = [*tensors(args), *tensors(list((kwargs or {}).values()))]
                given = {t.untyped_storage()._cdata for t in inputs}
            if storage._cdata not in given:
                self._add(storage)

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def gone(_):
            self.bytes -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        self.settle()

    def settle(self) -> None:
        """Takes note of the bytes alive now, unless a fused kernel is at work."""
        if not self.inside:
            self.settled = max(self.settled, self.bytes)

    def mark(self) -> int:
        """Starts a new peak at the bytes alive now; returns the one before."""
        before, self.peak, self.settled = self.peak, self.bytes, self.bytes
        return before
