"""The schedules against torch.distributed.pipelining's orders of action, and against what their papers promise."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from common.grid import Grid
from common.pipeline.schedule import Schedule
from common.pipeline.schedules import TRAINING, forward_only, gpipe, interleaved, make, one_f_one_b, zb_h1
from common.pipeline.simulate import simulate
from common.pipeline.validate import validate
from tests.common.pipeline.sizes import micro_batches, quick, ranks, times

NAMES = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "BACKWARD_INPUT": "input_gradient",
         "BACKWARD_WEIGHT": "weight_gradient"}


def ours(schedule: Schedule, rank: int) -> list[tuple[str, int, int]]:
    return [(a.kind, a.chunk * schedule.ranks + rank, a.micro_batch) for a in schedule.of(rank)]


def theirs(actions) -> list[tuple[str, int, int]]:
    """Kind, stage and micro-batch, without torch's bubbles and its reductions of gradients."""
    return [(NAMES[a.computation_type.name], a.stage_index, a.microbatch_index) for a in actions
            if a is not None and a.computation_type.name in NAMES]


def single(kind: type, p: int, m: int) -> dict[int, list]:
    """The order of a schedule with one stage per rank, which torch computes without its stages."""
    schedule = object.__new__(kind)
    schedule._num_stages, schedule._n_microbatches = p, m
    return schedule._get_pipeline_order()


def several(kind: type, p: int, v: int, m: int) -> list[list]:
    schedule = object.__new__(kind)
    schedule.pp_group_size, schedule.n_local_stages, schedule._n_microbatches = p, v, m
    schedule.microbatches_per_round = p
    return [schedule._calculate_single_rank_operations(rank) for rank in range(p)]


@pytest.mark.parametrize("p,m", [(1, 1), (1, 5), (2, 2), (3, 7), (4, 8), (8, 8), (16, 33)])
def test_orders_of_torch_with_one_stage_per_rank(p, m):
    orders = single(ScheduleGPipe, p, m)
    assert [ours(gpipe(p, m), rank) for rank in range(p)] == [theirs(orders[rank]) for rank in range(p)]
    orders = single(Schedule1F1B, p, m)
    found = [theirs(orders[rank]) for rank in range(p)]
    # Of the last rank's forwards torch says 1, 2, ... for 0, 1, ...: it counts before it numbers.
    found[-1] = [(kind, stage, i - (kind == "forward")) for kind, stage, i in found[-1]]
    assert [ours(one_f_one_b(p, m), rank) for rank in range(p)] == found


@pytest.mark.parametrize("p,v,m", [(1, 2, 3), (2, 2, 2), (2, 3, 8), (3, 2, 6), (4, 2, 8), (8, 4, 16), (16, 3, 48)])
def test_orders_of_torch_with_chunks(p, v, m):
    schedule = interleaved(p, v, m)
    for rank, order in enumerate(several(ScheduleInterleaved1F1B, p, v, m)):
        assert ours(schedule, rank) == theirs(order)


@pytest.mark.parametrize("p,m", [(1, 4), (2, 4), (3, 6), (4, 8), (8, 32), (16, 16)])
def test_zb_h1_is_torch_s_with_one_chunk(p, m):
    schedule = zb_h1(p, m)
    for rank, order in enumerate(several(ScheduleInterleavedZeroBubble, p, 1, m)):
        assert ours(schedule, rank) == theirs(order)


def test_figure_3_and_4_of_the_paper():
    """The second device of four with eight micro-batches, read off 1F1B and the interleaved schedule with two chunks."""
    plain = "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"
    assert " ".join(f"{a.kind[0].upper()}{a.micro_batch}" for a in one_f_one_b(4, 8).of(1)) == plain
    first = "F0a F1a F2a F3a F0b F1b F2b F3b F4a B0b F5a B1b F6a B2b F7a B3b F4b B0a F5b B1a"
    found = [f"{a.kind[0].upper()}{a.micro_batch}{'ab'[a.chunk]}" for a in interleaved(4, 2, 8).of(1)]
    assert " ".join(found).startswith(first)


