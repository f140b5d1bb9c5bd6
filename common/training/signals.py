"""Signals that ask a run to stop: noted when they come, acted on by all ranks after the same step."""

import signal
from types import FrameType
from typing import Self

import torch
import torch.distributed as dist

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopSignals:
    """While entered, the signals only set a flag; `agreed` tells all ranks the same after a step.

    Enter it in the main thread.
    """

    def __init__(self, signals: tuple[signal.Signals, ...] = STOP_SIGNALS) -> None:
        self._signals = signals
        self._before: dict[signal.Signals, object] = {}
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"
               ) -> signal.Signals | None:
        """The signal that any rank of `group` (default: all) has received, the same on each; None for none.

        Every rank of the group must call it after the same step. Of several signals it is the one with
        the highest number. `device` is where the group's backend reduces.
        """
        number = torch.tensor(self.received or 0, dtype=torch.int64, device=device)
        if dist.is_initialized():
            dist.all_reduce(number, dist.ReduceOp.MAX, group=group)
        return signal.Signals(number.item()) if number.item() else None

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number)
