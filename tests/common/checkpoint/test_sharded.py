"""Runs of a part as boxes, against numpy's own slicing and padding; who writes which run, against
counting."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.checkpoint.manifest import CheckpointError
from common.checkpoint.plan import Run, written_once
from common.checkpoint.sharded import Part, Piece
from common.grid import Grid
from common.layout import Layout
from common.parameters import Facts, Slice

PADDING = -1


@st.composite
def parts(draw):
    """(facts, layout, the stored part by numpy: elements are their index in the logical tensor, padding is
    -1)."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    dim, tp = draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 4))
    rank = draw(st.integers(0, tp - 1))
    copies = draw(st.sampled_from([c for c in (1, 2, 4) if tp % c == 0]))
    cut = draw(st.booleans())
    facts = Facts(shape, "tp", dim, parts=tp // copies) if cut else Facts(shape)
    if not cut:
        return facts, Layout(Grid(tp=tp), rank), np.arange(np.prod(shape)).reshape(shape)
    whole = np.arange(np.prod(shape)).reshape(shape)
    rows = -(-shape[dim] // (tp // copies))
    missing = [(0, 0)] * len(shape)
    missing[dim] = (0, rows * (tp // copies) - shape[dim])
    padded = np.pad(whole, missing, constant_values=PADDING)
    return facts, Layout(Grid(tp=tp), rank), np.split(padded, tp // copies, axis=dim)[rank // copies]


@settings(max_examples=300, deadline=None)
@given(parts(), st.data())
def test_boxes_tile_a_run_and_share_its_memory(made, data):
    facts, layout, stored = made
    ends = sorted(data.draw(st.tuples(st.integers(0, stored.size), st.integers(0, stored.size))))
    run = stored.reshape(-1)[slice(*ends)]
    whole = np.arange(np.prod(facts.shape)).reshape(facts.shape)
    buffer = torch.full((run.size + 3,), 99)  # a run is a view of something longer
    buffer[2:2 + run.size] = torch.from_numpy(run.copy())
    piece = Piece(Part.of(facts, layout), Slice(buffer[2:2 + run.size], ends[0]))
    boxes = list(piece.boxes())
    assert len(boxes) <= 2 * len(facts.shape) - 1 and all(min(size) > 0 for _, size in boxes)
    covered = [whole[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))] for box in boxes]
    found = np.concatenate([x.reshape(-1) for x in covered]) if boxes else []
    assert np.array_equal(found, run[run != PADDING])
    for box, expected in zip(boxes, covered, strict=True):
        view = piece.view(*box)
        assert np.array_equal(view.numpy(), expected)
        view.fill_(-7)
    assert buffer.tolist() == [99, 99, *(PADDING if x == PADDING else -7 for x in run), 99]


def test_a_whole_part_is_one_box_and_a_middle_run_five():
    part = Part((6, 4, 5), 0, 2, 4, 2)
    assert list(part.boxes(0, 40)) == [((2, 0, 0), (2, 4, 5))]
    assert list(part.boxes(3, 37)) == [((2, 0, 3), (1, 1, 2)), ((2, 1, 0), (1, 3, 5)),
                                       ((3, 0, 0), (1, 3, 5)), ((3, 3, 0), (1, 1, 2))]


@pytest.mark.parametrize("part, run", [
    (Part((5,), 0, 5, 5, 2), (0, 2)), (Part((5,), 0, 5, 5, 2), (1, 2)),  # the last of 2, 2, 1, 0 rows
    (Part((3, 2), 0, 2, 3, 2), (2, 4)), (Part((2, 3), 1, 2, 3, 2), (3, 4)),
    (Part((3, 2), 0, 0, 2, 2), (1, 1)),
])
def test_padding_alone_is_no_box(part, run):
    assert list(part.boxes(*run)) == []


@pytest.mark.parametrize("data, start", [(torch.zeros(3), 4), (torch.zeros(3), -1), (torch.zeros(2, 2), 0),
                                         (torch.zeros(8)[::2], 0)])
def test_a_run_outside_its_part_is_refused(data, start):
    with pytest.raises(ValueError, match="part of 6 elements"):
        Piece(Part((3, 2), 0, 0, 3, 3), Slice(data, start))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.data())
def test_every_element_that_is_held_is_written_by_one_holder(cuts, rows, data):
    """Families of ranks, each of which holds the whole tensor, cut at places of its own."""
    rows = max(rows, cuts)
    each = -(-rows // cuts)
    runs, rank = [], itertools.count()
    for _family, part in itertools.product(range(data.draw(st.integers(1, 3))), range(cuts)):
        first, last = min(part * each, rows), min((part + 1) * each, rows)
        marks = sorted(data.draw(st.lists(st.integers(0, each * 3), max_size=4)))
        for start, stop in itertools.pairwise([0, *marks, each * 3]):
            runs.append(Run(Part((rows, 3), 0, first, last, each), start, stop, torch.float32, next(rank)))
    data.draw(st.randoms()).shuffle(runs)
    load = [0] * len(runs)
    count, written = np.zeros((rows, 3), int), [0] * len(runs)
    mine = {run.rank: run for run in runs}
    for run in written_once("x", runs, load):
        assert run.part == mine[run.rank].part
        assert mine[run.rank].start <= run.start < run.stop <= mine[run.rank].stop
        written[run.rank] += 4 * (run.stop - run.start)
        for offset, size in run.part.boxes(run.start, run.stop):
            count[tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))] += 1
    assert (count == 1).all() and load == written


def test_copies_share_the_writing():
    part, load = Part((100,), 0, 0, 100, 100), [0] * 4
    for n in range(40):
        list(written_once(f"x{n}", [Run(part, 0, 100, torch.float32, rank) for rank in range(4)], load))
    assert load == [40 * 100 * 4 / 4] * 4


@pytest.mark.parametrize("other, what", [
    (Run(Part((6, 2), 0, 2, 6, 4), 0, 8, torch.float32, 1), "rank 1 holds indices 2 to 6 of dimension 0"),
    (Run(Part((6, 3), 0, 3, 6, 3), 0, 9, torch.float32, 1), "ranks 0 and 1 disagree on the shape, cut"),
    (Run(Part((6, 2), 0, 3, 6, 3), 0, 6, torch.float64, 1), "ranks 0 and 1 disagree on the shape, cut"),
])
def test_ranks_that_disagree_are_named(other, what):
    with pytest.raises(CheckpointError, match=what):
        list(written_once("x", [Run(Part((6, 2), 0, 0, 3, 3), 0, 6, torch.float32, 0), other], [0, 0]))
