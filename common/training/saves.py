"""The checkpoints of a run: written beside training, which outlives one that could not be written."""

import time
from collections.abc import Callable

from common.checkpoint.manifest import CheckpointError
from common.checkpoint.store import Saving

RETRIES, WAIT = 20, 30.0
"""How often, and after how many seconds each time, the last checkpoint of a run is tried again."""


class Saves:
    """start: begins the checkpoint of a step, on all ranks together. failed: is told of a step whose checkpoint could not be
    written, and why; errors are the same on every rank, and so is what follows from them."""

    def __init__(self, start: Callable[[int], Saving], failed: Callable[[int, str], None]):
        self._start, self._failed = start, failed
        self._under_way: tuple[int, Saving] | None = None
        self.folder = ""  # the newest that is whole

    def begin(self, step: int) -> None:
        """The rest of it goes on beside the steps that follow. One that fails is made up for by the next."""
        self.settle()
        try:
            self._under_way = step, self._start(step)
        except CheckpointError as error:
            self._failed(step, str(error))

    def settle(self) -> None:
        """Waits for the one under way."""
        if self._under_way is None:
            return
        (step, saving), self._under_way = self._under_way, None
        try:
            self.folder = str(saving.wait())
        except CheckpointError as error:
            self._failed(step, str(error))

    def finish(self, step: int) -> None:
        """The last one, of a state that only this process holds: tried again, for there may soon be room. CheckpointError
        when there is none to the end."""
        self.settle()
        for left in range(RETRIES, -1, -1):
            try:
                self.folder = str(self._start(step).wait())
                return
            except CheckpointError as error:
                if left == 0:
                    raise
                self._failed(step, f"{error}; the last checkpoint is tried again in {WAIT:g} s, {left} times more")
                time.sleep(WAIT)
