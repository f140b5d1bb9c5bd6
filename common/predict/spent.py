"""Where the time of one pass goes: operations one after the other, messages beside them where the trace let them be.

A message starts when the operations before it are done and the message before it has gone, and whoever waits for it
does nothing else until it is there. What is waited for is exposed; the rest of its time is hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

from common.predict.pieces import Pass
from common.trace.record import Message, Operation

ROTARY = "rotary"


@dataclass(frozen=True)
class Spent:
    """Seconds. recomputation: all that is made again, with the messages it waits for. hidden: messages beside operations;
    it is no part of the total."""

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    recomputation: float = 0.0
    exposed: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return self.products + self.attention + self.elementwise + self.recomputation + self.exposed

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> "Spent":
        return Spent(*(times * getattr(self, f.name) for f in fields(self)))


def in_attention(operation: Operation) -> bool:
    """Whether it is of the attention core: what attention itself runs between its projections, positions left out."""
    branch, _, last = operation.module.rpartition(".")
    return last == "mixer" and branch.rpartition(".")[2].startswith("attention") and ROTARY not in operation.name


def kind(operation: Operation) -> str:
    """The field of Spent that an operation belongs to."""
    if operation.phase == "recompute":
        return "recomputation"
    if in_attention(operation):
        return "attention"
    return "products" if operation.flops else "elementwise"


def spend(one: Pass, operation: Callable[[Operation], float], message: Callable[[Message], float]) -> Spent:
    """operation, message: seconds that each takes by itself."""
    seconds = dict.fromkeys((f.name for f in fields(Spent)), 0.0)
    now = free = 0.0
    under_way: dict[int, list[tuple[float, float, bool]]] = {}
    sent = sorted(range(len(one.messages)), key=lambda i: one.messages[i].start)
    at = 0
    for i in range(len(one.operations) + 1):
        while at < len(sent) and one.messages[sent[at]].start == i:
            m = one.messages[sent[at]]
            takes = message(m)
            free = max(now, free) + takes
            under_way.setdefault(m.end, []).append((free, takes, m.phase == "recompute"))
            at += 1
        for arrival, takes, again in under_way.pop(i, ()):
            waited = max(arrival - now, 0.0)
            seconds["recomputation" if again else "exposed"] += waited
            seconds["hidden"] += max(takes - waited, 0.0)
            now += waited
        if i < len(one.operations):
            takes = operation(one.operations[i])
            seconds[kind(one.operations[i])] += takes
            now += takes
    return Spent(**seconds)
