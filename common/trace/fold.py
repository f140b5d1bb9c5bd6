"""Several operations folded into the one that a fused kernel is (common/kernels/region.py)."""

import weakref

from torch import Tensor

from common.trace.live import tensors
from common.trace.work import touched


class Fold:
    """Collects what runs in a region.

    Read: bytes of what was made outside, each view once. Written: bytes of what was made inside and is alive when the
    region is closed, and of what was made outside and written to. What dies inside costs nothing, and what is absorbed
    (`skip`) moves nothing.
    """

    def __init__(self, name: str, phase: str, module: str):
        self.name, self.phase, self.module = name, phase, module
        self.parts: list = []
        self._made: dict[int, tuple[weakref.ref, int, tuple[int, ...], str]] = {}
        self._read: dict[int, dict[tuple, int]] = {}
        self._written: dict[int, dict[tuple, int]] = {}
        self._sizes: dict[int, int] = {}
        self._inputs: dict[tuple, tuple[int, ...]] = {}
        self._outputs: dict[tuple, tuple[tuple[int, ...], str]] = {}

    def make(self, args, kwargs, out) -> None:
        """Takes note of storages that begin inside."""
        given = {_key(x) for x in (*tensors(args), *tensors(list(kwargs.values())))}
        for x in tensors(out):
            if _key(x) not in given:
                storage = x.untyped_storage()
                self._made[_key(x)] = (weakref.ref(storage), storage.nbytes(), tuple(x.shape), _dtype(x))

    def add(self, func, args, kwargs, out, operation) -> None:
        """An operation that runs something."""
        reads, writes = touched(func, args, kwargs, out)
        for x, size in reads:
            if not self._inside(x):
                self._note(self._read, x, size)
                self._inputs.setdefault(_place(x), tuple(x.shape))
        for x, size in writes:
            if not self._inside(x):
                self._note(self._written, x, size)
                self._outputs.setdefault(_place(x), (tuple(x.shape), _dtype(x)))
        self.parts.append(operation)

    def skip(self, operation) -> None:
        """An operation that a GPU would not run."""
        self.parts.append(operation)

    def _inside(self, x: Tensor) -> bool:
        return _key(x) in self._made

    def _note(self, table: dict[int, dict[tuple, int]], x: Tensor, size: int) -> None:
        views = table.setdefault(_key(x), {})
        place = _place(x)[1:]
        views[place] = max(views.get(place, 0), size)
        self._sizes[_key(x)] = x.untyped_storage().nbytes()

    def _bytes(self, table: dict[int, dict[tuple, int]]) -> int:
        """Of each storage no more than it holds, since views may overlap."""
        return sum(min(sum(views.values()), self._sizes[key]) for key, views in table.items())

    @property
    def empty(self) -> bool:
        return not self.parts

    def close(self) -> dict:
        """The fields of the one operation that this is."""
        alive = [made[1:] for made in self._made.values() if made[0]() is not None]
        alive.sort(key=lambda made: -made[0])  # the first output is the largest
        outputs = [(shape, dtype) for _, shape, dtype in alive] + list(self._outputs.values())
        return {
            "name": self.name if "." in self.name else f"common.{self.name}", "phase": self.phase, "module": self.module,
            "inputs": tuple(self._inputs.values()), "outputs": tuple(shape for shape, _ in outputs),
            "dtype": outputs[0][1] if outputs else self.parts[-1].dtype, "flops": sum(p.flops for p in self.parts),
            "read": self._bytes(self._read), "written": sum(size for size, _, _ in alive) + self._bytes(self._written),
            "parts": tuple(self.parts)}


def _key(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _place(x: Tensor) -> tuple:
    return _key(x), x.storage_offset(), x.numel(), x.itemsize


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
