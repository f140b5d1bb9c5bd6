"""Scaled pieces against pieces traced at the same size: every number of every operation, equal."""

from dataclasses import fields
from functools import partial

import pytest

from common.predict.pieces import Way, pieces
from common.predict.scaling import Scaler
from tests.common.predict.small import GPT, LLAMA

WIDE_GPT = type(GPT)(
    **{f.name: getattr(GPT, f.name) for f in fields(GPT)}
    | {"hidden": 96, "heads": 12, "vocab": 264, "sequence": 36}
)
WIDE_LLAMA = type(LLAMA)(
    **{f.name: getattr(LLAMA, f.name) for f in fields(LLAMA)}
    | {"hidden": 96, "heads": 12, "kv_heads": 12, "ffn": 144, "vocab": 264, "sequence": 36}
)


def _but(refused: Way, model, unit, way, alone):
    """Pieces of all ways but one."""
    assert way != refused
    return pieces(model, unit, way, alone)


@pytest.mark.parametrize(
    "model, way, alone",
    [
        (WIDE_GPT, Way(3, 3, "paper", False, "none", "bf16"), False),
        (WIDE_GPT, Way(12, 5, "paper", True, "selective", "fp16"), False),
        (WIDE_GPT, Way(4, 4, "sdpa", False, "full", "bf16", overlap=False), True),
        (WIDE_LLAMA, Way(4, 6, "sdpa", True, "norm,activation", "bf16"), False),
        (WIDE_LLAMA, Way(1, 7, "sdpa", False, "none", "bf16"), True),
        (WIDE_LLAMA, Way(4, 1, "sdpa", False, "none", "bf16"), False),
    ],
)
def test_scaled_pieces_are_those_traced_at_that_size(monkeypatch, model, way, alone):
    """Tensor sizes 2 to 12, micro-batches 1 to 16, traced at the ends; peaks bounded from above."""
    traced = pieces(model, "*-", way, alone)
    monkeypatch.setattr("common.predict.scaling.pieces", partial(_but, way))
    scaled = Scaler(model, (1, 2, 3, 4, 6, 12))(model, "*-", way, alone)
    for part in ("embedding", "output", "layer"):
        one, other = getattr(scaled, part), getattr(traced, part)
        for f in fields(one):
            if f.name != "moment":
                assert getattr(one, f.name) == getattr(other, f.name), (part, f.name)
        assert other.moment <= one.moment <= 1.5 * other.moment


def test_key_value_heads_held_by_several_ranks_are_scaled_apart():
    way = Way(12, 3, "sdpa", False, "none", "bf16")
    model = type(LLAMA)(**{f.name: getattr(WIDE_LLAMA, f.name) for f in fields(LLAMA)} | {"kv_heads": 3})
    sizes = (1, 3, 6, 12)
    assert Scaler(model, sizes)(model, "*-", way).layer.forward == pieces(model, "*-", way).layer.forward
