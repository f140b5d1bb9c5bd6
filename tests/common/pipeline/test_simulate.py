"""The simulator against a clock that ticks, and against the bubbles and memory that the papers state."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pipeline.schedule import KEEP, Schedule, pack
from common.pipeline.schedules import forward_only, gpipe, interleaved, one_f_one_b, zb_h1
from common.pipeline.simulate import peak_held, simulate
from common.pipeline.windows import largest_windows
from tests.common.pipeline.sizes import chunks, interleavings, micro_batches, quick, ranks, schedules, times
from tests.common.pipeline.ticks import tick

small, few = st.integers(1, 5), st.integers(1, 9)
small_schedules = st.one_of(
    st.builds(gpipe, small, few), st.builds(one_f_one_b, small, few), st.builds(zb_h1, small, few),
    interleavings(small, st.integers(1, 3), st.integers(1, 3)), st.builds(forward_only, small, few, st.integers(1, 3)),
)


@quick
@given(small_schedules, st.integers(0, 3), st.one_of(st.none(), st.integers(1, 3)), st.randoms(use_true_random=False))
def test_every_start_and_end_is_the_clock_s(schedule, message, buffers, random):
    """With unequal stages, messages that take time and bounded buffers."""
    table: dict = {}

    def cost(kind, stage):
        return table.setdefault((kind, stage), random.randint(1, 5))

    expected = tick(schedule, cost, message, buffers)
    sim = simulate(schedule, cost, message, buffers=buffers)
    found = [list(zip(a.tolist(), b.tolist(), strict=True)) for a, b in zip(sim.start, sim.end, strict=True)]
    assert found == expected
    assert sim.makespan == max(end for rank in expected for _, end in rank)
    assert sim.busy == tuple(sum(end - start for start, end in rank) for rank in expected)


@quick
@given(ranks, micro_batches, times, times)
def test_bubble_of_gpipe_and_1f1b_is_exact(p, m, forward, ratio):
    costs = {"forward": forward, "backward": ratio * forward}
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        sim = simulate(schedule, costs)
        assert sim.idle_over_ideal == Fraction(p - 1, m)
        assert sim.idle_share == Fraction(p - 1, m + p - 1)
        assert set(sim.idle) == {(p - 1) * (forward + ratio * forward)}


@quick
@given(interleavings(rounds=st.integers(1, 6)), times, times)
def test_bubble_of_the_interleaved_schedule_is_exact(schedule, forward, ratio):
    sim = simulate(schedule, {"forward": forward, "backward": ratio * forward})
    assert sim.idle_over_ideal == Fraction(schedule.ranks - 1, schedule.chunks * schedule.micro_batches)


@quick
@given(ranks, micro_batches, chunks, st.integers(1, 6))
def test_micro_batches_in_flight(p, m, v, rounds):
    """GPipe: m. 1F1B: at most p, and p - r on rank r. Interleaved: L (1 + (p - 1)/(p v)) layers on the first rank."""
    assert gpipe(p, m).ranks == p and simulate(gpipe(p, m), {"forward": 1, "backward": 1}).peak_in_flight == (m,) * p
    assert peak_held(one_f_one_b(p, m)) == tuple(min(p - r, m) for r in range(p))
    assert peak_held(zb_h1(p, m)) == (min(p, m),) * p
    schedule = interleaved(p, v, p * rounds)
    layers = Fraction(96)
    held = peak_held(schedule, layers / (p * v))
    if rounds > 1:
        assert held[0] == layers * (1 + Fraction(p - 1, p * v))
    assert held[0] == min(p * v + p - 1, p * v * rounds) * layers / (p * v)
    assert sorted(held, reverse=True) == list(held)


def test_what_stages_hold():
    """Unequal stages, and a forward pass that keeps everything where the others recompute."""
    assert peak_held(interleaved(2, 2, 2), [1, 10, 100, 1000]) == (202, 1020)
    assert peak_held(one_f_one_b(3, 5), np.array([4, 2, 1])) == (12, 4, 1)
    kept = pack("forward", 0, np.array([1]), KEEP)
    order = np.concatenate([pack("forward", 0, np.array([0])), kept, pack("backward", 0, np.array([1, 0]))])
    schedule = Schedule("kept", 1, 1, 2, (order,))
    assert peak_held(schedule, lambda stage, flags: 50 if flags & KEEP else 3) == (53,)
    assert peak_held(forward_only(2, 3)) == (0, 0)


def test_costs_messages_and_overhead():
    schedule = one_f_one_b(2, 1)
    by_kind = simulate(schedule, {"forward": [1, 2], "backward": np.array([3.0, 4.0])}, messages=10)
    assert by_kind.makespan == 1 + 10 + 2 + 4 + 10 + 3
    assert by_kind.busy == (4, 6)
    by_action = simulate(schedule, [[1, 3], np.array([2, 4])], messages=lambda a, b: 10 if a < b else 100)
    assert by_action.makespan == 1 + 10 + 2 + 4 + 100 + 3
    equal = {"forward": 1, "backward": 1}
    assert simulate(schedule, equal, overhead=1).makespan == 8 and simulate(schedule, equal, overhead=1).busy == (2, 2)
    assert simulate(schedule, equal, overhead=[1, 0.5]).makespan == 2 + 1.5 + 1.5 + 2
    alone = interleaved(1, 2, 2)
    assert simulate(alone, {"forward": 1, "backward": 1}, messages=10).makespan == 8


def test_times_stay_of_the_kind_given():
    costs = {"forward": Fraction(1, 3), "backward": Fraction(2, 7)}
    assert simulate(gpipe(3, 2), costs).makespan == 4 * (Fraction(1, 3) + Fraction(2, 7))
    assert simulate(gpipe(3, 2), {"forward": 1, "backward": 2}).start[2].dtype == np.int64
    assert isinstance(simulate(gpipe(3, 2), {"forward": 0.5, "backward": 2}).idle_over_ideal, float)


@quick
@given(schedules, times, times, st.fractions(0, 1))
def test_the_buffers_of_a_schedule_cost_no_time(schedule, forward, backward, part):
    """Nothing waits to be sent while messages take less than the shortest action."""
    costs = {"forward": forward, "backward": backward, "input_gradient": backward, "weight_gradient": forward}
    message = part * min(forward, backward)
    free = simulate(schedule, costs, message)
    held = simulate(schedule, costs, message, buffers=schedule.buffers)
    assert schedule.buffers == 1 and held.makespan == free.makespan


def test_more_buffers_are_never_slower():
    costs = {"forward": 1, "backward": 2}
    spans = [simulate(gpipe(2, 8), costs, messages=6, buffers=b).makespan for b in (1, 2, 3, 6, None)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] == 1 + 8 * 6 + 1 + 2 + 8 * 6 + 2 and spans[-1] == spans[-2] == 8 + 6 + 1 + 8 * 2 + 6 + 2


@pytest.mark.parametrize("costs,words", [
    ({"forward": 1}, ["'backward'", "1f1b"]),
    ({"forward": [1, 2, 3], "backward": 1}, ["3 times of 'forward'", "2 stages"]),
    ({"forward": 1, "backward": -2}, ["-2", "at least 0"]),
    ([[1] * 6, [1] * 5], ["each of the 2 ranks", "each of its actions"]),
])
def test_costs_that_do_not_fit(costs, words):
    with pytest.raises(ValueError) as error:
        simulate(one_f_one_b(2, 3), costs)
    assert all(word in str(error.value) for word in words)


def test_overhead_that_does_not_fit():
    with pytest.raises(ValueError, match="overhead: 3 values for 2 ranks"):
        simulate(one_f_one_b(2, 3), {"forward": 1, "backward": 1}, overhead=[1, 2, 3])


@quick
@given(st.integers(2, 6))
def test_a_schedule_that_gets_stuck_is_refused(p):
    good = one_f_one_b(p, 2)
    turned = good.actions[0][::-1].copy()
    with pytest.raises(ValueError, match="rank 0, action 0 .*never comes to its end"):
        simulate(Schedule("turned", p, 1, 2, (turned, *good.actions[1:])), {"forward": 1, "backward": 1})


NUMBERS = (math.nan, -1, math.inf)


@pytest.mark.parametrize("what", [
    *({"costs": {"forward": x, "backward": 2}} for x in NUMBERS),
    *({"costs": {"forward": [1, x, 1], "backward": 2}} for x in NUMBERS),
    *({"messages": x} for x in NUMBERS), *({"messages": lambda a, b, x=x: x} for x in NUMBERS),
    *({"overhead": x} for x in NUMBERS), *({"overhead": [0, x, 0]} for x in NUMBERS),
    {"buffers": 0}, {"buffers": -1},
])
def test_numbers_that_are_no_times_are_refused_by_name(what):
    (name,) = what
    with pytest.raises(ValueError, match=f"^{name}"):
        simulate(one_f_one_b(3, 4), **{"costs": {"forward": 1, "backward": 2}} | what)


def test_a_schedule_that_takes_no_time_is_never_idle():
    played = simulate(one_f_one_b(3, 4), {"forward": 0, "backward": 0})
    assert (played.makespan, played.idle_over_ideal, played.idle_share) == (0, 0, 0)


@pytest.mark.parametrize("room", [[math.nan] * 3, [1.0], [-1.0] * 3])
def test_room_that_is_no_number_for_each_rank_is_refused(room):
    with pytest.raises(ValueError, match="^room="):
        largest_windows(one_f_one_b(3, 4), room, lambda stage, flags: 1)
