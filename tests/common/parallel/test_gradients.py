"""Main gradients on one process: norm and clipping against torch's own."""

from dataclasses import replace

import pytest
import torch

from common.grid import Grid
from common.layout import SERIAL, Layout
from common.parallel.gradients import Gradients
from common.training.optimizer import AdamWConfig, Optimizer
from common.training.step import build as build_training
from common.training.step import train_step
from tests.common.models.test_language_model import GPT, build, record
from tests.composition.parity import GPT as TIED
from tests.composition.parity import Case, records
from tests.distributed import ranks


@pytest.mark.parametrize("limit", [0.01, 1e3])
def test_norm_and_clip_are_torch_s(limit):
    ours, theirs = build(GPT), build(GPT)
    gradients = Gradients([ours], SERIAL, torch.float64)
    for model in (ours, theirs):
        model(record(GPT), {})[1]["language"].sum.backward()
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    assert gradients.clip(limit).item() == pytest.approx(expected.item(), rel=1e-12)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.main_grad, b.grad, rtol=1e-12, atol=0)


def test_zero_lets_the_next_step_start_from_nothing():
    model = build(GPT)
    gradients = Gradients([model], SERIAL, torch.float64)
    found = []
    for _ in range(2):
        gradients.zero()
        model(record(GPT), {})[1]["language"].sum.backward()
        found.append([p.main_grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_every_gradient_lies_in_one_buffer():
    model = build(GPT)
    gradients = Gradients([model], SERIAL, torch.float64)
    (bucket,) = gradients.buckets
    flat = bucket.flat
    assert flat.numel() == sum(p.numel() for p in model.parameters())
    flat.fill_(3.0)
    assert all((p.main_grad == 3).all() and (p.grad == 3).all() for p in model.parameters())


def overlapped(context, chunks_of: int) -> tuple[list[bool], bool]:
    """Which buckets had started their reduction when the backward pass ended, and whether the sums are right."""
    model = build(GPT)
    layout = Layout(Grid(dp=2), context.rank)
    gradients = Gradients([model], layout, torch.float64, bucket=chunks_of)
    plain = build(GPT)
    for m in (model, plain):
        if m is model:
            gradients.expect(0)
        m(record(GPT), {})[1]["language"].sum.backward()
    started = [b.started for b in gradients.buckets]
    gradients.complete(0)
    gradients.reduce()
    right = all(torch.allclose(a.main_grad, 2 * b.grad) for a, b in
                zip(model.parameters(), plain.parameters(), strict=True))
    return started, right


def test_buckets_are_reduced_while_backward_runs():
    for started, right in ranks(2, overlapped, 2000):
        assert len(started) > 3 and all(started) and right


def bytes_held(context, sharded: bool) -> tuple[int, int]:
    """Bytes of moments, and of the largest bucket's moments."""
    model = build(GPT)
    gradients = Gradients([model], Layout(Grid(dp=4), context.rank), torch.float64, sharded, bucket=2000)
    state = Optimizer(gradients, AdamWConfig()).state()
    held = sum(run.data.nbytes for kind in ("exp_avg", "exp_avg_sq") for run in state[kind].values())
    return held, max(2 * b.flat.nbytes for b in gradients.buckets)


def test_a_sharded_optimizer_holds_its_share_within_one_bucket():
    whole, _ = ranks(4, bytes_held, False)[0]
    shares = ranks(4, bytes_held, True)
    assert sum(held for held, _ in shares) == whole
    assert all(abs(held - whole / 4) <= bucket for held, bucket in shares)


def summed_in(context, sharded: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's sums, and what rounding both ranks' gradients to bf16 and adding them gives."""
    model, layout = build(GPT), Layout(Grid(dp=2), context.rank)
    gradients = Gradients([model], layout, torch.float64, sharded, bucket=500, reduce_in=torch.bfloat16)
    model(record(GPT), {})[1]["language"].sum.backward()
    for p in model.parameters():
        p.main_grad.mul_(1 + context.rank)
    whole = {b: (b.flat / (1 + context.rank)).clone() for b in gradients.buckets}
    gradients.reduce()
    found = []
    for b in gradients.buckets:
        total = whole[b].bfloat16() + (2 * whole[b]).bfloat16()
        found.append((b.shard, total[b.first:b.first + b.shard.numel()].double()))
    return found


@pytest.mark.parametrize("sharded", [False, True])
def test_data_ranks_may_send_gradients_in_another_type(sharded):
    for found in ranks(2, summed_in, sharded):
        for ours, expected in found:
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def tied_tables(context, sizes: dict[str, int], steps: int) -> torch.Tensor | None:
    """The embedding's table on this rank after some steps, None on ranks that hold none."""
    case = Case(Grid(**sizes), sharded=True, batch=8, micro=2,
                model=replace(TIED, pattern="[*-]*5", hidden=21, head_dim=3, heads=4, kv_heads=1))
    layout = Layout(case.grid, context.rank)
    execution = replace(case.execution, bucket=100)
    training = build_training(case.model, execution, AdamWConfig(clip=0.5, eps=1e-3), layout, seed=7)
    for step in range(steps):
        train_step(training, records(case, step, layout.size("dp"), layout.index("dp"), 8, 2), 1e-2, 0.5)
    return next((p.detach().clone() for n, p, _ in training.gradients.parameters if n.endswith("tokens")), None)


@pytest.mark.parametrize("sizes", [{"tp": 2, "dp": 2, "pp": 2}, {"dp": 3, "pp": 2}, {"dp": 2, "pp": 2}])
def test_tied_tables_at_both_ends_stay_the_same_bit_for_bit(sizes):
    grid = Grid(**sizes)
    found = ranks(grid.world, tied_tables, sizes, 12)
    for rank in range(grid.world):
        line = grid.group(rank, "pp")
        assert torch.equal(found[line[0]], found[line[-1]])
