"""Blending: shares against exact fractions, and no state whatever happens to the run."""

import random
import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.blend import BLOCK, BlendOrder, SampleOrder, Shares
from data.index_writer import token_writer
from data.indexed import IndexedTokens
from data.samples import Blend, Samples, batches, held_out_batches

WEIGHTS = st.lists(st.one_of(st.integers(1, 10**9), st.fractions(Fraction(1, 10**6), 10**6, max_denominator=10**6)),
                   min_size=1, max_size=40)
HUNDRED = [Fraction(str(round(random.Random(s).random() ** 4 + 1e-6, 9))) for s in range(100)]


def apart(counts, weights, positions):
    """The largest distance of a count from its share."""
    total = sum(map(Fraction, weights))
    return max(abs(c - positions * Fraction(w) / total) for c, w in zip(counts, weights, strict=True))


@given(WEIGHTS, st.integers(0, 10**9))
@settings(deadline=None)
def test_every_count_is_within_two_of_its_share(weights, positions):
    counts = Shares(weights).counts(positions)
    assert sum(counts) == positions and min(counts) >= 0 and apart(counts, weights, positions) < 2


@pytest.mark.parametrize("weights", [[1], [1, 1], [1, 10**6], [1, 2, 4, 8, 16, 32, 64], [98, 1, 1], HUNDRED,
                                     [1] * 37, [Fraction(1, 3), Fraction(1, 7), Fraction("0.1")]])
def test_positions_are_dealt_one_by_one(weights):
    """Each prefix is counted by hand: its counts, those of `counts`, and the turns that each set takes."""
    shares, dealt = Shares(weights), [0] * len(weights)
    for position in range(3000):
        number, turn = shares.place(position)
        assert turn == dealt[number]
        dealt[number] += 1
        assert apart(dealt, weights, position + 1) < 2
        assert shares.counts(position + 1) == dealt


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
@settings(deadline=None)
def test_weights_that_are_sizes_use_each_up(sizes):
    found = sorted(Shares(sizes).place(n) for n in range(sum(sizes)))
    assert found == [(s, n) for s, size in enumerate(sizes) for n in range(size)]


