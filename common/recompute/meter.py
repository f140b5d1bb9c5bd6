"""What autograd keeps for backward, by name, counted once per storage, weights left out."""

from collections import Counter
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_meter = None


class Meter:
    """Bytes of activations saved for backward while `measuring` is active.

    saved: name -> bytes. Names are those given by `tag`, before or after the tensor is saved; a tensor nobody tagged is
    listed under "other" with its dtype and shape, so that nothing is left out. A storage is counted once and whole; where
    views of it are saved under several names, each name gets its view's bytes. What is left of the storage, kept but not
    needed, is listed apart.
    """

    def __init__(self, weights: list[Tensor]):
        self._excluded = {StorageWeakRef(w.untyped_storage()).cdata for w in weights}
        self._names: dict[int, dict[tuple[int, int], str]] = {}
        self._alive: list[StorageWeakRef] = []  # weak, yet keeps an address from being given out again
        self._kept: dict[int, tuple[int, dict[tuple[int, int], str]]] = {}

    def _key(self, x: Tensor) -> int:
        ref = StorageWeakRef(x.untyped_storage())
        self._alive.append(ref)
        return ref.cdata

    def name(self, x: Tensor, name: str) -> None:
        self._names.setdefault(self._key(x), {}).setdefault(_place(x), name)

    def count(self, x: Tensor) -> None:
        key = self._key(x)
        if key not in self._excluded:
            fallback = f"other {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
            self._kept.setdefault(key, (x.untyped_storage().nbytes(), {}))[1].setdefault(_place(x), fallback)

    @property
    def saved(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for key, (size, views) in self._kept.items():
            given = self._names.get(key, {})
            first = next(iter(given.values()), None)
            parts = {given.get(place, first or other): place[1] for place, other in views.items()}
            if (rest := size - sum(parts.values())) < 0:  # the views overlap
                parts, rest = {next(iter(parts)): size}, 0
            total.update(parts)
            if rest:
                total[f"{next(iter(parts))} (rest of its storage)"] += rest
        return total

    @property
    def total(self) -> int:
        return sum(size for size, _ in self._kept.values())


def _place(x: Tensor) -> tuple[int, int]:
    """Where a view stands in its storage, and its bytes."""
    return x.storage_offset() * x.itemsize, x.numel() * x.itemsize


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
