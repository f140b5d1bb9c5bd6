"""What it takes for our value to agree with a published one.

`ours` and `published` are a number or a tuple of numbers of the same length; every element has to agree.
`spread` is an interval (low, high) for each of our numbers, or None where the value is exact. A tolerance on
a distance looks at the value itself; a bound or an order must hold over the whole spread.
"""

from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import ClassVar, Protocol

from common.claims.published import Number, Value

Interval = tuple[float, float]
Spread = Interval | tuple[Interval, ...] | None


class Tolerance(Protocol):
    """Decides whether ours agrees with the published value.

    `equals`: ours should be the published value, so that the distance between them is an error.
    """

    equals: ClassVar[bool]

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        """True if ours agrees; ValueError if the two cannot be compared."""
        ...

    def text(self) -> str:
        """What is demanded, in a few words."""
        ...


def numbers(value: Value) -> tuple[float, ...]:
    """A value as a tuple of floats; ValueError for a text."""
    if isinstance(value, str):
        raise ValueError(f"{value!r} is a text where a number is compared")
    return tuple(float(item) for item in value) if isinstance(value, tuple) else (float(value),)


def pairs(ours: Value, published: Value) -> list[tuple[float, float]]:
    """(ours, published) element by element; ValueError if there are not as many of one as of the other."""
    mine, theirs = numbers(ours), numbers(published)
    if len(mine) != len(theirs):
        raise ValueError(f"ours has {len(mine)} numbers, the published value {len(theirs)}")
    return list(zip(mine, theirs, strict=True))


def intervals(ours: Value, spread: Spread) -> tuple[Interval, ...]:
    """The spread of each number of ours; a number without spread is an interval of no width."""
    mine = numbers(ours)
    if spread is None:
        return tuple((item, item) for item in mine)
    found = spread if isinstance(spread[0], tuple) else (spread,)
    if len(found) != len(mine):
        raise ValueError(f"{len(found)} spreads for {len(mine)} numbers")
    return found  # type: ignore[return-value]


def places(number: Number) -> int:
    """Digits after the decimal point that a number is printed with: 41.5 has 1, 39 has 0."""
    exponent = Decimal(repr(number)).as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


@dataclass(frozen=True)
class Relative:
    """Within a fraction of the published value: `Relative(0.001)` is 0.1 %."""

    equals: ClassVar[bool] = True
    fraction: float

    def __post_init__(self) -> None:
        _positive("Relative", self.fraction)

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        return all(
            abs(mine - theirs) <= self.fraction * abs(theirs) for mine, theirs in pairs(ours, published)
        )

    def text(self) -> str:
        return f"within {100 * self.fraction:g} %"


@dataclass(frozen=True)
class Absolute:
    """Within an amount, in the unit of the claim; `why` says where the amount comes from."""

    equals: ClassVar[bool] = True
    amount: float
    why: str = ""

    def __post_init__(self) -> None:
        _positive("Absolute", self.amount)

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        room = self.amount * (1 + 1e-9)  # 41.55 - 41.5 is not 0.05 in binary
        return all(abs(mine - theirs) <= room for mine, theirs in pairs(ours, published))

    def text(self) -> str:
        return f"within {self.amount:g}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Reading:
    """Within `factor` times the reading error that published.toml states for a value read off a figure."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _positive("Reading", self.factor)

    def resolve(self, published: Value, read_error: float | None) -> Absolute:
        """The same as an amount; ValueError if the published claim states no reading error."""
        if read_error is None:
            raise ValueError("Reading() needs a read_error in published.toml")
        why = "reading error" if self.factor == 1 else f"{self.factor:g} × the reading error"
        return Absolute(self.factor * read_error, why)


@dataclass(frozen=True)
class Rounding:
    """Rounds to the published value: within half of its last printed digit, `units` times."""

    units: float = 1.0

    def __post_init__(self) -> None:
        _positive("Rounding", self.units)

    def resolve(self, published: Value, read_error: float | None) -> Absolute:
        """The same as an amount; a list is taken as printed with the digits of its longest number."""
        printed = published if isinstance(published, tuple) else (published,)
        digits = max(places(item) for item in printed if not isinstance(item, str))
        if digits > 6:
            raise ValueError(f"Rounding() needs a value as printed, not {published}")
        why = "as printed" if self.units == 1 else f"{self.units:g} × the rounding"
        return Absolute(self.units * 0.5 * 10.0**-digits, why)


@dataclass(frozen=True)
class AtLeast:
    """Not below `limit`, or not below the published value where no limit is given."""

    equals: ClassVar[bool] = False
    limit: float | None = None

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        floors = _limits(ours, published, self.limit)
        return all(low >= floor for (low, _), floor in zip(intervals(ours, spread), floors, strict=True))

    def text(self) -> str:
        return "at least the published value" if self.limit is None else f"at least {self.limit:g}"


@dataclass(frozen=True)
class AtMost:
    """Not above `limit`, or not above the published value where no limit is given."""

    equals: ClassVar[bool] = False
    limit: float | None = None

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        roofs = _limits(ours, published, self.limit)
        return all(high <= roof for (_, high), roof in zip(intervals(ours, spread), roofs, strict=True))

    def text(self) -> str:
        return "at most the published value" if self.limit is None else f"at most {self.limit:g}"


@dataclass(frozen=True)
class Between:
    """Each of our numbers inside the published range, a pair (low, high)."""

    equals: ClassVar[bool] = False

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        bounds = numbers(published)
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            raise ValueError(f"Between() needs a published pair (low, high), not {published}")
        return all(bounds[0] <= low and high <= bounds[1] for low, high in intervals(ours, spread))

    def text(self) -> str:
        return "inside the published range"


@dataclass(frozen=True)
class Order:
    """In the published order: where two published numbers differ, ours differ the same way, spreads apart."""

    equals: ClassVar[bool] = False

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        compared = pairs(ours, published)
        if len(compared) < 2:
            raise ValueError("Order() needs at least two numbers")
        found = intervals(ours, spread)
        for i, j in combinations(range(len(compared)), 2):
            below, above = (i, j) if compared[i][1] < compared[j][1] else (j, i)
            if compared[i][1] != compared[j][1] and not found[below][1] < found[above][0]:
                return False
        return True

    def text(self) -> str:
        return "in the published order"


@dataclass(frozen=True)
class Equal:
    """The very same number, numbers or text."""

    equals: ClassVar[bool] = True

    def holds(self, ours: Value, published: Value, spread: Spread = None) -> bool:
        if isinstance(ours, str) != isinstance(published, str):
            raise ValueError(f"a text is compared with a number: ours {ours!r}, published {published!r}")
        return ours == published

    def text(self) -> str:
        return "equal"


def _positive(name: str, amount: float) -> None:
    if not 0 < amount < float("inf"):
        raise ValueError(f"{name}({amount}) is no tolerance; give a positive number, or Equal()")


def _limits(ours: Value, published: Value, limit: float | None) -> tuple[float, ...]:
    if limit is not None:
        return (limit,) * len(numbers(ours))
    return tuple(theirs for _, theirs in pairs(ours, published))
