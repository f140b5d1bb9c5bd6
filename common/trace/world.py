"""A world of any size around one rank, in which nothing is allocated and nothing is sent.

Tensors made inside are fake (shapes and dtypes only, on the fake CPU device); collectives go to torch's fake
process group, which returns at once.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from common.grid import Grid
from common.layout import Group, Layout


class TracedLayout(Layout):
    """A layout that keeps one process group per name asked for, so that a handle tells which was meant.

    A real layout shares a handle among groups with the same ranks; fake groups cost nothing.
    """

    def __init__(self, grid: Grid, rank: int):
        super().__init__(grid, rank)
        self._named: dict[str, Group] = {}

    def _group(self, name: str, ranks: tuple[int, ...], alone: bool = False) -> Group:
        if name not in self._named:
            handle = self._process_group(ranks) if len(ranks) > 1 else None
            self._named[name] = Group(name, ranks, ranks.index(self.rank), handle)
        return self._named[name]

    def _pairs(self, name: str, ring: bool) -> tuple[Group | None, Group | None]:
        pairs = super()._pairs(name, ring)
        self._named |= {f"{name} {side}": pair for side, pair in zip(("before", "after"), pairs, strict=True) if pair}
        return pairs

    def find(self, handle: dist.ProcessGroup) -> Group:
        """The group that this process group was made for."""
        wanted = handle.group_name
        for group in self._named.values():
            if group.handle is not None and group.handle.group_name == wanted:
                return group
        raise ValueError(f"a message went to process group {wanted!r}, which no layout of this trace made; "
                         f"known: {', '.join(self._named)}")


@contextmanager
def world(grid: Grid, rank: int = 0) -> Iterator[TracedLayout]:
    """The layout of `rank` in `grid`, over a fake process group; tensors made inside are fake.

    Raises ValueError for a rank outside the grid, RuntimeError where torch.distributed is already in use: a
    trace takes the place of the process's own group.
    """
    layout = TracedLayout(grid, rank)
    if dist.is_initialized():
        raise RuntimeError(f"torch.distributed is already running here ({dist.get_backend()}, "
                           f"{dist.get_world_size()} ranks): run traces in a process of their own, "
                           "or after destroy_process_group()")
    hook = sys.excepthook  # init_process_group wraps it in one that names the rank, and leaves it so
    dist.init_process_group("fake", rank=rank, world_size=grid.world, store=FakeStore())
    sys.excepthook = hook
    try:
        with FakeTensorMode():
            yield layout
    finally:
        dist.destroy_process_group()
