"""Iterations with costs that are plain arithmetic: what a pipeline must then take, and that terms add up."""

from dataclasses import replace

import pytest

from common.grid import Grid
from common.models.flops import model_flops
from common.predict.hardware import cluster
from common.predict.iteration import check, predict
from common.predict.price import Costs
from common.training.recipe import TrainingConfig
from tests.common.predict.small import GPT, PlainCosts, recipe, selene


@pytest.mark.parametrize(
    "grid, execution",
    [
        (Grid(), {}),
        (
            Grid(tp=4, dp=2, pp=2),
            {"schedule": "interleaved", "chunks": 2, "sequence_parallel": True, "recompute": "selective"},
        ),
        (Grid(dp=2, pp=4), {"schedule": "zb-h1", "sharded_optimizer": True}),
        (Grid(dp=2, pp=4), {"schedule": "gpipe", "recompute": "full", "overlap": "none"}),
    ],
)
def test_terms_of_time_add_up(grid, execution):
    found = predict(recipe(GPT, grid, batch=16, **execution), selene(), Costs(selene()))
    assert sum(found.time.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert all(seconds > -1e-9 * found.seconds for seconds in found.time.values())
    assert found.seconds > found.played.makespan


def test_one_rank_takes_a_second_for_each_flop():
    found = predict(recipe(GPT, batch=4), selene(), PlainCosts())
    assert found.seconds == pytest.approx(model_flops(GPT, 4), rel=1e-12)
    assert found.flops_per_second() == pytest.approx(1.0)
    assert found.utilisation() == pytest.approx(1 / 312e12)


@pytest.mark.parametrize("schedule, chunks", [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_bubble_is_that_of_the_formula(schedule, chunks):
    """arXiv:2104.04473, section 2.2: the pipeline fills and drains in (p - 1) / v micro-batches of time.

    With a vocabulary that weighs nothing, all stages are alike."""
    pp, micro_batches = 4, 8
    model = replace(GPT, pattern="[*-]*8", hidden=256, vocab=257, tied=False)
    found = predict(
        recipe(model, Grid(pp=pp), micro_batches, schedule=schedule, chunks=chunks), selene(), PlainCosts()
    )
    layers = model_flops(replace(model, vocab=1), micro_batches) - model_flops(
        replace(model, vocab=1, pattern="[*-]"), 0
    )
    rank = layers / pp
    assert found.seconds == pytest.approx(rank * (1 + (pp - 1) / (chunks * micro_batches)), rel=0.05)
    assert found.time["pipeline bubble"] > 0.9 * rank * (pp - 1) / (chunks * micro_batches)


def test_another_micro_batch_costs_what_the_longest_stage_takes():
    base = recipe(GPT, Grid(pp=2), batch=6)
    more = replace(base, training=TrainingConfig(batch=7, micro_batch=1))
    short, long = (predict(r, selene(), PlainCosts()) for r in (base, more))
    stage = max(t.of("forward") + t.of("backward") for t in short.times)
    assert long.seconds - short.seconds == pytest.approx(stage)


def test_messages_between_stages_delay_or_are_waited_for():
    """One micro-batch through p stages: 2 (p - 1) messages on its way. Many: their senders wait for each."""
    costs = PlainCosts(per_flop=1e-9, transfer_seconds=1.0)
    one = predict(recipe(GPT, Grid(pp=4), batch=1), selene(), costs)
    assert one.time["messages between stages"] == pytest.approx(6.0)
    beside, waited = (
        predict(
            recipe(GPT, Grid(pp=2), batch=32, overlap=overlap),
            selene(),
            PlainCosts(per_flop=1.0, transfer_seconds=1000.0),
        )
        for overlap in ("pp", "none")
    )
    assert beside.time["messages between stages"] < 6 * 1000.0 + 32 * 1000.0
    assert waited.time["messages between stages"] >= 32 * 1000.0


@pytest.mark.parametrize(
    "sequence_parallel, scatter_gather, joins",
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_slices_are_joined_before_the_pass_that_needs_them(sequence_parallel, scatter_gather, joins):
    costs = PlainCosts(message_seconds=1.0)
    found = predict(
        recipe(GPT, Grid(tp=2, pp=2), sequence_parallel=sequence_parallel, scatter_gather=scatter_gather),
        selene(),
        costs,
    )
    assert [t.edges for t in found.times] == ([(0.0, 1.0), (1.0, 0.0)] if joins else [(0.0, 0.0)] * 2)
    if joins:
        whole = 2 * GPT.sequence * GPT.hidden
        assert ("all_gather", whole, (0, 1)) in costs.sent


def test_rates_follow_from_seconds():
    found = predict(recipe(GPT, Grid(dp=2), batch=16), selene(), Costs(selene()))
    assert found.tokens == 16 * GPT.sequence
    assert found.days(found.tokens * 86_400) == pytest.approx(found.seconds)
    assert found.tokens_per_second * found.seconds == pytest.approx(found.tokens)


@pytest.mark.parametrize(
    "words, made",
    [
        ("more than selene takes", lambda: (recipe(GPT, Grid(dp=4481), batch=4481), selene())),
        ("not available", lambda: (recipe(GPT), cluster("dgx2_v100"))),
        ("use 1", lambda: (recipe(GPT, Grid(cp=2)), selene())),
        ("heads=4 does not divide", lambda: (recipe(GPT, Grid(tp=8)), selene())),
        (
            "micro-batches",
            lambda: (recipe(GPT, Grid(pp=2), batch=3, schedule="interleaved", chunks=2), selene()),
        ),
    ],
)
def test_what_cannot_run_is_refused(words, made):
    with pytest.raises(ValueError, match=words):
        check(*made())
