"""Where the time of a pass goes, by kind."""

from dataclasses import dataclass, fields

from common.trace.record import Operation

ROTARY = "rotary"


@dataclass(frozen=True)
class Spent:
    """Seconds. recomputation: all that is made again, with the messages it waits for. exposed: messages waited for. host:
    waiting to be given work. hidden: messages beside operations; it is no part of the total."""

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    optimizer: float = 0.0
    recomputation: float = 0.0
    exposed: float = 0.0
    host: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self)) - self.hidden

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
    if operation.phase in ("optimizer", "recompute"):
        return {"optimizer": "optimizer", "recompute": "recomputation"}[operation.phase]
    if in_attention(operation):
        return "attention"
    return "products" if operation.flops else "elementwise"
