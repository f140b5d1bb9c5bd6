"""Dynamic loss scaling for fp16 (arXiv:1710.03740, section 3.2)."""

import math
from dataclasses import dataclass

LARGEST = 3.4028234663852886e38  # of fp32, in which the scale multiplies the loss


@dataclass(frozen=True)
class LossScaleConfig:
    """How the scale moves.

    initial: the first scale. growth: its factor after `interval` steps in a row without overflow. backoff:
    its factor at an overflow, once `hysteresis` overflows have come since the scale last grew. smallest:
    the scale never goes below. With hysteresis 1 and no floor reached this is torch.amp.GradScaler; with
    more it is Megatron-LM's.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 1000
    hysteresis: int = 1
    smallest: float = 1.0

    def __post_init__(self):
        if not (math.isfinite(self.growth) and self.growth > 1 > self.backoff > 0):
            raise ValueError(f"growth={self.growth} must be above 1 and finite, "
                             f"backoff={self.backoff} between 0 and 1")
        if self.interval < 1 or self.hysteresis < 1 or not 0 < self.smallest <= self.initial <= LARGEST:
            raise ValueError(f"interval={self.interval} and hysteresis={self.hysteresis} must be at least 1, "
                             f"smallest={self.smallest} above 0 and at most initial={self.initial}, which "
                             "must be finite in fp32")


class DynamicLossScale:
    """The scale, moved by each step's outcome."""

    def __init__(self, config: LossScaleConfig):
        self.config = config
        self.scale = config.initial
        self.good = 0
        self.overflows = 0

    def update(self, overflow: bool) -> None:
        """After a step; `overflow` must be the same on every rank. The step with an overflow is not taken."""
        c = self.config
        if overflow:
            self.good = 0
            self.overflows += 1
            if self.overflows >= c.hysteresis:
                self.scale = max(self.scale * c.backoff, c.smallest)
            return
        self.good += 1
        if self.good == c.interval:
            self.good = 0
            self.overflows = 0
            if self.scale * c.growth <= LARGEST:
                self.scale *= c.growth

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self.good, "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale, self.good, self.overflows = state["scale"], int(state["good"]), int(state["overflows"])
