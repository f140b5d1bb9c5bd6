"""Searches: closed forms against schedules and simulations, and that the best found is the best there is."""

from dataclasses import replace

import pytest

from common.grid import Grid
from common.pipeline.schedules import make
from common.predict.iteration import predict
from common.predict.layouts import Refusals, layouts
from common.predict.price import Costs
from common.predict.scaling import Scaler
from common.predict.search import GROUPS, breaking, describe, in_flight, search
from tests.common.predict.small import GPT, recipe, selene


@pytest.mark.parametrize(
    "name, chunks", [("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("interleaved", 2), ("interleaved", 3)]
)
@pytest.mark.parametrize("pp, micro_batches", [(2, 4), (4, 4), (4, 12), (3, 6), (5, 20)])
def test_in_flight_is_the_most_that_the_schedule_has(name, chunks, pp, micro_batches):
    plan = make(name, pp, chunks, micro_batches)
    found = in_flight(name, pp, chunks, micro_batches)
    for rank in range(pp):
        alive, most = [0] * chunks, []
        for action in plan.of(rank):
            alive[action.chunk] += action.kind == "forward"
            most = max(most, list(alive), key=sum)
            alive[action.chunk] -= action.kind in ("backward", "weight_gradient")
        assert found[rank].tolist() == most


@pytest.fixture(scope="module")
def base():
    model = replace(
        GPT,
        pattern="[*-]*8",
        hidden=2048,
        heads=2,
        vocab=51_200,
        sequence=512,
        dropout=0.0,
        attention_dropout=0.0,
    )
    return recipe(model, batch=16, kernels="sdpa")


@pytest.fixture(scope="module")
def found(base):
    return search(base, selene(), Costs(selene()), 8, simulated=8)


def test_closed_form_is_near_the_simulation(base, found):
    """Every third layout, simulated from the same traces: memory within 5 %, time within 12 %."""
    scaler = Scaler(base.model, {e.recipe.grid.tp for e in found.estimates})
    for estimate in found.estimates[::3]:
        exact = predict(estimate.recipe, selene(), Costs(selene()), scaler)
        assert estimate.needed == pytest.approx(exact.memory.peak.needed, rel=0.05), describe(estimate.recipe)
        assert estimate.seconds == pytest.approx(exact.seconds, rel=0.12), describe(estimate.recipe)


def test_scaled_traces_need_no_less_memory_and_as_much_time(base, found):
    for estimate in found.estimates[::60]:
        scaled = predict(estimate.recipe, selene(), Costs(selene()), Scaler(base.model, {1, 2}))
        exact = predict(estimate.recipe, selene(), Costs(selene()))
        assert scaled.seconds == pytest.approx(exact.seconds, rel=1e-6)
        assert (
            exact.memory.peak.needed
            <= scaled.memory.peak.needed * (1 + 1e-9)
            <= 1.05 * exact.memory.peak.needed
        )


def test_every_layout_is_estimated_and_the_best_come_first(base, found):
    assert {e.recipe for e in found.estimates} == set(layouts(base, 8, Refusals()))
    seconds = [p.seconds for p in found.best]
    assert seconds == sorted(seconds) and 0 < len(seconds) <= 8
    assert all(p.memory.fits for p in found.best)
    assert seconds[0] < 1.05 * min(e.seconds for e in found.estimates if e.breaks is None)


def test_simulated_layouts_are_those_that_predict_gives(found):
    again = predict(found.best[0].recipe, selene(), Costs(selene()))
    assert again.seconds == pytest.approx(found.best[0].seconds, rel=1e-9)


def test_memory_that_breaks_is_named_in_the_order_of_the_terms():
    assert breaking(dict.fromkeys(GROUPS, 1.0), 6.0) is None
    assert breaking(dict.fromkeys(GROUPS, 1.0), 2.5) == "messages"
    assert breaking({"parameters and optimizer": 3.0}, 2.5) == "parameters and optimizer"


def test_a_model_that_fits_nowhere_has_a_closest_layout():
    huge = recipe(replace(GPT, pattern="[*-]*8", hidden=16_384, heads=1, vocab=51_200), batch=2)
    nothing = search(huge, selene(), Costs(selene()), 2, simulated=2)
    assert not nothing.best and nothing.closest.breaks == "parameters and optimizer"
    assert nothing.closest.needed == min(e.needed for e in nothing.estimates) > nothing.limit
    assert sum(
        count for reason, count in nothing.refused.counts.items() if reason.startswith("memory")
    ) == len(nothing.estimates)


def test_more_ranks_than_the_cluster_has_are_refused():
    with pytest.raises(ValueError, match="more than selene takes"):
        search(recipe(GPT), selene(), Costs(selene()), 4481)


def test_a_layout_in_words():
    one = recipe(
        GPT,
        Grid(tp=2, dp=2, pp=2),
        schedule="interleaved",
        chunks=2,
        sequence_parallel=True,
        recompute="full",
    )
    assert describe(one) == (
        "tp 2, pp 2, dp 2, micro-batch 1, interleaved in 2 chunks, sequence parallel, recompute full"
    )
