"""Windows of kept micro-batches: against a recount of who is in flight, and run on two ranks against no window at all."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.pipeline.schedule import KEEP, Schedule
from common.pipeline.schedules import make, one_f_one_b
from common.pipeline.windows import keep_some, largest_windows, recomputed
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, build
from tests.common.pipeline.sizes import micro_batches, ranks, training
from tests.distributed import ranks as on_ranks


def kept(schedule: Schedule, rank: int) -> list[int]:
    """Micro-batches kept in the first chunk of a rank."""
    return [a.micro_batch for a in schedule.of(rank) if a.kind == "forward" and not a.chunk and a.flags & KEEP]


def test_figure_10() -> None:
    """Four stages, nine micro-batches, one kept in each window of the first stage: the first, the fifth and the ninth."""
    schedule = keep_some(one_f_one_b(4, 9), (1, 1, 2, 1))
    assert [kept(schedule, rank) for rank in range(4)] == [[0, 4, 8], [0, 3, 6], list(range(9)), list(range(9))]
    assert recomputed(schedule) == (Fraction(6, 9), Fraction(6, 9), 0, 0)


@given(ranks, micro_batches, st.data())
def test_under_1f1b_the_first_of_every_window(p: int, m: int, data) -> None:
    most = data.draw(st.lists(st.integers(0, p + 1), min_size=p, max_size=p))
    schedule = keep_some(one_f_one_b(p, m), most)
    for rank in range(p):
        window = min(p - rank, m)
        assert kept(schedule, rank) == [i for i in range(m) if i % window < most[rank]]


@given(training, st.data())
def test_never_more_than_the_window_and_never_fewer_than_it_could(schedule: Schedule, data) -> None:
    most = data.draw(st.lists(st.integers(0, 9), min_size=schedule.ranks, max_size=schedule.ranks))
    flagged = keep_some(schedule, most)
    for rank, limit in enumerate(most):
        in_flight = set()
        for before, action in zip(schedule.of(rank), flagged.of(rank), strict=True):
            assert action[:3] == before[:3]
            place = action.chunk, action.micro_batch
            if action.kind == "forward":
                assert bool(action.flags & KEEP) == (len(in_flight) < limit)
                in_flight |= {place} if action.flags & KEEP else set()
            elif action.kind in ("backward", "weight_gradient"):
                in_flight.discard(place)
    again = keep_some(keep_some(schedule, [1] * schedule.ranks), most)
    assert all((a == b).all() for a, b in zip(again.actions, flagged.actions, strict=True))


def replayed_peak(schedule: Schedule, rank: int, size) -> int:
    """Most held on a rank, counted action by action."""
    holds, most = {}, 0
    for action in schedule.of(rank):
        place = action.chunk, action.micro_batch
        if action.kind == "forward":
            holds[place] = size(schedule.stage(rank, action.chunk), action.flags)
            most = max(most, sum(holds.values()))
        elif action.kind in ("backward", "weight_gradient"):
            del holds[place]
    return most


@given(training, st.data())
def test_the_largest_windows_that_fit(schedule: Schedule, data) -> None:
    if schedule.micro_batches > 12:
        schedule = make(schedule.name, min(schedule.ranks, 3), schedule.chunks, 12)
    stages, p = schedule.stages, schedule.ranks
    small = data.draw(st.lists(st.integers(1, 5), min_size=stages, max_size=stages))
    more = data.draw(st.lists(st.integers(0, 5), min_size=stages, max_size=stages))

    def size(stage, flags):
        return small[stage] + (more[stage] if flags & KEEP else 0)

    least = [replayed_peak(schedule, rank, size) for rank in range(p)]
    room = [peak + data.draw(st.integers(0, 40)) for peak in least]
    found = largest_windows(schedule, room, size)
    everything = schedule.chunks * schedule.micro_batches
    for rank, window in enumerate(found):
        def fits(n, rank=rank):
            return replayed_peak(keep_some(schedule, [n] * p), rank, size) <= room[rank]

        assert fits(window)
        assert fits(everything) if fits(window + 1) else not fits(everything)
    with pytest.raises(ValueError, match=f"^rank 0: {least[0]} are held with every micro-batch recomputed, and there is "
                                         f"room for {least[0] - 1}: recompute more"):
        largest_windows(schedule, [least[0] - 1, *room[1:]], size)


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3), (1, -1)])
def test_one_window_for_each_rank(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="needs a number of 0 or more for each of the 2 ranks"):
        keep_some(one_f_one_b(2, 4), wrong)


WINDOWS = ((0, 0), (1, 0), (2, 1), (99, 99))
MODEL = LanguageModelConfig(pattern="[*-]*4", hidden=32, heads=4, vocab=64, sequence=16, dropout=0.1, attention_dropout=0.1)
M = 4


def gradients_by_window(context, name: str, chunks: int, recompute: str) -> list[tuple[list[torch.Tensor], int]]:
    """For no recomputation and for each window: this rank's gradients, and how often its norms ran."""
    layout = Layout(Grid(pp=2), context.rank)
    gen = torch.Generator().manual_seed(3)
    tokens = torch.randint(64, (M, 2, 17), generator=gen)
    records = [Record(t[:, :-1], t[:, 1:], torch.ones(2, 16, dtype=torch.bool), torch.arange(16).expand(2, 16),
                      samples=(2 * i, 2 * i + 1)) for i, t in enumerate(tokens)]
    found = []
    for policy, window in [("none", (0, 0)), *((recompute, window) for window in WINDOWS)]:
        run = build(MODEL, Execution("paper", schedule=name, chunks=chunks, recompute=policy), AdamWConfig(), layout, seed=5)
        calls = []
        for stage in run.stages:
            for layer in stage.layers.values():
                layer.branches["mlp"].norm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        run.gradients.zero()
        schedule = keep_some(make(name, 2, chunks, M), window)
        run.pipeline.run(schedule, records, lambda terms: terms["language"].sum, run.gradients)
        run.gradients.reduce()
        forwards = M * chunks
        again = recomputed(schedule)[context.rank] * forwards * (4 // (2 * chunks)) if policy == "full" else 0
        assert len(calls) == M * 2 + again
        found.append(([bucket.flat.clone() for bucket in run.gradients.buckets], len(calls)))
    return found


@pytest.mark.parametrize("name, chunks", [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_gradients_are_bitwise_those_without_recomputation(name: str, chunks: int, recompute: str) -> None:
    for rank in on_ranks(2, gradients_by_window, name, chunks, recompute):
        (expected, _), *others = rank
        for gradients, _ in others:
            assert all(torch.equal(a, b) for a, b in zip(expected, gradients, strict=True))
        if recompute == "full":
            assert rank[1][1] == 4 * M > rank[-1][1] == 2 * M


def test_flags_leave_the_schedule_alone() -> None:
    schedule = one_f_one_b(2, 3)
    before = replace(schedule, actions=tuple(actions.copy() for actions in schedule.actions))
    keep_some(schedule, (2, 1))
    assert all((a == b).all() for a, b in zip(schedule.actions, before.actions, strict=True))
