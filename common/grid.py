"""The rank grid: where each rank stands on the named axes, and who shares what with whom.

A grid is a value. It knows nothing of process groups or devices, so a layout for 3,072 ranks is a unit test.
The dense view factorises the ranks over (tp, cp, dp, pp). The expert view factorises the same ranks over
(etp, ep, edp, pp): for each pipeline index the remaining ranks, in order, are cut again, expert-tensor axis
fastest (the folding of arXiv:2603.07685, section 4).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

DENSE = ("tp", "cp", "dp", "pp")
EXPERT = ("etp", "ep", "edp", "pp")


@dataclass(frozen=True)
class Grid:
    """Sizes of the parallel axes; `order` names the dense axes from fastest to slowest varying rank."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int | None = None
    order: str = "tp-cp-dp-pp"

    def __post_init__(self):
        for name in ("tp", "cp", "dp", "pp", "ep"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value}: every axis of the grid needs a size of at least 1")
        if self.etp is not None and self.etp < 1:
            raise ValueError(f"etp={self.etp}: leave it out to use tp, or give a size of at least 1")
        if sorted(self.order.split("-")) != sorted(DENSE):
            raise ValueError(f"order={self.order!r}: name each of {', '.join(DENSE)} once, such as 'tp-cp-dp-pp'")
        inner = self.tp * self.cp * self.dp
        if inner % (self.expert_tp * self.ep):
            raise ValueError(
                f"ep={self.ep} x etp={self.expert_tp} does not divide tp x cp x dp = {inner}: "
                f"experts see the same ranks, so choose sizes whose product divides {inner}"
            )

    @property
    def expert_tp(self) -> int:
        """Size of the expert-tensor axis; experts are cut like everything else unless told otherwise."""
        return self.tp if self.etp is None else self.etp

    @property
    def world(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    def size(self, *axes: str) -> int:
        """Product of the sizes of `axes`."""
        total = 1
        for axis in axes:
            total *= self._sizes[axis]
        return total

    @cached_property
    def _sizes(self) -> dict[str, int]:
        edp = self.tp * self.cp * self.dp // (self.expert_tp * self.ep)
        return {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp,
                "etp": self.expert_tp, "ep": self.ep, "edp": edp}

    @cached_property
    def _dense(self) -> np.ndarray:
        """Ranks as an array indexed [tp, cp, dp, pp]."""
        fast_to_slow = self.order.split("-")
        slow_to_fast = fast_to_slow[::-1]
        ranks = np.arange(self.world).reshape([self._sizes[a] for a in slow_to_fast])
        return ranks.transpose([slow_to_fast.index(a) for a in DENSE])

    @cached_property
    def _expert(self) -> np.ndarray:
        """Ranks as an array indexed [etp, ep, edp, pp]."""
        inner = [a for a in self.order.split("-") if a != "pp"][::-1]
        flat = self._dense.transpose([DENSE.index(a) for a in inner] + [DENSE.index("pp")]).reshape(-1, self.pp)
        cut = flat.reshape(self._sizes["edp"], self._sizes["ep"], self._sizes["etp"], self.pp)
        return cut.transpose(2, 1, 0, 3)

    def _view(self, axes) -> tuple[tuple[str, ...], np.ndarray]:
        for names, ranks in ((DENSE, self._dense), (EXPERT, self._expert)):
            if set(axes) <= set(names):
                return names, ranks
        raise ValueError(f"axes {tuple(axes)} mix the dense view {DENSE} with the expert view {EXPERT}")

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of `rank` on every axis of both views."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is outside a grid of {self.world} ranks")
        found = {}
        for names, ranks in ((DENSE, self._dense), (EXPERT, self._expert)):
            found |= {n: int(i) for n, i in zip(names, np.argwhere(ranks == rank)[0], strict=True)}
        return found

    def rank(self, **coordinates: int) -> int:
        """The rank at the given coordinates of one view; axes left out are 0."""
        names, ranks = self._view(coordinates)
        return int(ranks[tuple(coordinates.get(n, 0) for n in names)])

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """All groups of ranks that differ only on `axes`, each in the order of those axes, first axis fastest."""
        names, ranks = self._view(axes)
        rest = [i for i, n in enumerate(names) if n not in axes]
        inside = [names.index(a) for a in reversed(axes)]
        table = ranks.transpose(rest + inside).reshape(-1, self.size(*axes))
        return tuple(tuple(int(r) for r in row) for row in table)

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that share every coordinate with `rank` except those on `axes`."""
        names, ranks = self._view(axes)
        here = self.coordinates(rank)
        index = tuple(slice(None) if n in axes else here[n] for n in names)
        left = [n for n in names if n in axes]
        part = ranks[index].transpose([left.index(a) for a in reversed(axes)])
        return tuple(int(r) for r in part.reshape(-1))

    def replicas(self, rank: int, axis: str, parts: int) -> tuple[int, ...]:
        """The ranks of `axis` that hold the same one of `parts` equal parts as `rank`.

        An axis larger than what it cuts splits in two: tp = key-value groups x replicas.
        """
        size = self.size(axis)
        if size % parts:
            raise ValueError(f"{axis}={size} does not split into {parts} equal parts: use a multiple or a divisor")
        each = size // parts
        first = self.coordinates(rank)[axis] // each * each
        return self.group(rank, axis)[first:first + each]

    def nodes(self, rank: int, *axes: str, per_node: int) -> int:
        """How many nodes of `per_node` consecutive ranks the group of `rank` along `axes` touches."""
        return len({r // per_node for r in self.group(rank, *axes)})
