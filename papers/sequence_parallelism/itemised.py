"""Parts of a sum as a line of text, "layers 66.8438 + weights 5.1562", for the detail of a result and back."""

from collections.abc import Mapping


def itemised(parts: Mapping[str, float]) -> str:
    return " + ".join(f"{name} {amount:.4f}" for name, amount in parts.items())


def items(text: str) -> dict[str, float]:
    """The parts again, up to the first semicolon."""
    pairs = (part.rsplit(" ", 1) for part in text.partition(";")[0].split(" + "))
    return {name: float(amount) for name, amount in pairs}
