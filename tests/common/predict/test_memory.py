"""Memory against what real ranks hold, the papers' formulas, and schedules walked through."""

from dataclasses import replace

import pytest

from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.pipeline.schedules import make
from common.predict.memory import ASSUMED, EXACT, FRAGMENTATION, held, peaks, rank_memory, state
from common.predict.stages import stages
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, build
from tests.common.predict.small import GPT, LLAMA, recipe, selene
from tests.distributed import ranks


def _storages(context, model, execution, grid) -> tuple[int, int]:
    """Bytes of all storages that stay on this rank from step to step, and the number of its buckets."""
    training = build(model, execution, AdamWConfig(), Layout(grid, context.rank), seed=0)
    training.optimizer.state()
    gradients = training.gradients
    buckets = [*sum(gradients.chunks, []), *gradients.late]
    kept = [p for _, p, _ in gradients.parameters] + list(training.optimizer.main.values())
    kept += [x for b in buckets for x in (b.flat, b.shard, b.values) if x is not None]
    kept += [x for held in training.optimizer.adam.state.values() for x in held.values()]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values()), len(
        buckets
    )


@pytest.mark.parametrize(
    "model, grid, execution",
    [
        (GPT, Grid(tp=2, dp=2), Execution("paper", precision="bf16", sharded_optimizer=True)),
        (
            GPT,
            Grid(dp=2, pp=2),
            Execution("paper", precision="bf16", schedule="interleaved", chunks=2, sharded_optimizer=True),
        ),
        (LLAMA, Grid(tp=2, pp=2), Execution("paper", True, precision="fp16")),
        (LLAMA, Grid(dp=4), Execution("paper", precision="fp32", sharded_optimizer=True, bucket=5000)),
        (LLAMA, Grid(dp=4), Execution("paper", precision="fp32")),
    ],
    ids=["tensor and data", "interleaved", "sequence parallel", "small buckets", "whole optimizer"],
)
def test_what_stays_is_what_real_ranks_hold(model, grid, execution):
    made = stages(model, execution, grid, 1)
    for rank, (found, buckets) in enumerate(ranks(4, _storages, model, execution, grid)):
        pp = grid.coordinates(rank)["pp"]
        predicted = state(made[pp :: grid.pp], execution, grid)
        counters = predicted.pop("step counters")
        # Pieces are counted with a counter for each parameter; a data rank has them for its part alone.
        padding = buckets * grid.dp * 16 if execution.sharded_optimizer else 0
        assert found - counters - padding <= sum(predicted.values()) <= found, (rank, predicted)


S, H, A, T, L, P = 64, 128, 4, 4, 8, 4
PAPER = LanguageModelConfig(
    f"[*-]*{L}", hidden=H, heads=A, vocab=512, sequence=S, dropout=0.1, attention_dropout=0.1
)
LAYER = {  # arXiv:2205.05198, table 2
    (False, "none"): S * H * (10 + 24 / T + 5 * A * S / (H * T)),
    (True, "none"): S * H * (34 / T + 5 * A * S / (H * T)),
    (True, "selective"): S * H * 34 / T,
    (False, "full"): 2 * S * H,
}


@pytest.mark.parametrize("sequence_parallel, recompute", LAYER)
@pytest.mark.parametrize(
    "schedule, chunks, factor",
    [("1f1b", 1, 1), ("interleaved", 2, 1 + (P - 1) / (2 * P)), ("gpipe", 1, 16 / P)],
)
def test_activations_of_the_first_rank(sequence_parallel, recompute, schedule, chunks, factor):
    """Section 4.2: L layers' worth under 1F1B, L (1 + (p - 1) / (p m)) when interleaved; all under GPipe."""
    grid, micro_batches = Grid(tp=T, pp=P), 16
    execution = Execution("paper", sequence_parallel, recompute, "bf16", schedule=schedule, chunks=chunks)
    made = stages(PAPER, execution, grid, 1)
    plan = make(schedule, P, chunks, micro_batches)
    memory = rank_memory(0, made[0::P], peaks(plan, made)[0], execution, grid, selene().accelerator, 0)
    found = sum(
        term.bytes
        for term in memory.terms
        if term.group == "activations"
        and term.certainty == EXACT
        and not term.name.startswith("embedding")
        and "statistics" not in term.name
    )
    assert found == pytest.approx(factor * L * LAYER[sequence_parallel, recompute], rel=1e-9)


@pytest.mark.parametrize(
    "name, pp, chunks, micro_batches",
    [("1f1b", 4, 1, 8), ("1f1b", 4, 1, 2), ("gpipe", 3, 1, 5), ("interleaved", 4, 3, 8), ("zb-h1", 4, 1, 8)],
)
def test_held_bytes_follow_the_actions(name, pp, chunks, micro_batches):
    plan = make(name, pp, chunks, micro_batches)
    execution = Execution("paper", precision="bf16", chunks=chunks)
    made = stages(replace(GPT, pattern=f"[*-]*{pp * chunks}"), execution, Grid(pp=pp), 1)
    for rank, moment in enumerate(peaks(plan, made)):
        alive, most, curve = [0] * chunks, 0, []
        for action in plan.of(rank):
            alive[action.chunk] += action.kind == "forward"
            kept = sum(n * made[plan.stage(rank, c)].kept for c, n in enumerate(alive))
            most = max(most, kept + made[plan.stage(rank, action.chunk)].moment)
            alive[action.chunk] -= action.kind in ("backward", "weight_gradient")
            curve.append(sum(n * made[plan.stage(rank, c)].kept for c, n in enumerate(alive)))
        assert held(plan, made, rank).tolist() == curve and curve[-1] == 0
        assert (
            sum(n * made[plan.stage(rank, c)].kept for c, n in enumerate(moment.in_flight)) + moment.passing
            == most
        )


def test_terms_add_up_and_say_how_sure_they_are():
    base = recipe(GPT, Grid(tp=2, dp=2, pp=2))
    made = stages(base.model, base.execution, base.grid, 1)
    plan = make("1f1b", 2, 1, base.micro_batches)
    found = rank_memory(
        0, made[:1], peaks(plan, made)[0], base.execution, base.grid, selene().accelerator, 1000
    )
    assert found.total == pytest.approx(sum(found.by_group().values()))
    groups = found.by_group()
    loose = groups["activations"] + groups["temporaries"] + groups["messages"]
    assert found.apart == pytest.approx(FRAGMENTATION * loose)
    assert found.needed == found.total + found.apart
    assert {t.certainty for t in found.terms if t.group == "libraries"} == {ASSUMED}
    assert groups["messages"] == 4000


def test_a_stage_holds_for_a_moment_no_less_than_its_last_piece():
    """Logits in fp32 with their gradient are the most that a small model with a large vocabulary holds."""
    wide = replace(GPT, vocab=8192, dropout=0.0, attention_dropout=0.0)
    (stage,) = stages(wide, Execution("sdpa", precision="bf16"), Grid(), 2)
    logits = 4 * 2 * wide.sequence * wide.vocab
    assert stage.kept + stage.moment >= 2 * logits
