"""Samples, their order, and what each data-parallel rank gets."""

from collections import Counter

import numpy as np
import pytest

from data.index_writer import token_writer
from data.indexed import IndexedTokens
from data.samples import SampleOrder, Samples, batches, held_out_batches

EOD = 0
DOCUMENTS = [[5], [1, 2, 3, 4], [6, 7], *([8 + i, 9 + i, 10 + i] for i in range(17)), list(range(1, 30))]
STREAM = [token for document in DOCUMENTS for token in (*document, EOD)]
OWNER = [number for number, document in enumerate(DOCUMENTS) for _ in range(len(document) + 1)]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "a"
    with token_writer(path, 64, EOD, "00" * 32) as writer:
        for document in DOCUMENTS:
            writer.add(np.array(document))
    return IndexedTokens(path).stream()


def rows(records):
    """Sample number -> everything that belongs to it."""
    found = {}
    for record in records:
        for row, number in enumerate(record.samples):
            assert number not in found
            documents = None if record.documents is None else tuple(record.documents[row].tolist())
            found[number] = (tuple(record.tokens[row].tolist()), tuple(record.labels[row].tolist()),
                             tuple(record.loss_mask[row].tolist()), tuple(record.positions[row].tolist()), documents)
    return found


def test_samples_cover_the_stream_in_storage_order(reader):
    samples = Samples(reader, 7)
    assert len(samples) == (len(STREAM) - 1) // 7
    for i in range(len(samples)):
        tokens, owners = samples.cut(i)
        assert tokens.tolist() == STREAM[7 * i : 7 * i + 8] and owners.tolist() == OWNER[7 * i : 7 * i + 8]


@pytest.mark.parametrize("sequence", range(1, len(STREAM)))
def test_number_of_whole_samples(reader, sequence):
    """Every sample has its last label, also where the sequence divides the number of tokens."""
    whole = [i for i in range(len(STREAM)) if len(STREAM[i * sequence : (i + 1) * sequence + 1]) == sequence + 1]
    assert len(Samples(reader, sequence)) == len(whole)


def test_order_is_a_permutation_of_each_epoch():
    order = SampleOrder(13, seed=3)
    epochs = [[order.sample(g) for g in range(13 * e, 13 * e + 13)] for e in range(4)]
    for epoch, found in enumerate(epochs):
        assert {p.epoch for p in found} == {epoch} and sorted(p.sample for p in found) == list(range(13))
    assert len({tuple(p.sample for p in found) for found in epochs}) == 4
    far = SampleOrder(13, seed=3).sample(13 * 2**40 + 5)
    assert far.epoch == 2**40 and 0 <= far.sample < 13


