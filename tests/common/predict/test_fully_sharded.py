"""Predictions of fully sharded training: against arithmetic, cases worked out by hand, and the objects of a
real run."""

from dataclasses import replace

import pytest
import torch

from common.grid import Grid
from common.layout import Layout
from common.parallel.fully_sharded import build
from common.predict.fully_sharded import predict
from common.predict.hardware import cluster
from common.predict.memory import EXACT
from common.predict.price import Costs, play
from common.trace.record import Operation
from common.trace.streams import Transfer
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, train_step
from tests.common.predict.small import GPT, PlainCosts, recipe, selene
from tests.composition.parity import Case, records
from tests.distributed import ranks

LAYERS, HIDDEN, VOCAB, SEQUENCE = 4, 64, 264, 32  # of GPT
LAYER = 12 * HIDDEN**2 + 13 * HIDDEN
OUTSIDE = (VOCAB + SEQUENCE) * HIDDEN + 2 * HIDDEN
SMALL = replace(GPT, dropout=0.0, attention_dropout=0.0)


def of_layer(sequences: int) -> int:
    """FLOPs of a layer's forward pass: products of 12 h^2 weights, and attention over the whole square."""
    tokens = sequences * SEQUENCE
    return 2 * tokens * 12 * HIDDEN**2 + 4 * tokens * SEQUENCE * HIDDEN


def of_output(sequences: int) -> int:
    return 2 * sequences * SEQUENCE * VOCAB * HIDDEN


@pytest.mark.parametrize("recompute, times", [("none", 3), ("full", 4)])
def test_with_messages_that_take_no_time_an_iteration_is_its_computing(recompute, times):
    found = predict(recipe(SMALL, Grid(dp=4), 24, 2, recompute=recompute), selene(), PlainCosts())
    assert found.recipe.micro_batches == 3
    assert found.seconds == pytest.approx(3 * (times * LAYERS * of_layer(2) + 3 * of_output(2)), rel=1e-12)
    assert found.work.flops("hardware") == 4 * found.seconds


def test_messages_waited_for_add_up():
    """One micro-batch: each layer gathered twice and reduced once, what is outside gathered and reduced once;
    the norm."""
    r = recipe(SMALL, Grid(dp=4), 8, 2)
    costs = PlainCosts(message_seconds=1e9)
    found = predict(r, selene(), costs, overlap=False)
    computing = 3 * (LAYERS * of_layer(2) + of_output(2))
    assert found.seconds == pytest.approx(computing + (3 * LAYERS + 2 + 1) * 1e9, rel=1e-12)
    assert found.hidden == 0
    gathered = sum(size for name, size, _ in costs.sent if name == "all_gather")
    reduced = sum(size for name, size, _ in costs.sent if name == "reduce_scatter")
    whole = LAYERS * LAYER + OUTSIDE
    assert 1 <= gathered / (2 * (2 * LAYERS * LAYER + OUTSIDE)) < 1.001  # parts are padded to the ranks
    assert 1 <= reduced / (4 * whole) < 1.001
    assert {size for name, size, _ in costs.sent if name == "all_reduce"} == {8}
    assert all(group == (0, 1, 2, 3) for *_, group in costs.sent)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_short_messages_show_at_the_ends_alone(part):
    """Shorter than a layer's forward pass, they hide beside the layers, but for what nothing can stand
    beside: before the first layer the two gathers that it needs, behind its backward its sum and that of what
    is outside; and the norm."""
    message = part * of_layer(2)
    found = predict(recipe(SMALL, Grid(dp=4), 8, 2), selene(), PlainCosts(message_seconds=message))
    computing = 3 * (LAYERS * of_layer(2) + of_output(2))
    assert found.seconds == pytest.approx(computing + 5 * message, rel=1e-9)
    assert found.hidden == pytest.approx((3 * LAYERS + 2 - 4) * message, rel=1e-9)


def test_kept_parameters_are_gathered_once():
    """For forward alone; no gathered buffer is copied from in backward, and all of the model stays whole."""
    r = recipe(SMALL, Grid(dp=4), 8, 2, recompute="full")
    costs = PlainCosts(message_seconds=1e9)
    found = predict(r, selene(), costs, overlap=False, keep=True)
    computing = 4 * LAYERS * of_layer(2) + 3 * of_output(2)
    assert found.seconds == pytest.approx(computing + (2 * LAYERS + 2 + 1) * 1e9, rel=1e-12)
    gathered = sum(size for name, size, _ in costs.sent if name == "all_gather")
    assert gathered == pytest.approx(2 * (LAYERS * LAYER + OUTSIDE), rel=1e-3)
    assert found.memory.peak.by_group()["whole parameters"] == gathered
    copies = [o.phase for o in found.traced.operations if o.name == "fsdp.split_with_sizes_copy"]
    assert copies == ["forward"] * (LAYERS + 1)
    hidden = predict(r, selene(), PlainCosts(message_seconds=0.5 * of_layer(2)), keep=True)
    assert hidden.seconds == pytest.approx(computing + 5 * 0.5 * of_layer(2), rel=1e-9)


def test_long_messages_follow_one_another():
    """A group's messages take turns: an iteration cannot be shorter than all of them, and computing stands
    beside them."""
    message = 1e3 * of_layer(2)
    found = predict(recipe(SMALL, Grid(dp=4), 8, 2), selene(), PlainCosts(message_seconds=message))
    sent = (3 * LAYERS + 2 + 1) * message
    assert sent <= found.seconds < sent + 3 * (LAYERS * of_layer(2) + of_output(2))


