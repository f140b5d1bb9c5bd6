"""Micro-batches that keep everything while others are recomputed (arXiv:2205.05198, appendix C).

A rank's window is how many micro-batches kept whole it may have in flight at once. Each chunk counts by itself: a window
of an interleaved schedule is one of (micro-batch, chunk) pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from common.pipeline.schedule import CODE, KEEP, KINDS, Schedule
from common.pipeline.simulate import RELEASE, peak_held

FORWARD = CODE["forward"]
RELEASING = frozenset(CODE[name] for name, kind in KINDS.items() if RELEASE in kind.serves)


def keep_some(schedule: Schedule, kept: Sequence[int]) -> Schedule:
    """The same schedule with KEEP on each forward that starts while fewer than kept[rank] kept ones are in flight.

    In flight means between a forward and the end of its backward pass. Under 1F1B with w micro-batches in flight on a
    rank, those kept are the first kept[rank] of every w. KEEP flags that the schedule has already are replaced. Raises
    ValueError unless kept has one whole number, 0 or more, for each rank.
    """
    if len(kept) != schedule.ranks or min(kept) < 0:
        raise ValueError(f"kept={tuple(kept)}: needs a number of 0 or more for each of the {schedule.ranks} ranks")
    return replace(schedule, actions=tuple(map(_flagged, schedule.actions, kept)))


def _flagged(actions: np.ndarray, most: int) -> np.ndarray:
    flagged = actions.copy()
    flagged[:, 3] &= ~KEEP
    held: set[tuple[int, int]] = set()
    for i, (code, chunk, micro_batch) in enumerate(actions[:, :3].tolist()):
        if code == FORWARD and len(held) < most:
            held.add((chunk, micro_batch))
            flagged[i, 3] |= KEEP
        elif code in RELEASING:
            held.discard((chunk, micro_batch))
    return flagged


def recomputed(schedule: Schedule) -> tuple[Fraction, ...]:
    """For each rank, the share of its forward passes that are not kept, which is what is left to recompute."""
    forwards = [actions[actions[:, 0] == FORWARD] for actions in schedule.actions]
    return tuple(Fraction(int((f[:, 3] & KEEP == 0).sum()), len(f)) for f in forwards)


def in_flight(schedule: Schedule, rank: int) -> np.ndarray:
    """Micro-batches that a rank has in flight in each chunk after each of its actions, (actions, chunks)."""
    kinds, chunks = schedule.actions[rank][:, :2].T
    step = (kinds == FORWARD).astype(np.int64) - np.isin(kinds, list(RELEASING))
    return np.cumsum(step[:, None] * (chunks[:, None] == np.arange(schedule.chunks)), axis=0)


def largest_windows(schedule: Schedule, room: Sequence[float], size: Callable[[int, int], float]) -> tuple[int, ...]:
    """For each rank, the largest window whose peak fits into room[rank]; at most what it has in flight.

    size: what one micro-batch holds in a stage, a function of (stage, flags of its forward), in the unit of room; a kept
    one holds no less than a recomputed one. Raises ValueError where not even recomputing all of them fits.
    """
    if len(room) != schedule.ranks or not all(most >= 0 for most in room):
        raise ValueError(f"room={tuple(room)}: needs a number of 0 or more for each of the {schedule.ranks} ranks")
    low, high = [0] * schedule.ranks, list(peak_held(schedule))
    least = peak_held(keep_some(schedule, low), size)
    for rank, (peak, most) in enumerate(zip(least, room, strict=True)):
        if peak > most:
            raise ValueError(f"rank {rank}: {peak:g} are held with every micro-batch recomputed, and there is room for "
                             f"{most:g}: recompute more, cut the model further or take smaller micro-batches")
    while low != high:  # halves the range of every rank at once
        middle = [(a + b + 1) // 2 for a, b in zip(low, high, strict=True)]
        peaks = peak_held(keep_some(schedule, middle), size)
        fits = [peak <= most for peak, most in zip(peaks, room, strict=True)]
        low = [m if fit else a for a, m, fit in zip(low, middle, fits, strict=True)]
        high = [b if fit else m - 1 for b, m, fit in zip(high, middle, fits, strict=True)]
    return tuple(low)
