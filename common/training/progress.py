"""The progress of training for a reader: one updated line on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

REDRAW_SECONDS = 0.25
LINE_SECONDS = 10.0


class Progress:
    """Shows the latest step.

    On a terminal the line is redrawn in place, and what others print stays above it. Elsewhere (a file, a
    pipe) a line is printed for the first step, every ten seconds, and for the last.
    """

    def __init__(self, first_step: int, total_steps: int | None, stream: TextIO | None = None) -> None:
        """first_step: steps already done when this process began; total_steps: None where it is not known."""
        self._console = Console(file=stream or sys.stdout, soft_wrap=True, highlight=False, markup=False)
        self._total = total_steps
        self._done_before, self._began = first_step, time.monotonic()
        self._shown, self._line, self._line_shown = float("-inf"), "", ""
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def update(self, step: int, loss: float, tokens_per_s: float, mfu: float | None, skipped: bool) -> None:
        """Show one step, unless the last one shown is too recent."""
        now = time.monotonic()
        self._line = progress_line(step, self._total, loss, tokens_per_s, mfu, skipped, self._left(step, now))
        if now - self._shown >= (LINE_SECONDS if self._live is None else REDRAW_SECONDS):
            self._shown = now
            self._show()

    def say(self, text: str) -> None:
        """A line that stays, above the progress line where there is one."""
        self._console.print(text)

    def close(self) -> None:
        """Leave the last step's line."""
        if self._line != self._line_shown:
            self._show()
        if self._live is not None:
            self._live.stop()

    def _show(self) -> None:
        self._line_shown = self._line
        if self._live is None:
            self._console.print(self._line)
        else:
            self._live.update(Text(self._line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def _left(self, step: int, now: float) -> float | None:
        """Seconds until the last step at this process's average pace."""
        done = step - self._done_before
        if self._total is None or done < 1:
            return None
        return (now - self._began) / done * max(0, self._total - step)


def progress_line(step: int, total: int | None, loss: float, tokens_per_s: float, mfu: float | None,
                  skipped: bool, left: float | None) -> str:
    """`step 12/100  loss 3.2146  1,532 tokens/s  MFU 41.3 %  3:07 left`."""
    number = f"step {step}/{total}" if total else f"step {step}"
    parts = [number, f"loss {loss:.4f}", f"{tokens_per_s:,.0f} tokens/s"]
    if mfu is not None:
        parts.append(f"MFU {100 * mfu:.1f} %")
    if left is not None:
        parts.append(f"{clock(left)} left")
    if skipped:
        parts.append("skipped")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """3:07 for minutes and seconds, 2:03:07 with hours, 1 d 2:03:07 with days."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
