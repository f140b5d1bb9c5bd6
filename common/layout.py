"""One rank's place in the grid, with the process groups that go with it."""

from dataclasses import dataclass

import torch.distributed as dist

from common.grid import Grid


@dataclass(frozen=True)
class Group:
    """Ranks that communicate. `handle` is None when the group is this rank alone: collectives are then identities."""

    name: str
    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)


class Layout:
    """Binds a grid to one rank and makes its process groups on first use.

    Every rank of a program asks for the same groups at the same point, so members meet when a group is made.
    A grid of one rank needs no torch.distributed at all.
    """

    def __init__(self, grid: Grid = Grid(), rank: int = 0):  # noqa: B008 (a frozen value)
        self.grid = grid
        self.rank = rank
        self.coordinates = grid.coordinates(rank)
        self._groups: dict[tuple[str, ...], Group] = {}
        self._made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}

    def index(self, axis: str) -> int:
        return self.coordinates[axis]

    def size(self, *axes: str) -> int:
        return self.grid.size(*axes)

    def group(self, *axes: str) -> Group:
        """The group of this rank along `axes`."""
        if axes not in self._groups:
            self._groups[axes] = self._group("+".join(axes), self.grid.group(self.rank, *axes))
        return self._groups[axes]

    def replicas(self, axis: str, parts: int) -> Group:
        """The group of ranks on `axis` that hold the same one of `parts` parts."""
        return self._group(f"{axis}/{parts}", self.grid.replicas(self.rank, axis, parts))

    def _group(self, name: str, ranks: tuple[int, ...]) -> Group:
        if ranks not in self._made:
            handle = None
            if len(ranks) > 1:
                whole = ranks == tuple(range(dist.get_world_size()))
                handle = dist.group.WORLD if whole else dist.new_group(list(ranks), use_local_synchronization=True)
            self._made[ranks] = handle
        return Group(name, ranks, ranks.index(self.rank), self._made[ranks])


SERIAL = Layout()
