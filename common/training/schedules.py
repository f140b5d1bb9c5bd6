"""Learning rate and batch size as functions of progress: configs with pure methods, no state to save."""

import math
from dataclasses import dataclass

DECAYS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to `peak` over `warmup` steps, then decay to `floor` at step `steps`.

    peak and floor: absolute rates. steps: the whole run's, warm-up included; at and beyond it the rate is `floor`
    (constant: `peak`).
    """

    peak: float = 1e-3
    floor: float = 1e-4
    warmup: int = 100
    steps: int = 1000
    decay: str = "cosine"

    def __post_init__(self):
        if self.decay not in DECAYS:
            raise ValueError(f"decay={self.decay!r}: use one of {', '.join(DECAYS)}")
        if not 0 <= self.floor <= self.peak or self.peak <= 0:
            raise ValueError(f"peak={self.peak} must be above 0 and floor={self.floor} between 0 and peak")
        if not 0 <= self.warmup <= self.steps or self.steps < 1:
            raise ValueError(f"warmup={self.warmup} must be between 0 and steps={self.steps}, and steps at least 1")

    def at(self, step: int) -> float:
        """The rate of the update that ends step `step`, counted from 0; the first warm-up step is peak / warmup."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.decay == "constant":
            return self.peak
        done = min((step - self.warmup) / max(1, self.steps - self.warmup), 1.0)
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.floor + (self.peak - self.floor) * left


@dataclass(frozen=True)
class BatchRamp:
    """Global batch that grows by `increment` from `start` to `final`, evenly over the first `samples` samples
    (arXiv:2005.14165, table 2.1, as arXiv:2201.11990, section 3.3, runs it). samples=0: `final` at once."""

    final: int
    start: int = 0
    increment: int = 0
    samples: int = 0

    def __post_init__(self):
        if self.final < 1 or self.samples < 0:
            raise ValueError(f"final={self.final} needs at least 1, samples={self.samples} at least 0")
        if self.samples:
            if not 0 < self.start <= self.final or self.increment < 1:
                raise ValueError(f"start={self.start} must be between 1 and final={self.final}, increment={self.increment} "
                                 "at least 1")
            if (self.final - self.start) % self.increment:
                raise ValueError(f"final={self.final} is not start={self.start} plus whole increments of {self.increment}")

    def at(self, consumed: int) -> int:
        """Global batch once `consumed` samples have been trained on."""
        if consumed >= self.samples or self.start == self.final:
            return self.final
        rises = (self.final - self.start) // self.increment
        return self.start + self.increment * (consumed * rises // self.samples)
