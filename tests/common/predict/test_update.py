"""What follows the passes, against the real buckets of gradients and plain arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.pipeline.schedules import make
from common.pipeline.simulate import simulate
from common.predict.stages import stages
from common.predict.update import Update
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, build
from tests.common.predict.small import GPT, LLAMA, PlainCosts, selene
from tests.distributed import ranks


def _elements(context, model, execution, grid) -> tuple[list[int], int]:
    """Of the real buckets: sums for each chunk, and those that wait for other ranks of the model."""
    training = build(model, execution, AdamWConfig(), Layout(grid, context.rank), seed=0)
    of = [[sum(p.numel() for _, p, _ in b.parameters) for b in chunk] for chunk in training.gradients.chunks]
    return [sum(chunk) for chunk in of], sum(
        p.numel() for b in training.gradients.late for _, p, _ in b.parameters
    )


@pytest.mark.parametrize(
    "model, grid, execution",
    [
        (GPT, Grid(tp=2, pp=2), Execution("paper", True, precision="bf16")),
        (GPT, Grid(dp=2, pp=2), Execution("paper", precision="bf16", schedule="interleaved", chunks=2)),
        (LLAMA, Grid(tp=4), Execution("paper", True, precision="bf16")),
        (replace(LLAMA, tied=True, vocab=264), Grid(tp=2, pp=2), Execution("paper", precision="bf16")),
    ],
    ids=["norms and tied", "tied alone", "copies of key-value heads", "tied Llama"],
)
def test_elements_that_are_summed_early_and_late(model, grid, execution):
    found = ranks(4, _elements, model, execution, grid)
    loads = Update(model, execution, grid, PlainCosts()).loads(stages(model, execution, grid, 1))
    for rank, (chunks, late) in enumerate(found):
        load = loads[grid.coordinates(rank)["pp"]]
        assert (list(load.chunks), load.late) == (chunks, late)


def _ending(
    execution: Execution,
    grid: Grid,
    costs: PlainCosts,
    micro_batches: int = 4,
    model: LanguageModelConfig = GPT,
):
    plan = make(execution.schedule, grid.pp, execution.chunks, micro_batches)
    played = simulate(plan, {"forward": 1.0, "backward": 2.0})
    update = Update(model, execution, grid, costs)
    loads = update.loads(stages(model, execution, grid, 1))
    return played, loads, update.ending(played, loads)


@pytest.mark.parametrize(
    "sharded, reduce_in, name, width",
    [
        (False, "main", "all_reduce", 4),
        (True, "main", "reduce_scatter", 4),
        (True, "parameters", "reduce_scatter", 2),
    ],
)
def test_every_gradient_is_sent_once_and_every_parameter_gathered(sharded, reduce_in, name, width):
    costs = PlainCosts(message_seconds=1.0)
    execution = Execution(
        "paper", precision="bf16", sharded_optimizer=sharded, bucket=10_000, reduce_in=reduce_in
    )
    played, (load,), ending = _ending(execution, Grid(dp=4), costs)
    messages = len(ending.sums[0])
    assert messages == -(-load.total // 10_000)  # rounded up: buckets of at most so many elements
    sizes = [size for kind, size, _ in costs.sent if kind == name and size != 8]  # 8 bytes: the squared norm
    assert sizes and all(size * messages == pytest.approx(width * load.total) for size in sizes)
    gathered = [size for kind, size, _ in costs.sent if kind == "all_gather"]
    assert bool(gathered) == sharded
    if sharded:
        assert gathered[0] * ending.gather == pytest.approx(2 * load.total)  # bf16, a second each


def test_sums_begin_when_gradients_are_there():
    grid, costs = Grid(dp=2, pp=2), PlainCosts(message_seconds=0.25)
    apart = Execution("paper", precision="bf16", bucket=10_000, overlap="none")
    played, loads, ending = _ending(apart, grid, costs)
    for (
        spans
    ) in ending.sums:  # both ranks hold the embedding, whose sum comes first and begins when both are done
        assert "tied" in spans[0].name and spans[0].start == max(end[-1] for end in played.end)
        assert all(a.end == b.start for a, b in zip(spans, spans[1:], strict=False))
    beside = replace(apart, overlap="dp")
    _, _, overlapped = _ending(beside, grid, costs)
    last = played.end[1][-1]
    early = [span for span in overlapped.sums[1] if span.start < last]
    assert early and min(span.start for span in early) > played.start[1][-1]  # inside the last backward pass
    assert overlapped.ready < ending.ready


def test_tied_embeddings_are_summed_when_both_ends_are_done():
    grid, costs = Grid(pp=4), PlainCosts(message_seconds=0.5)
    played, loads, ending = _ending(Execution("paper", precision="bf16"), grid, costs)
    spans = [[s for s in sums if "tied" in s.name] for sums in ending.sums]
    assert [len(found) for found in spans] == [1, 0, 0, 1]
    done = max(played.end[0][-1], played.end[3][-1])
    assert spans[0][0].start == spans[3][0].start == done and spans[0][0].end == done + 0.5
    assert {(size, group) for name, size, group in costs.sent if group == (0, 3)} == {
        (4 * GPT.vocab * GPT.hidden, (0, 3))
    }


def test_one_rank_sends_nothing():
    costs = PlainCosts(message_seconds=1.0)
    played, _, ending = _ending(Execution("paper", precision="bf16"), Grid(), costs)
    assert not costs.sent and ending.sums == ((),) and ending.ready == played.makespan and ending.gather == 0


def test_update_moves_the_bytes_of_adam():
    """Bound by memory: 4-byte gradients, main weights and two moments are read, the last three written,
    2-byte weights written; zeroing, norm and clipping pass over gradients again. A quarter takes a quarter."""
    from common.predict.price import Costs

    cluster = selene()
    model = replace(GPT, hidden=2048, heads=16, vocab=51_200)
    loads, seconds = {}, {}
    for dp, sharded in ((1, False), (4, True)):
        execution = Execution("paper", precision="bf16", sharded_optimizer=sharded)
        update = Update(model, execution, Grid(dp=dp), Costs(cluster))
        (loads[dp],) = update.loads(stages(model, execution, Grid(dp=dp), 1))
        seconds[dp] = update.update(loads[dp])
    least = (4 * 4 + 3 * 4 + 2) * loads[1].total / cluster.accelerator.memory_bandwidth
    assert least < seconds[1] < 3 * least
    zeroing = 4 * loads[1].total / cluster.accelerator.memory_bandwidth
    assert np.isclose(seconds[4], zeroing + (seconds[1] - zeroing) / 4, rtol=0.15)
