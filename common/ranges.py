"""What values a config's numbers may have; NaN is in no range."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 2**63 - 1  # what a tensor's element, size or seed holds


@dataclass(frozen=True)
class Range:
    words: str
    holds: Callable[[Any], bool]


COUNT = Range("a whole number of at least 1, below 2^63", lambda x: 1 <= x <= LARGEST)
WHOLE = Range("a whole number of at least 0, below 2^63", lambda x: 0 <= x <= LARGEST)
ABOVE_ZERO = Range("a finite number above 0", lambda x: 0 < x < math.inf)
ABOVE_ZERO_OR_INF = Range("a number above 0, or inf for none", lambda x: x > 0)
FROM_ZERO = Range("a finite number of at least 0", lambda x: 0 <= x < math.inf)
BELOW_ONE = Range("a number from 0 up to, not including, 1", lambda x: 0 <= x < 1)


def check_ranges(config: Any, ranges: Mapping[str, Range]) -> None:
    """Raises ValueError naming the first field of `config` whose value, None left out, is not in its range."""
    for name, expected in ranges.items():
        value = getattr(config, name)
        if value is not None and not expected.holds(value):
            raise ValueError(f"{name}={value}: use {expected.words}")