@pytest.mark.parametrize("block", [0, 1, 1000, 10**9 // BLOCK - 1])
def test_a_block_is_the_same_sets_in_another_order(block):
    """At the end of each block every set's count is that of Shares; inside it seed and block say the order."""
    order = BlendOrder([10**7] * 100, HUNDRED, seed=5)
    found = [order.sample(p).set for p in range(BLOCK * block, BLOCK * (block + 1))]
    before, after = (order.shares.counts(BLOCK * b) for b in (block, block + 1))
    assert Counter(found) == Counter({s: b - a for s, (a, b) in enumerate(zip(before, after, strict=True)) if b > a})
    assert apart(after, HUNDRED, BLOCK * (block + 1)) < 2
    assert found != [order.shares.place(p)[0] for p in range(BLOCK * block, BLOCK * (block + 1))]
    assert found != [BlendOrder([10**7] * 100, HUNDRED, seed=6).sample(p).set
                     for p in range(BLOCK * block, BLOCK * (block + 1))]


def test_no_rank_sees_one_set_forever():
    """Two ranks, two sets, one sample each in turn: without an order inside blocks rank 0 would see set 0 alone."""
    order = BlendOrder([10**6] * 2, [1, 1], seed=0)
    mine = Counter(order.sample(position).set for position in range(0, 20_000, 2))
    assert abs(mine[0] - 5000) < 250


def test_short_sets_begin_anew_in_another_order_and_say_so():
    sizes = [7, 50]
    order = BlendOrder(sizes, [1, 1], seed=3)
    seen = [[], []]
    for position in range(4 * BLOCK):
        place = order.sample(position)
        seen[place.set].append(place)
    for found, size in zip(seen, sizes, strict=True):
        by_epoch = {}
        for place in found:
            by_epoch.setdefault(place.epoch, []).append(place.sample)
        last = max(by_epoch)
        assert sorted(by_epoch) == list(range(last + 1))
        for epoch, samples in by_epoch.items():
            assert len(set(samples)) == len(samples) and (epoch == last or len(samples) == size)
            assert set(samples) <= set(range(size))
    assert order.epochs(4 * BLOCK) == [2 * BLOCK / 7, 2 * BLOCK / 50]
    assert SampleOrder(50, 0).epochs(75) == [1.5]


def test_sets_of_one_size_have_orders_of_their_own():
    order = BlendOrder([1000, 1000], [1, 1], seed=3)
    by_set = [[], []]
    for position in range(8 * BLOCK):
        place = order.sample(position)
        if place.epoch == 0:
            by_set[place.set].append(place.sample)
    assert sum(a == b for a, b in zip(*by_set, strict=False)) < 10


def test_bad_orders():
    for weights in ([1, 0], [1, -1], [1]):
        with pytest.raises(ValueError, match="one above zero for each of 2 sets"):
            BlendOrder([5, 5], weights, 0)
    with pytest.raises(ValueError, match="position=-1"):
        BlendOrder([5, 5], [1, 1], 0).sample(-1)


def test_a_position_is_looked_up_in_under_50_us():
    """100 sets, positions up to 10^9; the best of three of each, so that the machine's other work does not count."""
    order = BlendOrder([random.Random(s).randrange(10**6, 2 * 10**7) for s in range(100)], HUNDRED, seed=7)
    draw, best = random.Random(0), []
    for position in (draw.randrange(10**9) for _ in range(2000)):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            order.sample(position)
            times.append(time.perf_counter() - start)
        best.append(min(times))
    assert np.median(best) < 25e-6 and np.quantile(best, 0.98) < 50e-6


EOD = 0


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Three sets of numbered tokens, so that a token tells its set and its place."""
    folder, found = tmp_path_factory.mktemp("sets"), []
    for s, lengths in enumerate(([30] * 12, [7, 100, 3], [11] * 40)):
        at = 1 + 1000 * s
        with token_writer(folder / f"{s}", 4000, EOD, "00" * 32) as writer:
            for length in lengths:
                writer.add(np.arange(at, at + length))
                at += length
        found.append(IndexedTokens(folder / f"{s}"))
    return Samples(Blend(tuple(f.stream() for f in found), (Fraction(5), Fraction(1), Fraction(3))), 9)


def rows(records):
    return {number: (tuple(r.tokens[i].tolist()), tuple(r.labels[i].tolist()))
            for r in records for i, number in enumerate(r.samples)}


@given(st.lists(st.tuples(st.sampled_from([(1, 1), (1, 3), (2, 1), (3, 2), (4, 1), (6, 2)]), st.integers(1, 4),
                          st.integers(0, 4), st.booleans()), min_size=1, max_size=6), st.integers(0, 2**40))
@settings(deadline=None, max_examples=60)
def test_order_is_equal_after_any_stops_resumes_ramps_and_layouts(sets, pieces, start):
    """Each piece of a run has its own layout and batch, and may be cut by a kill, whose steps are done again."""
    want, got, first, step = {}, {}, start, 0
    for (dp, micro), factor, steps, killed in pieces:
        batch = dp * micro * factor
        for done in (steps // 2, steps) if killed else (steps,):
            order = sets.order(11)  # nothing is taken over from before
            for i in range(done):
                for rank in range(dp):
                    got.update(rows(batches(sets, order, step=step + i, first=first + i * batch, global_batch=batch,
                                            micro_batch=micro, seed=0, dp_rank=rank, dp_size=dp)))
        first, step = first + steps * batch, step + steps
    order = sets.order(11)
    for position in range(start, first):
        place = order.sample(position)
        stream = sets.streams[place.set]
        tokens = stream.read(9 * place.sample, 9 * place.sample + 10).tolist()
        want[position] = (tuple(tokens[:-1]), tuple(tokens[1:]))
        assert {t // 1000 for t in tokens if t} == {place.set}
    assert got == want


def test_an_order_of_other_sizes_is_refused(sets):
    with pytest.raises(ValueError, match="the order is of"):
        batches(sets, SampleOrder(len(sets), 0), step=0, global_batch=1, micro_batch=1, seed=0)


@pytest.mark.parametrize("dp, micro", [(1, 1), (2, 3)])
def test_held_out_predicts_every_token_of_every_set_but_its_first(sets, dp, micro):
    found = Counter()
    turns = {}
    for rank in range(dp):
        for record in held_out_batches(sets, micro_batch=micro, dp_rank=rank, dp_size=dp):
            for i, number in enumerate(record.samples):
                counted = record.labels[i][record.loss_mask[i]].tolist()
                found.update(counted)
                turns[number] = {t // 1000 for t in counted if t}
    expected = Counter()
    for stream in sets.streams:
        expected.update(stream.read(1, len(stream)).tolist())
    assert found == expected
    # Sets take turns, so a part of the rows stands for the whole.
    assert set().union(*(turns[number] for number in range(len(turns) // 3))) == {0, 1, 2}
