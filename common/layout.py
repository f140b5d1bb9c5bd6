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

    Every rank of a program asks for the same groups at the same point, and makes as many process groups as every other,
    so members meet when a group is made. A grid of one rank needs no torch.distributed at all.
    """

    def __init__(self, grid: Grid = Grid(), rank: int = 0):  # noqa: B008 (a frozen value)
        self.grid = grid
        self.rank = rank
        self.coordinates = grid.coordinates(rank)
        self._groups: dict[tuple[str, ...], Group] = {}
        self._neighbours: dict[tuple[str, bool], tuple[Group | None, Group | None]] = {}
        self._made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._own: list[dist.ProcessGroup] = []

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

    def ends(self) -> Group:
        """On the first and the last stage, the two of them; on the stages between, all of these."""
        line = self.grid.group(self.rank, "pp")
        outer = (line[0], line[-1]) if len(line) > 1 else line
        return self._group("pp ends", outer if self.rank in outer else line[1:-1], alone=len(line) > 2)

    def prepare(self, parts: int) -> None:
        """Makes the groups that one stage may need and another not. parts: key-value groups of the model."""
        self.ends()
        if parts < self.size("tp"):
            self.replicas("tp", parts)

    def close(self) -> None:
        """Ends this rank's groups, whose threads would otherwise go on; all ranks alike. The layout is of no use after."""
        while self._own:
            dist.destroy_process_group(self._own.pop())

    def neighbours(self, purpose: str, ring: bool) -> tuple[Group | None, Group | None]:
        """Groups of two: this rank with the one before it on the pipeline axis, and with the one after.

        Each purpose has process groups of its own, so that messages of one cannot be taken for another's. ring: the last
        rank's next is the first.
        """
        key = purpose, ring
        if key not in self._neighbours:
            self._neighbours[key] = self._pairs(f"pp {purpose}", ring)
        return self._neighbours[key]

    def _pairs(self, name: str, ring: bool) -> tuple[Group | None, Group | None]:
        line, here = self.grid.group(self.rank, "pp"), self.index("pp")
        size = len(line)
        if size == 1:
            return None, None
        found: dict[int, Group] = {}
        for turn in range(3):  # pair e is ranks e and e + 1; in each turn a rank is in one pair at most
            pairs = [e for e in {(here - 1) % size, here} if (ring or e < size - 1)
                     and turn == (2 if size % 2 and e == size - 1 else e % 2)]
            ranks = tuple(sorted(line[i % size] for e in pairs for i in (e, e + 1))) or (self.rank,)
            handle = self._process_group(ranks)
            if pairs:
                found[pairs[0]] = Group(name, ranks, ranks.index(self.rank), handle)
        return found.get((here - 1) % size), found.get(here)

    def _group(self, name: str, ranks: tuple[int, ...], alone: bool = False) -> Group:
        """alone: make a process group even of one rank, where other ranks make one of several at this point."""
        if ranks not in self._made:
            whole = len(ranks) > 1 and ranks == tuple(range(dist.get_world_size()))
            made = dist.group.WORLD if whole else self._process_group(ranks) if len(ranks) > 1 or alone else None
            self._made[ranks] = made
        return Group(name, ranks, ranks.index(self.rank), self._made[ranks] if len(ranks) > 1 else None)

    def _process_group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        self._own.append(dist.new_group(list(ranks), use_local_synchronization=True))
        return self._own[-1]


SERIAL = Layout()
