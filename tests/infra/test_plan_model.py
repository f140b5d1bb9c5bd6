"""The recipes that plans are for: a paper's, a run's, and those of models of transformers."""

from dataclasses import replace

import pytest

from common.layers.context import Context
from common.models.language_model import LanguageModel
from common.parameters import count
from common.training.config_json import to_json
from infra.plan_model import named
from papers.interleaved_pipelining.recipes import laptop
from tests.infra.plan_configs import LLAMA, PUBLISHED, QWEN_3, written


@pytest.mark.parametrize("values, parameters", PUBLISHED, ids=["llama", "gpt-2", "qwen-2", "qwen-3"])
def test_models_of_transformers_have_their_published_size(tmp_path, values, parameters):
    found = named(written(tmp_path, values))
    assert count(LanguageModel(found.recipe.model, Context(device="meta"))) == parameters
    assert (
        found.open and found.recipe.execution.precision == "bf16" and found.recipe.execution.sharded_optimizer
    )
    assert 2e6 < found.recipe.training.batch * found.recipe.model.sequence < 8e6


def test_what_a_config_leaves_out_is_said(tmp_path):
    said = " ".join(named(written(tmp_path, QWEN_3 | {"rope_scaling": LLAMA["rope_scaling"]})).notes)
    for words in (
        "norms of single queries and keys",
        "rope_scaling is left out",
        "sequences of 8192 tokens, of 131072",
    ):
        assert words in said


def test_a_run_s_own_config_is_planned(tmp_path):
    recipe = replace(laptop(), name="again")
    assert named(written(tmp_path, to_json(recipe))).recipe == recipe
