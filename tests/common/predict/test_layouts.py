"""Layouts of a model against a plain enumeration with the checks of training."""

from dataclasses import replace
from itertools import product

import pytest

from common.grid import Grid
from common.predict.layouts import POLICIES, Refusals, layouts
from common.training.recipe import TrainingConfig
from tests.common.predict.small import GPT, LLAMA, recipe


@pytest.mark.parametrize("model, kernels, ranks, batch", [(GPT, "paper", 8, 8), (LLAMA, "sdpa", 6, 12)])
def test_every_layout_that_can_be_is_there_once(model, kernels, ranks, batch):
    base = recipe(model, batch=batch, kernels=kernels)
    found = list(layouts(base, ranks, Refusals()))
    numbers = range(1, ranks + 1)
    wanted = set()
    for tp, dp, pp in product(numbers, numbers, numbers):
        if tp * dp * pp != ranks:
            continue
        schedules = [("1f1b", 1)] + ([("zb-h1", 1)] + [("interleaved", c) for c in range(2, 5)]) * (pp > 1)
        for (schedule, chunks), cut, policy, sharded, micro in product(
            schedules, (False, True), POLICIES, (False, True), range(1, batch + 1)
        ):
            if (cut and tp == 1) or (sharded and dp == 1):
                continue
            one = replace(
                base,
                grid=Grid(tp=tp, dp=dp, pp=pp),
                training=TrainingConfig(batch=batch, micro_batch=micro),
                execution=replace(
                    base.execution,
                    schedule=schedule,
                    chunks=chunks,
                    recompute=policy,
                    sequence_parallel=cut,
                    sharded_optimizer=sharded,
                ),
            )
            try:
                one.check()
            except ValueError:
                continue
            wanted.add(one)
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_refusals_are_counted_with_an_example():
    refused = Refusals()
    list(layouts(recipe(GPT, batch=4), 8, refused))
    assert refused.counts["tensor size"] == 1 and "heads=4" in refused.examples["tensor size"]
    assert refused.counts["batch"] == 1 and "dp=8" in refused.examples["batch"]
    assert "8 stages" in refused.examples["pipeline cut"]
    assert refused.counts.keys() == refused.examples.keys()


def test_what_is_searched_keeps_the_model_and_the_batch():
    base = recipe(GPT, batch=8)
    for one in layouts(base, 4, Refusals()):
        assert (one.model, one.training.batch, one.execution.kernels, one.grid.world) == (GPT, 8, "paper", 4)
