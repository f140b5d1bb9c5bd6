"""The least memory of a recipe against what a real model and optimizer hold."""

from dataclasses import replace

import pytest

from common.grid import Grid
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.training import needs
from common.training.recipe import Recipe
from common.training.step import build


@pytest.mark.parametrize("changes", [
    {}, {"tied": False}, {"positions": "rotary"}, {"kv_heads": 2, "activation": "swiglu", "ffn": 96},
    {"pattern": "[*] [-]*3", "head_dim": 24},
])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_state_is_all_of_a_real_training_but_norms_and_biases(changes, precision):
    model = replace(LanguageModelConfig(bias=False), **changes)
    recipe = Recipe("small", model)
    recipe = replace(recipe, execution=replace(recipe.execution, precision=precision))
    training = build(model, recipe.execution, recipe.optimizer, SERIAL, 1)
    own = [p for p in training.model.parameters()]
    assert needs.weights(model) == sum(p.numel() for p in own if p.dim() > 1)
    state = sum(s.numel() * s.element_size() for p in training.optimizer.adam.state.values() for s in p.values() if s.dim())
    if not state:
        training.optimizer.steps = 0
        state = sum(s.numel() * s.element_size() for p in training.optimizer.adam.state.values()
                    for s in p.values() if s.dim())
    main = sum(m.numel() * m.element_size() for m in training.optimizer.main.values()) if precision == "bf16" else 0
    held = state + main + sum(p.numel() * (p.element_size() + 4) for p in own)
    assert 0.95 * held < needs.state_bytes(recipe) <= held


def test_copies_of_data_ranks_count_and_a_sharded_optimizer_does_not():
    recipe = Recipe("small")
    one = needs.state_bytes(recipe)
    four = replace(recipe, grid=Grid(dp=4))
    assert needs.state_bytes(four) == 4 * one
    shared = replace(four, execution=replace(four.execution, sharded_optimizer=True))
    assert needs.state_bytes(shared) == 4 * one / 2 + one / 2


def test_what_fits_is_let_through_and_what_does_not_is_named(monkeypatch):
    recipe = Recipe("small")
    need = needs.state_bytes(recipe) + needs.step_bytes(recipe)
    monkeypatch.setattr(needs, "available_memory", lambda: need)
    needs.check_memory(recipe)
    monkeypatch.setattr(needs, "available_memory", lambda: need - 1)
    with pytest.raises(ValueError, match="lower training.batch=16, micro_batch=16, model.sequence=128"):
        needs.check_memory(recipe)
