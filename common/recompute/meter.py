"""What autograd keeps for backward, by name, counted once per storage, weights left out."""

from collections import Counter
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_meter = None


class Meter:
    """Bytes of activations saved for backward while `measuring` is active.

    saved: name -> bytes. Names are those given by `tag`; a tensor nobody tagged is listed under "other" with its
    dtype and shape, so that nothing is left out.
    """

    def __init__(self, weights: list[Tensor]):
        self._excluded = {StorageWeakRef(w.untyped_storage()).cdata for w in weights}
        self._names: dict[int, str] = {}
        self._alive: list[StorageWeakRef] = []  # weak, yet keeps an address from being given out again
        self._counted: set[int] = set()
        self.saved: Counter[str] = Counter()

    def _key(self, x: Tensor) -> int:
        ref = StorageWeakRef(x.untyped_storage())
        self._alive.append(ref)
        return ref.cdata

    def name(self, x: Tensor, name: str) -> None:
        self._names.setdefault(self._key(x), name)

    def count(self, x: Tensor) -> None:
        key = self._key(x)
        if key in self._counted or key in self._excluded:
            return
        self._counted.add(key)
        fallback = f"other {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        self.saved[self._names.get(key, fallback)] += x.untyped_storage().nbytes()

    @property
    def total(self) -> int:
        return sum(self.saved.values())


def tag(x: Tensor, name: str) -> Tensor:
    """Names a tensor for the meter; returns it unchanged. Free when nothing is measured."""
    if _meter is not None:
        _meter.name(x, name)
    return x


def observe(x: Tensor) -> None:
    """Counts a tensor that someone else's saved-tensor hook has taken, since hooks do not stack."""
    if _meter is not None:
        _meter.count(x)


@contextmanager
def measuring(model: torch.nn.Module):
    """Yields a Meter that counts what forward passes run inside keep for their backward."""
    global _meter
    if _meter is not None:
        raise RuntimeError("a meter is already running")
    _meter = meter = Meter(list(model.parameters()) + list(model.buffers()))

    def pack(x: Tensor) -> Tensor:
        meter.count(x)
        return x

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            yield meter
    finally:
        _meter = None
