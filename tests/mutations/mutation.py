"""What a mutation is."""

from dataclasses import dataclass

REGRESSIONS = "tests/regressions"
PARITY = "tests/composition"


@dataclass(frozen=True)
class Mutation:
    """`old` stands once in `file` and becomes `new`; `tests` are run in this order until one fails."""

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (REGRESSIONS, PARITY)
