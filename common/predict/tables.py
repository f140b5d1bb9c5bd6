"""Times between measured sizes of one thing."""

import math
from collections.abc import Sequence

from common.predict.machine import Collective, Kernel


def between(size: float, rows: Sequence[Kernel] | Sequence[Collective]) -> float:
    """Seconds for `size` bytes from rows by rising size: on a line in logarithms, and beyond the largest at its rate.

    Below the smallest its own time holds.
    """
    if size >= rows[-1].bytes:
        return rows[-1].seconds * size / rows[-1].bytes
    if size <= rows[0].bytes:
        return rows[0].seconds
    low, high = next((a, b) for a, b in zip(rows, rows[1:], strict=False) if size <= b.bytes)
    at = math.log(size / low.bytes) / math.log(high.bytes / low.bytes)
    return low.seconds * (high.seconds / low.seconds) ** at
