"""How long collectives and messages take, by algorithm, size and the links that a group crosses.

A ring sends each byte once over every link of it, and waits for its hops one after the other; a tree waits for fewer hops
and sends more. Several groups of a node share its network cards: every group is taken to do the same as the others at the
same time, as ranks of one training do. The library takes whichever of its algorithms and protocols is fastest, and its
own source says how it reckons them (NCCL, src/graph/tuning.cc; the records of links hold the numbers).

Bytes are those of the full tensor on one rank: the input of an all-reduce, reduce-scatter, all-to-all or broadcast, the
output of an all-gather.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from common.predict.machine import Cluster, Collective, Link, Protocol
from common.predict.tables import between

# A ring's steps and the bytes over each link, both in units of the ranks n: steps(n), bytes per byte of the tensor.
RING = {
    "all_reduce": (lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    "all_gather": (lambda n: n - 1, lambda n: (n - 1) / n),
    "reduce_scatter": (lambda n: n - 1, lambda n: (n - 1) / n),
    "broadcast": (lambda n: n - 1, lambda n: 1.0),
}
HALF = ("all_gather", "reduce_scatter")  # together an all-reduce of the same tensor
LOW_LATENCY, LOW_LATENCY_SLOWER = "ll", 1.8  # a step inside a node takes so much longer where steps cross nodes
PLATEAU, PLATEAU_BYTES = 1.9, 4096  # of ring all-reduces across nodes with long messages: latency, from bytes per rank on

# Share of a tree's bandwidth that messages of 64 B, 128 B, ... 128 MiB get (NCCL 2.11, tuning.cc, treeCorrectionFactor).
TREE = {
    "ll": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .5, .6, .6, .7, .7, .8, .9, .9, 1),
    "simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .5, .5, .6, .6, .7, .8, .9),
}


@dataclass(frozen=True)
class Span:
    """Where a group stands. ranks: how many; nodes: how many they touch; each: most ranks on one node."""

    ranks: int
    nodes: int
    each: int

    @classmethod
    def of(cls, ranks: Sequence[int], per_node: int) -> "Span":
        if isinstance(ranks, range) and ranks.step == 1 and ranks.start % per_node == 0:
            return cls(len(ranks), math.ceil(len(ranks) / per_node), min(len(ranks), per_node))
        on = Counter(rank // per_node for rank in ranks)
        return cls(len(ranks), len(on), max(on.values()))


class Communication:
    """The cost of collectives and messages on one cluster."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.node, self.network = cluster, cluster.node, cluster.network
        tables: dict[tuple[str, int], list[Collective]] = {}
        for item in self.node.collectives:
            tables.setdefault((item.name, item.ranks), []).append(item)
        self._tables = {key: sorted(rows, key=lambda c: c.bytes) for key, rows in tables.items()}
        self._seen: dict[tuple[str, float, Span], float] = {}

    def seconds(self, name: str, size: float, ranks: Sequence[int]) -> float:
        """Of a collective among `ranks` of the whole job; 0 among one. size: bytes.

        Raises ValueError for an unknown name, and for ranks on several nodes of a cluster without a network.
        """
        if len(ranks) < 2 or not size:
            return 0.0
        if name in ("send", "receive"):
            return self.transfer(size, ranks[0], ranks[-1])
        if name != "all_to_all" and name not in RING:
            raise ValueError(f"collective {name!r} is unknown: use one of {', '.join((*RING, 'all_to_all', 'send'))}")
        key = name, size, Span.of(ranks, self.node.ranks)
        if key not in self._seen:
            self._seen[key] = self._among(*key)
        return self._seen[key]

    def transfer(self, size: float, sender: int, receiver: int) -> float:
        """Seconds of one message of `size` bytes while every other rank of the sender's node sends as many."""
        if sender // self.node.ranks == receiver // self.node.ranks:
            return self.node.link.latency + size / self.node.link.rate
        link = self._between_nodes()
        return link.latency + size / self._network_rate(1)

    def _between_nodes(self) -> Link:
        if self.network is None:
            raise ValueError(f"{self.cluster.name} is one node of {self.node.ranks} ranks without a network: "
                             "use no more ranks, or another cluster")
        return self.network.link

    def _network_rate(self, each: int) -> float:
        """Bytes/s in one direction that a group with `each` ranks on a node gets, while the node's other ranks do the
        same in groups of their own."""
        cards = self.network.nics * min(1.0, each / self.node.ranks)
        return cards * self.network.link.rate / self.network.oversubscription

    def _among(self, name: str, size: float, span: Span) -> float:
        if name == "all_to_all":
            return self._all_to_all(size, span)
        modelled = self._modelled(name, size, span)
        return modelled if span.nodes > 1 else self._corrected(name, size, span, modelled)

    def _modelled(self, name: str, size: float, span: Span) -> float:
        """The fastest of all protocols, as a ring and, for all-reduces, as a tree."""
        outer = self._between_nodes() if span.nodes > 1 else self.node.link
        inner = {p.name: p for p in self.node.link.protocols}
        times = []
        for protocol in outer.protocols:
            within = inner.get(protocol.name, protocol)
            times.append(self._ring(name, size, span, protocol, within))
            if name == "all_reduce" and protocol.tree_share is not None:
                times.append(self._tree(size, span, protocol, within))
        return min(times)

    def _rate(self, span: Span) -> float:
        """Bytes/s of the slowest link of a ring."""
        if span.nodes == 1:
            return self.node.link.rate
        across = self._network_rate(span.each)
        return min(across, self.node.link.rate) if span.each > 1 else across

    def _ring(self, name: str, size: float, span: Span, across: Protocol, within: Protocol) -> float:
        steps, moved = (of(span.ranks) for of in RING[name])
        crossing = steps * span.nodes // span.ranks if span.nodes > 1 else 0
        step = within.ring_step * (LOW_LATENCY_SLOWER if span.nodes > 1 and across.name == LOW_LATENCY else 1)
        latency = across.ring_start + (steps - crossing) * step + crossing * across.ring_step
        if span.nodes > 1 and name == "all_reduce" and across.name == "simple" and size >= span.ranks * PLATEAU_BYTES:
            latency *= PLATEAU
        return latency + size * moved / (self._rate(span) * across.ring_share)

    def _tree(self, size: float, span: Span, across: Protocol, within: Protocol) -> float:
        """Up and down again: through the ranks of a node in a chain, between nodes in a binary tree."""
        depth = math.log2(span.nodes) if span.nodes > 1 else 0
        latency = across.tree_start + 2 * ((span.each - 1) * (within.tree_step or 0) + depth * across.tree_step)
        return latency + 2 * size / (self._rate(span) * across.tree_share * _tree_share(across.name, size))

    def _all_to_all(self, size: float, span: Span) -> float:
        """Every rank sends a part to every other, inside the node and across it at the same time."""
        part = size / span.ranks
        outside = span.ranks - span.each
        inner = self.node.link.latency + (span.each - 1) * (part / self.node.link.rate + _least_step(self.node.link))
        if not outside:
            return inner
        link = self._between_nodes()
        rate = self._network_rate(span.each) / span.each
        return max(inner, link.latency + outside * part / rate + (span.nodes - 1) * _least_step(link))

    def _corrected(self, name: str, size: float, span: Span, modelled: float) -> float:
        """With what was measured inside a node of this kind.

        Tables of several collectives or group sizes come from this very machine and hold as they are. A single table is
        of another system of the kind: the library's own reckoning and it are weighed alike.
        """
        if (name, span.ranks) in self._tables and len(self._tables) > 1:
            return between(size, self._tables[name, span.ranks])
        known = [ranks for other, ranks in self._tables if other == "all_reduce"]
        if name not in ("all_reduce", *HALF) or not known:
            return modelled
        ranks = min(known, key=lambda n: abs(math.log(n / span.ranks)))
        measured = between(size, self._tables["all_reduce", ranks])
        there = Span(ranks, 1, ranks)
        ratio = measured / self._modelled("all_reduce", size, there)
        if name in HALF and self.node.link.multicast:
            ratio = max(ratio, 1.0)  # switches that sum speed up all-reduces alone
        return modelled * (ratio if len(self._tables) > 1 else geometric_mean([ratio, 1.0]))


def _least_step(link: Link) -> float:
    return min(p.ring_step for p in link.protocols)


def _tree_share(protocol: str, size: float) -> float:
    if protocol not in TREE:
        return 1.0
    shares = TREE[protocol]
    at = min(max(math.log2(size / 64), 0), len(shares) - 1)
    low = min(int(at), len(shares) - 2)
    return shares[low] + (at - low) * (shares[low + 1] - shares[low])
