"""Learning rate and batch size as pure functions of how far training is."""

import math
from dataclasses import dataclass

from common.ranges import COUNT, FROM_ZERO, WHOLE, check_ranges

DECAYS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to `peak`, then a decay to `floor` at `total`, and `floor` after it.

    peak, floor: rates. warmup, total: how long, in steps, or in samples or tokens where `at` is given
    positions in those. decay: "cosine" (arXiv:1608.03983, equation 5, one period), "linear" or "constant"
    (then `total` and `floor` do not matter).
    """

    peak: float
    total: int
    warmup: int = 0
    floor: float = 0.0
    decay: str = "cosine"

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"decay={self.decay!r}: use one of {', '.join(DECAYS)}")
        check_ranges(self, {"peak": FROM_ZERO, "floor": FROM_ZERO, "total": COUNT, "warmup": WHOLE})
        if self.floor > self.peak:
            raise ValueError(f"floor={self.floor} must be between 0 and peak={self.peak}")
        if self.warmup > self.total:
            raise ValueError(f"warmup={self.warmup} must be between 0 and total={self.total}")

    def at(self, done: int, width: int = 1) -> float:
        """The rate of the update that goes from `done` to `done + width` (steps: its number from 0, and 1).

        Warm-up counts to the update's end and decay from its begin, so that no update has a rate of 0.
        """
        if done + width <= self.warmup:
            return self.peak * (done + width) / self.warmup
        if self.decay == "constant":
            return self.peak
        progress = min(1.0, max(0, done - self.warmup) / max(1, self.total - self.warmup))
        weight = 1 - progress if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.floor + (self.peak - self.floor) * weight


@dataclass(frozen=True)
class BatchSize:
    """Samples per step: `final`, or growing to it from `start` by `increment`, evenly over `ramp` samples.

    With start 32, increment 32 and final 1920 the sizes are 32, 64, ..., 1920; each but the last is held
    for the same number of samples, as in Megatron-LM.
    """

    final: int
    start: int | None = None
    increment: int | None = None
    ramp: int = 0

    def __post_init__(self) -> None:
        if self.final < 1:
            raise ValueError(f"final={self.final}: a batch needs at least 1 sample")
        if self.ramp == 0:
            if self.start is not None or self.increment is not None:
                raise ValueError(f"start={self.start}, increment={self.increment} without a ramp: set ramp, "
                                 "the number of samples over which the batch grows")
            return
        if self.start is None or self.increment is None:
            raise ValueError(f"ramp={self.ramp} needs both start and increment")
        if self.ramp < 0 or self.start < 1 or self.increment < 1 or self.start > self.final:
            raise ValueError(f"start={self.start}, increment={self.increment}, ramp={self.ramp}: each must "
                             f"be at least 1, and start at most final={self.final}")
        if (self.final - self.start) % self.increment:
            raise ValueError(f"increment={self.increment} does not divide final - start = "
                             f"{self.final - self.start}: the batch would never be final={self.final}")

    @property
    def sizes(self) -> range:
        """Every size that training meets, in order."""
        if self.ramp == 0:
            return range(self.final, self.final + 1)
        return range(self.start, self.final + 1, self.increment)

    def at(self, samples: int) -> int:
        """The batch size of the step that begins after `samples` samples."""
        stages = len(self.sizes) - 1
        if samples >= self.ramp or stages == 0:
            return self.final
        return self.sizes[samples * stages // self.ramp]

    def check(self, divisor: int, what: str) -> None:
        """Raise ValueError when a size of the ramp is not a multiple of `divisor`, which is `what`."""
        for size in self.sizes:
            if size % divisor:
                raise ValueError(f"batch size {size} is not a multiple of {divisor} ({what}): "
                                 f"use multiples of {divisor} for start, increment and final")
