"""Which set and which of its samples stands at a global position: functions of weights, sizes, seed and position.

Nothing is stored and nothing is counted in training, so any rank looks up any position at any time, and a run
that stops, or changes its data ranks or its batch size, goes on where it was.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from data.permutation import permute

BLOCK = 256
# Third part of the key of a block's order; an order within a set has the set's number there.
BLOCKS = 1 << 32


class Place(NamedTuple):
    """epoch: how often all of its set has been seen. sample: its number in storage order. set: number of the set."""

    epoch: int
    sample: int
    set: int = 0


class Shares:
    """Deals positions 0, 1, 2, ... to sets in proportion to their weights.

    A Huffman tree (1952) over the weights. A node of weight w hands its first n positions on: round(n l / w) of
    them to the left child of weight l, the rest to the right. Both numbers grow with n, so every position has one
    owner. A node's count is off by at most 1/2 more than its share of its parent's error; by Huffman's choice a
    node has less than half of its grandparent's weight, so the errors add up to less than
    1/2 (1 + 1 + 1/2 + 1/2 + 1/4 + ...) = 2 positions for every set, after any number of positions. Weights are
    fractions and the arithmetic is exact.
    """

    def __init__(self, weights: Sequence[Fraction | int]):
        scale = math.lcm(*(Fraction(w).denominator for w in weights))
        heap: list[tuple[int, int, object]] = [(int(w * scale), s, s) for s, w in enumerate(weights)]
        heapq.heapify(heap)
        while len(heap) > 1:
            (light, i, left), (heavy, j, right) = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, min(i, j), (light, light + heavy, left, right)))
        self.root, self.number = heap[0][2], len(weights)

    def place(self, position: int) -> tuple[int, int]:
        """The set that owns a position, and how many of the positions before it that set owns."""
        node, n = self.root, position
        while isinstance(node, tuple):
            weight, whole, left, right = node
            before, after = (2 * n * weight + whole) // (2 * whole), (2 * (n + 1) * weight + whole) // (2 * whole)
            node, n = (left, before) if after > before else (right, n - before)
        return node, n

    def counts(self, positions: int) -> list[int]:
        """How many of the first `positions` each set owns."""
        found, stack = [0] * self.number, [(self.root, positions)]
        while stack:
            node, n = stack.pop()
            if isinstance(node, tuple):
                weight, whole, left, right = node
                first = (2 * n * weight + whole) // (2 * whole)
                stack += [(left, first), (right, n - first)]
            else:
                found[node] = n
        return found


class SampleOrder:
    """Which sample of one set stands at each position: every epoch a fresh permutation of its n samples.

    key: told apart from other sets of the same run by it.
    """

    def __init__(self, n: int, seed: int, *key: int):
        if n < 1:
            raise ValueError(f"n={n}: an order needs at least one sample")
        if seed < 0:
            raise ValueError(f"seed={seed} must not be negative")
        self.n, self.seed, self.key, self.sizes = n, seed, key, (n,)

    def sample(self, position: int) -> Place:
        """Of a global position, counted from 0 over all epochs."""
        if position < 0:
            raise ValueError(f"position={position} must not be negative")
        epoch, within = divmod(position, self.n)
        return Place(epoch, permute(within, self.n, self.seed, epoch, *self.key))

    def epochs(self, positions: int) -> list[float]:
        """How often each set is seen in that many positions."""
        return [positions / self.n]


class BlendOrder:
    """Which set and sample stands at each position of several sets.

    sizes: samples of each set. weights: in any unit, above zero. At the end of every block of BLOCK positions each
    set's count is less than two from its share (see Shares); the order inside a block is permuted by (seed, block),
    so that a rank, which takes the same positions of every step, does not see one set forever. A set shorter than
    its share begins anew, in another order.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[Fraction | int], seed: int):
        if len(sizes) != len(weights) or any(w <= 0 for w in weights):
            raise ValueError(f"weights={[str(w) for w in weights]}: one above zero for each of {len(sizes)} sets; "
                             "leave out a set that should not be seen")
        self.shares, self.seed, self.sizes = Shares(weights), seed, tuple(sizes)
        self.orders = [SampleOrder(n, seed, s) for s, n in enumerate(sizes)]

    def sample(self, position: int) -> Place:
        """Of a global position, counted from 0."""
        if position < 0:
            raise ValueError(f"position={position} must not be negative")
        block, within = divmod(position, BLOCK)
        number, turn = self.shares.place(block * BLOCK + permute(within, BLOCK, self.seed, block, BLOCKS))
        return self.orders[number].sample(turn)._replace(set=number)

    def epochs(self, positions: int) -> list[float]:
        """How often each set is seen in that many positions, whole blocks."""
        counts = self.shares.counts(-(-positions // BLOCK) * BLOCK)
        return [count / n for count, n in zip(counts, self.sizes, strict=True)]