@quick
@given(ranks, micro_batches, times, times, times)
def test_bubble_of_zb_h1(p, m, forward, inputs, weights):
    """(p - 1)(tF + tB - tW) while tW is the least of the three, and never more than 1F1B's whose backward takes tB + tW."""
    split = simulate(zb_h1(p, m), {"forward": forward, "input_gradient": inputs, "weight_gradient": weights})
    whole = simulate(one_f_one_b(p, m), {"forward": forward, "backward": inputs + weights})
    assert split.makespan <= whole.makespan
    if m >= p:
        assert set(split.idle) == {(p - 1) * max(forward + inputs - weights, forward, inputs)}


@quick
@given(ranks, micro_batches)
def test_zb_h1_with_equal_times_has_a_third_of_the_bubble(p, m):
    m += p
    sim = simulate(zb_h1(p, m), {"forward": 1, "input_gradient": 1, "weight_gradient": 1})
    assert sim.idle_over_ideal == Fraction(p - 1, 3 * m)
    assert sim.peak_in_flight == (p,) * p
    assert simulate(one_f_one_b(p, m), {"forward": 1, "backward": 2}).peak_in_flight[0] == p


def test_forward_only_takes_any_number_of_micro_batches():
    kinds = {a.kind for rank in range(3) for a in forward_only(3, 5, 2).of(rank)}
    assert kinds == {"forward"}
    order = [(a.chunk, a.micro_batch) for a in forward_only(3, 5, 2).of(0)]
    assert order == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4)]


@pytest.mark.parametrize("name", TRAINING)
def test_schedules_by_name(name):
    v = 2 if name == "interleaved" else 1
    made = make(name, 2, v, 4)
    assert (made.name, made.ranks, made.chunks, made.micro_batches, made.stages) == (name, 2, v, 4, 2 * v)


@pytest.mark.parametrize("make_it,words", [
    (lambda: make("pipedream", 2, 1, 4), ["schedule='pipedream'", *TRAINING]),
    (lambda: make("1f1b", 2, 2, 4), ["chunks=2", "1f1b", "interleaved"]),
    (lambda: make("zb-h1", 2, 2, 4), ["chunks=2", "zb-h1"]),
    (lambda: interleaved(4, 2, 10), ["10 micro-batches", "pp=4", "8 or 12"]),
    (lambda: interleaved(4, 2, 3), ["3 micro-batches", "so use 4 "]),
    (lambda: zb_h1(0, 4), ["zb-h1", "p=0", "at least 1"]),
    (lambda: gpipe(2, 0), ["gpipe", "m=0"]),
    (lambda: forward_only(2, 3, 0), ["forward_only", "v=0"]),
])
def test_refused_sizes(make_it, words):
    with pytest.raises(ValueError) as error:
        make_it()
    assert all(word in str(error.value) for word in words)


def test_speed_of_half_a_million_actions_and_of_3072_ranks():
    """64 stages, 4 chunks, 1,024 micro-batches: built, validated and simulated under 5 s; 3,072 ranks laid out under 1."""
    begin = time.process_time()
    schedule = interleaved(64, 4, 1024)
    validate(schedule)
    sim = simulate(schedule, {"forward": 1, "backward": 2})
    assert time.process_time() - begin < 5
    assert sum(len(actions) for actions in schedule.actions) == 524_288
    assert sim.idle_over_ideal == Fraction(63, 4 * 1024)

    begin = time.process_time()
    grid = Grid(tp=8, pp=64, dp=6)
    schedule = one_f_one_b(grid.pp, 512)
    lines = grid.groups("pp")
    assert time.process_time() - begin < 1
    assert (len(lines), len(lines[0]), len(schedule.actions)) == (48, 64, 64)
