"""What validate lets through and what it catches, against a clock that ticks."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common.pipeline.schedule import CODE, Schedule, pack
from common.pipeline.schedules import forward_only, gpipe, interleaved, one_f_one_b, zb_h1
from common.pipeline.validate import validate
from tests.common.pipeline.sizes import interleavings, quick, schedules
from tests.common.pipeline.ticks import tick

F, B, I, W = (CODE[kind] for kind in ("forward", "backward", "input_gradient", "weight_gradient"))
small, few = st.integers(1, 4), st.integers(1, 6)
small_schedules = st.one_of(
    st.builds(one_f_one_b, small, few), st.builds(zb_h1, small, few), st.builds(gpipe, small, few),
    interleavings(small, st.integers(1, 3), st.integers(1, 2)), st.builds(forward_only, small, few, st.integers(1, 3)),
)


def changed(schedule: Schedule, rank: int, change) -> Schedule:
    """The schedule with change(list of rows) made to the actions of one rank."""
    rows = [list(row) for row in schedule.actions[rank].tolist()]
    change(rows)
    actions = list(schedule.actions)
    actions[rank] = np.array(rows, dtype=np.int32).reshape(-1, 4)
    return Schedule(schedule.name, schedule.ranks, schedule.chunks, schedule.micro_batches, tuple(actions),
                    schedule.buffers)


def refused(schedule: Schedule, *words: str, buffers: int | None = None) -> None:
    with pytest.raises(ValueError) as error:
        validate(schedule, buffers)
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{missing} not in: {error.value}"


@quick
@given(schedules)
def test_our_schedules_can_be_run(schedule):
    assert schedule.buffers == 1
    validate(schedule)
    validate(schedule, 3)


def swap(rows, a, b):
    rows[a], rows[b] = rows[b], rows[a]


@quick
@given(small_schedules, st.data())
def test_two_actions_swapped_run_or_are_refused_as_the_clock_says(schedule, data):
    """Any two actions of a rank: what the clock runs to its end, first in first out, is what validate lets through."""
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    count = len(schedule.actions[rank])
    assume(count > 1)
    a, b = data.draw(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)))
    turned = changed(schedule, rank, lambda rows: swap(rows, a, b))
    buffers = data.draw(st.integers(1, 3))
    if runs(turned, buffers):
        validate(turned, buffers)
    else:
        refused(turned, "rank ", buffers=buffers)


def runs(schedule: Schedule, buffers: int) -> bool:
    """No backward before its forward, no channel overtaken, and the clock reaches the end."""
    needs = {"backward": "forward", "input_gradient": "forward", "weight_gradient": "input_gradient"}
    towards = {"forward": -1, "backward": 1, "input_gradient": 1}
    sent, taken = {}, {}
    for rank in range(schedule.ranks):
        seen = set()
        for kind, chunk, micro_batch, _ in schedule.of(rank):
            if kind in needs and (needs[kind], chunk, micro_batch) not in seen:
                return False
            seen.add((kind, chunk, micro_batch))
            way, stage = towards.get(kind), chunk * schedule.ranks + rank
            if way and 0 <= stage + way < schedule.stages:
                taken.setdefault(((stage + way) % schedule.ranks, rank, way), []).append((stage, micro_batch))
            if way and 0 <= stage - way < schedule.stages:
                sent.setdefault((rank, (stage - way) % schedule.ranks, way), []).append((stage - way, micro_batch))
    far = [channel for channel in sent if channel[0] != channel[1]]
    return all(sent[channel] == taken[channel] for channel in far) and tick(schedule, lambda *_: 1, 0, buffers) is not None


@quick
@given(schedules, st.data())
def test_a_missing_and_a_doubled_action_are_caught(schedule, data):
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    place = data.draw(st.integers(0, len(schedule.actions[rank]) - 1))
    again = data.draw(st.integers(0, len(schedule.actions[rank])))
    code, chunk, micro_batch, _ = schedule.actions[rank][place].tolist()
    assume(code != B or schedule.stages * schedule.micro_batches > 1)
    where = f"micro-batch {micro_batch}, chunk {chunk}"  # (what is left of one pair is forward-only)
    refused(changed(schedule, rank, lambda rows: rows.pop(place)), f"rank {rank}", where)
    refused(changed(schedule, rank, lambda rows: rows.insert(again, list(rows[place]))), f"rank {rank}, action", where,
            "repeats action")


def test_causes_are_named():
    plain, split = one_f_one_b(3, 4), zb_h1(3, 4)
    assert plain.actions[1][:3, :3].tolist() == [[F, 0, 0], [F, 0, 1], [B, 0, 0]]
    refused(changed(plain, 1, lambda rows: rows.pop(2)), "schedule 1f1b: rank 1 has no action for the input gradient "
            "of micro-batch 0, chunk 0")
    refused(changed(plain, 1, lambda rows: swap(rows, 0, 2)), "rank 1, action 0 (backward of micro-batch 0, chunk 0)",
            "the forward it needs comes later, as action 2")
    refused(changed(split, 0, lambda rows: rows.append([B, 0, 2, 0])), "backward of micro-batch 2",
            "does the input gradient that action", "input_gradient, has done")
    refused(changed(split, 0, lambda rows: swap(rows, 3, 4)), "rank 0, action 3 (weight_gradient of micro-batch 0",
            "the input_gradient it needs comes later, as action 4")
    refused(changed(gpipe(2, 3), 1, lambda rows: swap(rows, 0, 1)), "rank 1, action 1 (forward of micro-batch 0, chunk 0)",
            "consumes activations out of order", "rank 1, action 0 consumes first")
    refused(changed(gpipe(2, 3), 0, lambda rows: swap(rows, 4, 5)), "rank 0, action 5", "gradients out of order")


def test_a_chunk_or_micro_batch_that_is_not_there():
    def put(column, value):
        def change(rows):
            rows[3][column] = value
        return change

    plain = interleaved(2, 2, 4)
    refused(changed(plain, 1, put(1, 2)), "rank 1, action 3", "chunk 2", "there are 2")
    refused(changed(plain, 1, put(2, 4)), "rank 1, action 3", "micro_batch 4", "there are 4")
    refused(changed(plain, 0, put(2, -1)), "rank 0, action 3", "micro_batch -1")
    refused(changed(plain, 0, put(0, 17)), "rank 0, action 3", "kind 17")
    refused(Schedule("short", 3, 1, 4, one_f_one_b(2, 4).actions), "actions of 2 ranks for 3")


def test_forward_only_has_no_backward_at_all():
    some = pack("backward", 0, np.array([0]))[0].tolist()
    refused(changed(forward_only(2, 3), 1, lambda rows: rows.append(some)), "has no action for the input gradient")


def test_buffers_that_are_too_few_lock_the_ranks():
    """A rank sends four activations before it takes the first gradient; the other answers each before it takes the next."""
    first = np.concatenate([pack("forward", 0, np.arange(4)), pack("backward", 0, np.arange(4))])
    second = np.stack([pack("forward", 0, np.arange(4)), pack("backward", 0, np.arange(4))], axis=1).reshape(-1, 4)
    crossed = Schedule("crossed", 2, 1, 4, (first, second))
    validate(crossed, 2)
    refused(crossed, "deadlock with 1 message under way", buffers=1)
    assert tick(crossed, lambda *_: 1, 0, 1) is None
    assert tick(crossed, lambda *_: 1, 0, 2) is not None


def test_messages_overtaken_while_both_kinds_pass():
    """In the middle of a pipeline, where activations and gradients are taken in turn."""
    plain = one_f_one_b(3, 8)
    assert plain.actions[1][5:8, :3].tolist() == [[F, 0, 3], [B, 0, 2], [F, 0, 4]]
    refused(changed(plain, 1, lambda rows: swap(rows, 5, 7)),
            "1f1b: rank 1, action 7 (forward of micro-batch 3, chunk 0) consumes activations out of order")
    split = zb_h1(3, 8)
    inputs = [i for i, (code, *_) in enumerate(split.actions[1].tolist()) if code == I]
    refused(changed(split, 1, lambda rows: swap(rows, inputs[3], inputs[4])), "consumes gradients out of order")


def test_a_rank_in_the_middle_that_runs_ahead_locks():
    """It sends four activations on, to a rank that answers each before it takes the next; those before it do not mind."""
    ahead = one_f_one_b(3, 4)
    actions = [gpipe(3, 4).actions[0], gpipe(3, 4).actions[1], ahead.actions[2]]
    middle = Schedule("ahead", 3, 1, 4, tuple(actions))
    validate(middle, 2)
    refused(middle, "deadlock", "rank 1, action 3 (forward of micro-batch 3, chunk 0) waits to send until rank 2, "
            "action 4 (forward of micro-batch 2, chunk 0) starts;", buffers=1)


def test_a_circle_of_waits_is_named():
    plain = one_f_one_b(2, 2)
    assert plain.actions[0][:2, :3].tolist() == [[F, 0, 0], [F, 0, 1]]
    early = changed(plain, 0, lambda rows: rows.insert(1, rows.pop(2)))  # F0 B0 F1 B1
    validate(early)
    late = changed(early, 1, lambda rows: rows.insert(1, rows.pop(2)))  # F0 F1 B0 B1
    refused(late, "deadlock", "rank 0, action 1 (backward of micro-batch 0, chunk 0) waits to start until rank 1, "
            "action 2 (backward of micro-batch 0, chunk 0) has sent;",
            "rank 1, action 1 (forward of micro-batch 1, chunk 0) waits to start until rank 0, action 2")


def test_two_ranks_whose_neighbours_are_one():
    """With p = 2 activations of all chunks share a channel, so their order counts; gradients have another one."""
    plain = interleaved(2, 2, 2)
    assert plain.actions[0][2:5, :3].tolist() == [[F, 1, 0], [F, 1, 1], [B, 1, 0]]
    refused(changed(plain, 0, lambda rows: swap(rows, 2, 3)), "rank 1, action ", "(forward of micro-batch 1, chunk 1) "
            "consumes activations out of order", "rank 0, action 2 (forward of micro-batch 1, chunk 1)")
    overtaking = changed(plain, 0, lambda rows: swap(rows, 3, 4))  # a gradient before an activation sent earlier
    assert runs(overtaking, 1)
    validate(overtaking)


def test_no_buffers():
    refused(gpipe(2, 2), "buffers=0", buffers=0)
