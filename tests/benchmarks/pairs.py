"""Timing two things in turn, A B A B ..., so that a machine whose speed drifts slows both."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.device import measured_peak

PAIRS = 11


@dataclass(frozen=True)
class Paired:
    """Seconds of each run of both sides, and the matrix-product peak (FLOP/s) measured between the pairs."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    peaks: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """How many times as long the other side took, pair by pair."""
        return [t / o for o, t in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """The ratios that bound the median with at least 95 % confidence: third of eleven from each end, second of nine."""
        ordered = sorted(self.ratios)
        cut = {9: 1, 10: 1, 11: 2}[len(ordered)]
        return ordered[cut], ordered[-1 - cut]

    def utilisation(self, flops: int) -> float:
        """Median over the pairs of our FLOP/s over the peak measured beside it."""
        return statistics.median(flops / t / p for t, p in zip(self.ours, self.peaks, strict=True))


def alternate(ours: Callable[[], float], theirs: Callable[[], float], pairs: int = PAIRS) -> Paired:
    """Two uncounted runs of each, then the pairs."""
    for _ in range(2):
        ours(), theirs()
    found = []
    for _ in range(pairs):
        peak = measured_peak(seconds=0.3)
        found.append((_timed(ours), _timed(theirs), max(peak, measured_peak(seconds=0.3))))
    return Paired(*map(tuple, zip(*found, strict=True)))


def _timed(step: Callable[[], float]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
