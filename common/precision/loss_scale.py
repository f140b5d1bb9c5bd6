"""Dynamic loss scaling for fp16 (arXiv:1710.03740, section 3.2)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LossScaleConfig:
    """initial: first scale. growth: factor after `interval` steps without overflow. backoff: factor after `hysteresis`
    overflows in a row. smallest: the scale never goes below."""

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 1000
    hysteresis: int = 1
    smallest: float = 1.0

    def __post_init__(self):
        if not self.growth > 1 > self.backoff > 0:
            raise ValueError(f"growth={self.growth} must be above 1 and backoff={self.backoff} between 0 and 1")
        if self.interval < 1 or self.hysteresis < 1 or not 0 < self.smallest <= self.initial:
            raise ValueError(f"interval={self.interval} and hysteresis={self.hysteresis} must be at least 1, "
                             f"smallest={self.smallest} above 0 and at most initial={self.initial}")


class DynamicLossScale:
    """The scale, moved by each step's outcome."""

    def __init__(self, config: LossScaleConfig):
        self.config = config
        self.scale = config.initial
        self.good = 0
        self.overflows = 0

    def update(self, overflow: bool) -> None:
        c = self.config
        if overflow:
            self.good = 0
            self.overflows += 1
            if self.overflows >= c.hysteresis:
                self.scale = max(self.scale * c.backoff, c.smallest)
                self.overflows = 0
            return
        self.overflows = 0
        self.good += 1
        if self.good == c.interval:
            self.scale *= c.growth
            self.good = 0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self.good, "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale, self.good, self.overflows = state["scale"], int(state["good"]), int(state["overflows"])
