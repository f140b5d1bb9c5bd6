"""What a prediction asks of a cost model: the time of one operation, of one collective and of one message."""

from collections.abc import Sequence
from typing import Protocol

from common.trace.record import Operation


class Prices(Protocol):
    """Seconds, on one cluster. ranks: those of the whole job that take part, where every other group of the same kind
    does the same at the same time."""

    def operation(self, operation: Operation) -> float: ...

    def message(self, name: str, size: float, ranks: Sequence[int]) -> float:
        """A collective of common/trace/record.py; size: bytes of the full tensor on one rank."""

    def transfer(self, size: float, sender: int, receiver: int) -> float:
        """Bytes from one rank to another."""
