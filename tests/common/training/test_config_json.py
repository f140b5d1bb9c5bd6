"""Configs come back from JSON equal, and a field that does not fit is named."""

import enum
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.training.config_json import from_json, to_json


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass(frozen=True)
class Cosine:
    peak: float
    warmup: int = 0


@dataclass(frozen=True)
class Constant:
    rate: float


@dataclass(frozen=True)
class Inner:
    name: str
    rates: tuple[float, ...] = ()
    size: tuple[int, int] = (1, 2)

    def __post_init__(self):
        if self.size[0] < 1:
            raise ValueError(f"size={self.size}: needs at least 1")


@dataclass(frozen=True)
class Outer:
    inner: Inner
    several: tuple[Inner, ...]
    schedule: Cosine | Constant
    limit: int | None
    flag: bool
    folder: Path
    mode: Literal["a", "b"]
    colour: Colour
    weights: dict[str, float]
    either: int | str
    anything: Any = None
    derived: int = field(init=False, default=3)


finite = st.floats(allow_nan=False, allow_infinity=True)
inners = st.builds(Inner, st.text(max_size=5), st.lists(finite, max_size=3).map(tuple),
                   st.tuples(st.integers(1, 10**20), st.integers()))
outers = st.builds(
    Outer, inners, st.lists(inners, max_size=2).map(tuple),
    st.one_of(st.builds(Cosine, finite, st.integers()), st.builds(Constant, finite)),
    st.none() | st.integers(), st.booleans(), st.sampled_from([Path("a/b"), Path("/c d")]),
    st.sampled_from(["a", "b"]), st.sampled_from(Colour),
    st.dictionaries(st.text(max_size=3), finite, max_size=2), st.integers() | st.text(max_size=3),
    st.none() | st.just([1, {"k": "v"}]))


@given(outers)
def test_every_config_comes_back_equal_through_strict_json(config):
    text = json.dumps(to_json(config), allow_nan=False)
    assert from_json(Outer, json.loads(text)) == config


def test_not_a_number_comes_back():
    text = json.dumps(to_json(Constant(math.nan)), allow_nan=False)
    assert math.isnan(from_json(Constant, json.loads(text)).rate)


def sample() -> dict:
    return to_json(Outer(Inner("i"), (Inner("j"), Inner("k")), Cosine(1e-3, 5), None, True, Path("p"), "a",
                         Colour.RED, {"x": 1.0}, "word"))


def changed(path: list, value: Any = None, remove: bool = False) -> dict:
    data = sample()
    place = data
    for step in path[:-1]:
        place = place[step]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


@pytest.mark.parametrize("data, message", [
    (changed(["new"], 1), "new is not a field of Outer: it has inner, several"),
    (changed(["inner", "nmae"], 1), r"inner\.nmae is not a field of Inner: it has name, rates, size"),
    (changed(["flag"], remove=True), "flag is missing: Outer has"),
    (changed(["several", 1, "rates"], remove=True), r"several\[1\]\.rates is missing"),
    (changed(["derived"], 3), "derived is not a field"),
    (changed(["inner", "name"], 3), r"inner\.name is 3: it must be str"),
    (changed(["flag"], 1), "flag is 1: it must be bool"),
    (changed(["limit"], True), "limit is True: it must be int or null"),
    (changed(["limit"], 1.0), "limit is 1.0: it must be int or null"),
    (changed(["inner", "rates"], [1, "x"]), r"inner\.rates\[1\] is 'x': it must be float"),
    (changed(["inner", "size"], [1, 2, 3]), r"inner\.size is \[1, 2, 3\]: it must be tuple\[int, int\]"),
    (changed(["mode"], "c"), "mode is 'c': it must be .*Literal"),
    (changed(["colour"], "GREEN"), "colour is 'GREEN': it must be one of RED, BLUE"),
    (changed(["weights", "x"], None), r"weights\.x is None: it must be float"),
    (changed(["schedule", "peak"], "high"), r"schedule\.peak is 'high': it must be float"),
    (changed(["schedule", "pace"], 1.0), r"schedule\.pace is not a field of Cosine"),
    (changed(["inner", "size"], [0, 1]), r"size=\(0, 1\): needs at least 1"),
    ([1], r"the config must be an object with the fields of Outer, not \[1\]"),
    (changed(["inner"], "i"), "inner must be an object with the fields of Inner, not 'i'"),
])
def test_what_does_not_fit_is_named(data, message):
    with pytest.raises(ValueError, match=message):
        from_json(Outer, data)


def test_an_integer_is_taken_for_a_float_and_becomes_one():
    rate = from_json(Constant, {"rate": 1}).rate
    assert rate == 1.0 and type(rate) is float


@pytest.mark.parametrize("value", [object(), {1: 2}, b"bytes", {1, 2}])
def test_what_json_cannot_carry_is_refused(value):
    with pytest.raises(ValueError, match="a config cannot hold"):
        to_json(Outer(Inner("i"), (), Constant(1.0), None, True, Path("p"), "a", Colour.RED, {}, 1, value))