class Named(PlainCosts):
    """Operations of one name take a second each, all else nothing."""

    name = ""

    def operation(self, operation: Operation) -> float:
        return float(operation.name == self.name)


def test_copies_travel_with_their_message():
    """A gather waits for its rank's part to be put in place: in both passes, and for what is outside."""
    costs = Named()
    costs.name = "fsdp.all_gather_copy_in"
    assert predict(recipe(SMALL, Grid(dp=4), 8, 2), selene(), costs, overlap=False).seconds == 2 * LAYERS + 1


def test_a_message_does_not_begin_before_the_program_issues_it():
    """It could after the first operation; the host issues it, the message and five more, a second each."""
    operations = [Operation("aten.mm", "forward", "", (), (), "float32", 0, 0, 0)] * 6
    message = Transfer("all_gather", "dp", 4, 8, "float32", "forward", "", 1, 6, issued=6)
    costs = PlainCosts(message_seconds=10.0, dispatch=1.0)
    assert play(operations, [(1, 6, message)], costs, {"dp": range(4)}).seconds == 1 + 1 + 5 + 10


def test_times_add_up_and_overlap_helps():
    where = cluster("selene")
    r = recipe(replace(SMALL, hidden=1024, sequence=256), Grid(dp=16), 64, 2, recompute="full")
    together, apart = (predict(r, where, Costs(where), torch.bfloat16, overlap) for overlap in (True, False))
    for found in (together, apart):
        assert sum(found.time.values()) == pytest.approx(found.seconds)
        assert found.tokens_per_second == pytest.approx(64 * 256 / found.seconds)
    assert together.seconds < apart.seconds
    assert together.hidden > 0 == apart.hidden


def test_gradients_in_half_a_type_are_half_the_bytes():
    sent = {}
    for dtype in (torch.float32, torch.bfloat16):
        costs = PlainCosts()
        predict(recipe(SMALL, Grid(dp=4), 8, 2), selene(), costs, dtype)
        sent[dtype] = sum(size for name, size, _ in costs.sent if name == "reduce_scatter")
    assert sent[torch.float32] == 2 * sent[torch.bfloat16]


def kept(context, execution: Execution) -> dict[str, int]:
    """Bytes that a real rank holds after a step, counted on torch's own objects."""
    layout = Layout(Grid(dp=context.size), context.rank)
    training = build(SMALL, execution, AdamWConfig(), layout, seed=1)
    batch = records(Case(model=SMALL), 0, context.size, context.rank, 2 * context.size, 2)
    train_step(training, batch, 1e-3, 1.0)
    parameters = list(training.model.parameters())
    moments = training.optimizer.adam.state.values()
    return {
        "main weights": sum(p.to_local().nbytes for p in parameters),
        "gradients": sum(p.grad.to_local().nbytes for p in parameters),
        "first moments": sum(m["exp_avg"].nbytes for m in moments),
        "second moments": sum(m["exp_avg_sq"].nbytes for m in moments),
    }


def test_state_is_that_of_a_real_rank():
    real, _ = ranks(2, kept, Execution("sdpa", precision="bf16"))
    found = predict(recipe(SMALL, Grid(dp=2), 4, 2, kernels="sdpa"), selene(), PlainCosts())
    terms = {t.name: t for t in found.memory.peak.terms if t.group == "parameters and optimizer"}
    assert {name: terms[name].bytes for name in real} == real
    assert all(term.certainty == EXACT for term in terms.values())


def test_whole_parameters_and_gradients_are_of_two_layers_and_what_is_outside():
    found = predict(recipe(SMALL, Grid(dp=4), 8, 2), selene(), PlainCosts()).memory.peak
    groups = found.by_group()
    assert groups["whole parameters"] == pytest.approx(2 * (2 * LAYER + OUTSIDE), rel=1e-3)
    assert groups["whole gradients"] == pytest.approx(2 * (LAYER + OUTSIDE), rel=1e-3)
    assert groups["messages"] == pytest.approx(4 * LAYER, rel=1e-3)
    assert found.needed > found.total


def test_more_ranks_keep_less_each():
    def state(dp):
        found = predict(recipe(SMALL, Grid(dp=dp), 16, 1), selene(), PlainCosts())
        return found.memory.peak.by_group()["parameters and optimizer"]

    assert state(4) == pytest.approx(2 * state(8), rel=0.01)


@pytest.mark.parametrize("grid, settings, message", [
    (Grid(tp=2, dp=2), {}, "tp=2"),
    (Grid(), {}, "dp=1"),
    (Grid(dp=4), {"precision": "fp16"}, "precision='fp16'"),
    (Grid(dp=4), {"overlap": "none"}, "overlap='none'"),
])
def test_what_cannot_be_run_is_refused(grid, settings, message):
    with pytest.raises(ValueError, match=message):
        predict(recipe(SMALL, grid, 8, 1, **settings), selene(), PlainCosts())


def test_a_cluster_too_small_is_refused():
    with pytest.raises(ValueError, match="use at most"):
        predict(recipe(SMALL, Grid(dp=512), 512, 1), cluster("jean_zay"), PlainCosts())