@pytest.mark.parametrize("document_mask", [False, True])
def test_union_over_ranks_is_the_same_for_every_layout(reader, document_mask):
    samples = Samples(reader, 5)
    order = SampleOrder(len(samples), seed=1)
    for step in (0, 3):
        found = []
        for dp_size, micro_batch in ((1, 1), (1, 12), (2, 3), (3, 2), (4, 1), (12, 1)):
            records = [batches(samples, order, step=step, global_batch=12, micro_batch=micro_batch, dp_rank=rank,
                               dp_size=dp_size, seed=9, document_mask=document_mask) for rank in range(dp_size)]
            assert {len(each) for each in records} == {12 // dp_size // micro_batch}
            assert {(record.step, record.seed) for each in records for record in each} == {(step, 9)}
            found.append(rows([record for each in records for record in each]))
        assert all(each == found[0] for each in found)
        assert sorted(found[0]) == list(range(12 * step, 12 * step + 12))


def test_steps_go_through_every_sample_once_an_epoch(reader):
    samples = Samples(reader, 4)
    order = SampleOrder(len(samples), seed=1)
    n, used = len(samples), Counter()
    for step in range(n):
        for record in batches(samples, order, step=step, global_batch=3, micro_batch=3, seed=0):
            used.update(tuple(row.tolist()) for row in record.tokens)
    once = Counter(tuple(STREAM[4 * i : 4 * i + 4]) for i in range(n))
    assert used == once + once + once


def test_a_batch_size_that_changes_neither_repeats_nor_skips(reader):
    samples = Samples(reader, 4)
    order = SampleOrder(len(samples), seed=1)
    numbers, first = [], 0
    for step, size in enumerate((2, 2, 4, 6)):
        for record in batches(samples, order, step=step, global_batch=size, micro_batch=2, seed=0, first=first):
            numbers += record.samples
        first += size
    assert numbers == list(range(14))


def test_a_batch_larger_than_the_data_numbers_repeats_apart(reader):
    samples = Samples(reader, 50)
    record = batches(samples, SampleOrder(len(samples), 0), step=0, global_batch=6, micro_batch=6, seed=0)[0]
    assert len(samples) == 2 and record.samples == (0, 1, 2, 3, 4, 5)
    assert Counter(tuple(row.tolist()) for row in record.tokens) == {tuple(STREAM[:50]): 3, tuple(STREAM[50:100]): 3}


def test_without_document_mask_every_label_counts(reader):
    samples = Samples(reader, 8)
    record = batches(samples, SampleOrder(len(samples), 0), step=0, global_batch=4, micro_batch=4, seed=0)[0]
    assert record.documents is None and bool(record.loss_mask.all())
    assert record.positions.tolist() == [list(range(8))] * 4
    assert record.tokens[:, 1:].tolist() == record.labels[:, :-1].tolist()


def test_document_mask(reader):
    """Worked out by hand for tokens 0 to 12: documents [5 0] [1 2 3 4 0] [6 7 0] [8 9 10 ...]."""
    record = next(iter(held_out_batches(Samples(reader, 12), micro_batch=1, document_mask=True)))
    assert record.tokens.tolist() == [[5, 0, 1, 2, 3, 4, 0, 6, 7, 0, 8, 9]]
    assert record.labels.tolist() == [[0, 1, 2, 3, 4, 0, 6, 7, 0, 8, 9, 10]]
    assert record.documents.tolist() == [[0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3]]
    assert record.positions.tolist() == [[0, 1, 0, 1, 2, 3, 4, 0, 1, 2, 0, 1]]
    masked = [i for i, counts in enumerate(record.loss_mask[0].tolist()) if not counts]
    assert masked == [1, 6, 9]


@pytest.mark.parametrize("document_mask", [False, True])
def test_a_sample_that_begins_within_a_document(reader, document_mask):
    record = list(held_out_batches(Samples(reader, 3), micro_batch=1, document_mask=document_mask))[1]
    assert record.tokens.tolist() == [[2, 3, 4]] and record.positions.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("dp_size, micro_batch", [(1, 1), (1, 4), (2, 3), (3, 1)])
@pytest.mark.parametrize("sequence", [7, 30, len(STREAM) - 1])
def test_held_out_predicts_every_token_but_the_first_once(reader, dp_size, micro_batch, sequence):
    samples = Samples(reader, sequence)
    per_rank = [list(held_out_batches(samples, micro_batch=micro_batch, dp_rank=rank, dp_size=dp_size))
                for rank in range(dp_size)]
    assert len({len(records) for records in per_rank}) == 1
    predicted = {}
    for records in per_rank:
        for record in records:
            assert record.tokens.shape == (micro_batch, sequence)
            for row, number in enumerate(record.samples):
                for at in record.loss_mask[row].nonzero().flatten().tolist():
                    position = number * sequence + at + 1
                    assert position not in predicted
                    predicted[position] = record.labels[row, at].item()
    assert predicted == {t: STREAM[t] for t in range(1, len(STREAM))}


def test_held_out_masks_borders_only_with_document_mask(reader):
    total = {}
    for mask in (False, True):
        records = held_out_batches(Samples(reader, 6), micro_batch=2, document_mask=mask)
        total[mask] = sum(int(record.loss_mask.sum()) for record in records)
    assert total == {False: len(STREAM) - 1, True: len(STREAM) - 1 - (len(DOCUMENTS) - 1)}


@pytest.mark.parametrize("change, message", [
    ({"global_batch": 10}, "global_batch=10 is not divisible by dp x micro_batch = 2 x 3 = 6; use 6 or 12"),
    ({"global_batch": 4}, "use 6"),
    ({"micro_batch": 0}, "must be positive"),
    ({"dp_rank": 2}, "dp_rank=2 is outside of dp=2"),
])
def test_bad_batches(reader, change, message):
    samples = Samples(reader, 5)
    settings = {"step": 0, "global_batch": 6, "micro_batch": 3, "dp_size": 2, "seed": 0, **change}
    with pytest.raises(ValueError, match=message):
        batches(samples, SampleOrder(len(samples), 0), **settings)


def test_bad_samples(reader):
    with pytest.raises(ValueError, match=f"sequence=500 is longer than the data: .* holds {len(STREAM)} tokens"):
        Samples(reader, 500)
    with pytest.raises(ValueError, match=f"use at most {len(STREAM) - 1} or more text"):
        Samples(reader, len(STREAM))
    with pytest.raises(ValueError, match="sequence=0"):
        Samples(reader, 0)
    with pytest.raises(ValueError, match="vocabulary of 63 is smaller than that of .*, 64"):
        Samples(reader, 5, vocab=63)
    with pytest.raises(ValueError, match=r"the order is of \(3,\) samples"):
        batches(Samples(reader, 5), SampleOrder(3, 0), step=0, global_batch=1, micro_batch=1, seed=0)
    with pytest.raises(ValueError, match="n=0"):
        SampleOrder(0, 0)
    with pytest.raises(ValueError, match="seed=-1"):
        SampleOrder(4, -1)
