"""Schedules against torch's and megatron-core's."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.training.schedules import BatchSize, LearningRate


def torch_rates(make, peak, count):
    """The rates that a torch scheduler gives to updates 0, 1, ..."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = make(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_cosine_after_warm_up_is_torchs():
    from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

    def make(optimizer):
        warm = LinearLR(optimizer, start_factor=1 / 8, total_iters=7)
        return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, 92, eta_min=1e-5)], [8])

    schedule = LearningRate(peak=1e-3, total=100, warmup=8, floor=1e-5)
    assert [schedule.at(step) for step in range(100)] == pytest.approx(torch_rates(make, 1e-3, 100), rel=1e-9)


def test_linear_decay_is_torchs():
    from torch.optim.lr_scheduler import LinearLR

    schedule = LearningRate(peak=0.5, total=40, floor=0.1, decay="linear")
    expected = torch_rates(lambda o: LinearLR(o, 1.0, 0.2, total_iters=40), 0.5, 60)
    assert [schedule.at(step) for step in range(60)] == pytest.approx(expected, rel=1e-9)


def test_constant_after_warm_up():
    schedule = LearningRate(peak=2.0, total=10, warmup=4, decay="constant")
    assert [schedule.at(step) for step in range(7)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0]
    assert schedule.at(10**9) == 2.0


@pytest.mark.parametrize("style", ["cosine", "linear", "constant"])
def test_in_samples_it_is_megatrons_at_the_batch_borders(style):
    """megatron-core counts samples done before the update in warm-up, this project those after it."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    group = {"lr": 0.0, "params": [], "wd_mult": 1.0}
    theirs = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]), init_lr=0.0, max_lr=3e-4, min_lr=3e-5, lr_warmup_steps=640,
        lr_decay_steps=6400, lr_decay_style=style, start_wd=0.0, end_wd=0.0, wd_incr_steps=6400,
        wd_incr_style="constant")
    ours = LearningRate(peak=3e-4, total=6400, warmup=640, floor=3e-5, decay=style)
    for samples in range(0, 8000, 64):
        theirs.num_steps = samples
        expected = theirs.get_lr(group)
        assert ours.at(samples - 64 if samples <= 640 else samples, 64) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 1000), st.integers(0, 1000), st.sampled_from(["cosine", "linear"]),
       st.integers(0, 3000))
def test_no_update_has_a_rate_of_zero_before_the_end_and_none_leaves_its_bounds(total, warmup, decay, step):
    warmup = min(warmup, total)
    schedule = LearningRate(peak=1.0, total=total, warmup=warmup, floor=0.0, decay=decay)
    assert 0 <= schedule.at(step) <= 1.0
    assert (schedule.at(step) > 0) == (step < max(total, warmup + 1))
    assert schedule.at(step + 1) <= schedule.at(step) or step + 1 < warmup


def test_the_middle_of_a_cosine_is_the_mean():
    assert LearningRate(peak=1.0, total=100, floor=0.2).at(50) == pytest.approx(0.6)
    assert LearningRate(peak=1.0, total=100, floor=0.2).at(25) == pytest.approx(0.6 + 0.4 * math.sqrt(0.5))


@pytest.mark.parametrize("changes, message", [
    ({"decay": "square"}, "decay='square': use one of cosine, linear, constant"),
    ({"floor": 2.0}, "floor=2.0 must be between 0 and peak=1.0"),
    ({"floor": -1.0}, "floor=-1.0: use a finite number of at least 0"),
    ({"total": 0}, "total=0: use a whole number of at least 1"),
    ({"warmup": 11}, "warmup=11 must be between 0 and total=10"),
    ({"warmup": -1}, "warmup=-1: use a whole number"),
    ({"peak": math.nan}, "peak=nan: use a finite number"),
])
def test_learning_rates_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LearningRate(**({"peak": 1.0, "total": 10} | changes))


def test_the_batch_size_is_constant_without_a_ramp():
    batch = BatchSize(48)
    assert [batch.at(samples) for samples in (0, 1, 10**9)] == [48] * 3
    assert list(batch.sizes) == [48]


@pytest.mark.parametrize("start, increment, ramp, final", [(32, 32, 5_859_375, 1920), (16, 8, 1000, 64),
                                                           (4, 4, 1003, 12)])
def test_the_ramp_is_megatrons(start, increment, ramp, final):
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    theirs = RampupBatchsizeNumMicroBatchesCalculator(
        global_batch_size=final, micro_batch_size=1, data_parallel_size=1,
        decrease_batch_size_if_needed=False, rank=1, start_global_batch_size=start,
        batch_size_increment=increment, ramup_samples=ramp)
    ours = BatchSize(final, start, increment, ramp)
    samples = 0
    while samples < ramp * 1.1:
        theirs.update(samples, consistency_check=False)
        assert ours.at(samples) == theirs.get_current_global_batch_size()
        samples += ours.at(samples)


def test_a_ramp_without_growth_is_constant():
    assert [BatchSize(8, 8, 8, 100).at(samples) for samples in (0, 50, 200)] == [8, 8, 8]


def test_each_size_of_a_ramp_is_held_for_as_many_samples():
    """12 billion tokens in sequences of 2,048, from 32 to 1,920 by 32: 59 increments."""
    batch = BatchSize(1920, 32, 32, 12_000_000_000 // 2048)
    assert len(batch.sizes) == 60
    held = {}
    samples = 0
    while batch.at(samples) < 1920:
        held[batch.at(samples)] = held.get(batch.at(samples), 0) + batch.at(samples)
        samples += batch.at(samples)
    assert list(held) == list(range(32, 1920, 32))
    assert all(abs(count - 5_859_375 / 59) <= 2 * size for size, count in held.items())


@pytest.mark.parametrize("values, message", [
    ({"final": 0}, "final=0: a batch needs at least 1 sample"),
    ({"final": 8, "start": 4}, "without a ramp: set ramp"),
    ({"final": 8, "ramp": 100}, "ramp=100 needs both start and increment"),
    ({"final": 8, "start": 16, "increment": 4, "ramp": 100}, "start at most final=8"),
    ({"final": 8, "start": 4, "increment": 0, "ramp": 100}, "increment=0"),
    ({"final": 9, "start": 4, "increment": 4, "ramp": 100}, "increment=4 does not divide final - start = 5"),
    ({"final": 8, "start": 4, "increment": 4, "ramp": -1}, "ramp=-1"),
])
def test_ramps_that_cannot_be_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BatchSize(**values)


def test_a_size_that_ranks_cannot_share_is_named():
    BatchSize(24, 8, 8, 100).check(4, "micro-batch 2 times dp 2")
    with pytest.raises(ValueError, match=r"batch size 12 is not a multiple of 8 \(micro-batch"):
        BatchSize(24, 8, 4, 100).check(8, "micro-batch 4 times dp 2")
