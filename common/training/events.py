"""What went wrong in a step: updates that were skipped, and spikes of the loss."""

import statistics
from collections import deque
from collections.abc import Iterable

WINDOW = 64  # steps that a loss is held against, half of them at least
SPIKE, LEAST = 6.0, 0.1  # standard deviations, by the median absolute deviation; nats
NORMAL = 1.4826  # of a normal distribution: standard deviation over median absolute deviation


class Unstable(RuntimeError):
    """Too many steps in a row whose loss or gradient was not finite."""


class Watch:
    """Looks at every step of a run.

    patience: skipped steps in a row before the run ends. losses: of the steps before, where a run goes on.
    """

    def __init__(self, patience: int, losses: Iterable[float] = ()):
        self.patience, self.bad = patience, 0
        self.losses = deque(losses, maxlen=WINDOW)

    def event(self, loss: float, skipped: bool) -> str | None:
        """What the step is to be remembered for, "skipped" or "spike", if anything."""
        if skipped:
            self.bad += 1
            return "skipped"
        self.bad = 0
        found = self._spike(loss)
        self.losses.append(loss)
        return "spike" if found else None

    def check(self, step: int) -> None:
        """Raises Unstable where the last steps, up to this one, were skipped too often."""
        if self.bad >= self.patience:
            raise Unstable(f"{self.bad} steps in a row, up to step {step}, had a loss or gradient that is not finite; "
                           f"lower rate.peak, or raise training.patience")

    def _spike(self, loss: float) -> bool:
        if len(self.losses) < WINDOW // 2:
            return False
        middle = statistics.median(self.losses)
        spread = NORMAL * statistics.median(abs(x - middle) for x in self.losses)
        return loss - middle > max(SPIKE * spread, LEAST)
