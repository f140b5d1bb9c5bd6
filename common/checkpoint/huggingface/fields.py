"""config.json of a checkpoint, read so that what it says and this project cannot run is refused by name."""

from typing import Any


class Fields:
    """The fields of one config.json. Every error names the field, its value and what would work."""

    def __init__(self, architecture: str, values: dict[str, Any]):
        self.architecture, self.values = architecture, values

    def require(self, *kinds: dict[str, type]) -> None:
        """Raises ValueError naming all of the fields that are missing or null, or one of another type."""
        needed = {name: kind for group in kinds for name, kind in group.items()}
        missing = [n for n in needed if self.values.get(n) is None]
        if missing:
            raise ValueError(f"config.json of {self.architecture} lacks {', '.join(missing)}")
        for name, kind in needed.items():
            value = self.values[name]
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise self.refusal(name, value, f"a value of type {kind.__name__} is needed")

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or the architecture's own default where it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def only(self, name: str, works: Any, why: str) -> None:
        """Refuses the field unless it is missing, null or equal to `works`."""
        value = self.get(name, works)
        if value != works:
            raise self.refusal(name, value, f"{why}; only {works!r} is supported")

    def choice(self, name: str, choices: dict[str, str]) -> str:
        """What the field's value is called here."""
        value = self.values[name]
        if value not in choices:
            raise self.refusal(name, value, f"supported are {', '.join(sorted(choices))}")
        return choices[value]

    def refusal(self, name: str, value: Any, why: str) -> ValueError:
        return ValueError(f"config.json of {self.architecture} has {name}={value!r}: {why}")


def rotary_base(fields: Fields) -> float:
    """The base of plain rotary positions; any scaling of them is refused.

    Written as `rope_theta` and `rope_scaling`, or by newer versions both in `rope_parameters`.
    """
    bases = {}
    if fields.get("rope_theta") is not None:
        bases["rope_theta"] = fields.get("rope_theta")
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name, {})
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise fields.refusal(
                name, rope, f"rotary scaling {kind!r} is not supported, only 'default' (none)"
            )
        unknown = set(rope) - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
        if unknown or rope.get("partial_rotary_factor", 1) != 1:
            raise fields.refusal(name, rope, "only rope_theta, over the whole head, is supported")
        if "rope_theta" in rope:
            bases[f"{name}.rope_theta"] = rope["rope_theta"]
    if len(set(bases.values())) > 1:
        raise ValueError(f"config.json of {fields.architecture} gives several bases of rotary positions: "
                         + ", ".join(f"{n}={v}" for n, v in bases.items()))
    return float(next(iter(bases.values()), 10_000.0))


def full_attention(fields: Fields, window: int | None, sequence: int) -> None:
    """Refuses attention windows that a sequence of `sequence` tokens would feel."""
    if window is not None and window < sequence:
        raise fields.refusal(
            "sliding_window",
            window,
            "attention windows are not supported; a max_position_embeddings "
            f"of at most {window} keeps every sequence inside one",
        )
    windowed = {"sliding_attention"} if window is not None else set()  # by now as good as full
    other = set(fields.get("layer_types", ())) - {"full_attention"} - windowed
    if other:
        raise fields.refusal("layer_types", sorted(other), "only 'full_attention' is supported")
