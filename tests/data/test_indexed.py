"""Indexed tokens: Megatron's reader and builder on the other side, damage, borders, and offsets beyond 32 bits."""

import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

from data import index_writer, indexed
from data.index_writer import adopt, merge, move, token_writer
from data.indexed import DocumentIndex, IndexedTokens, file, pack_header, unpack_header
from data.sidecar import Header, Sidecar

SHA = "ab" * 32
BIG = 1 << 33
DOCUMENTS = [[1, 2, 3], [4], [5, 499]]


def write(name, documents, vocab=500, eod=0):
    with token_writer(name, vocab, eod, SHA) as writer:
        for document in documents:
            writer.add(np.array(document), 10)
    return name


def build_theirs(name, documents, dtype=np.uint16):
    """documents: of sequences of tokens."""
    builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype)
    for sequences in documents:
        builder.add_document(torch.tensor([t for s in sequences for t in s]), [len(s) for s in sequences])
    builder.finalize(f"{name}.idx")
    return name


def theirs(name):
    """(sequences, borders of documents) as their reader sees a set."""
    found = IndexedDataset(str(name))
    return [found[i].tolist() for i in range(len(found))], found.document_indices.tolist()


@pytest.fixture
def stored(tmp_path):
    return write(tmp_path / "a", DOCUMENTS)


@pytest.mark.parametrize("vocab, dtype", [(2, "uint16"), (65_499, "uint16"), (65_500, "int32"), (1 << 31, "int32")])
def test_megatron_reads_what_is_written(tmp_path, vocab, dtype):
    documents = [[vocab - 1], [1] * 5, [vocab - 1, 1]]
    name = write(tmp_path / "a", documents, vocab)
    assert theirs(name) == ([[*d, 0] for d in documents], [0, 1, 2, 3])
    assert IndexedDataset(str(name)).index.dtype == np.dtype(dtype)


def test_both_write_the_same_bytes(tmp_path, stored):
    build_theirs(tmp_path / "b", [[[*d, 0]] for d in DOCUMENTS])
    for suffix in (".bin", ".idx"):
        assert file(stored, suffix).read_bytes() == file(tmp_path / "b", suffix).read_bytes()


@given(st.lists(st.lists(st.lists(st.integers(0, 126), min_size=1, max_size=4), max_size=3), max_size=6),
       st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16]))
@settings(max_examples=40, deadline=None)
def test_what_megatron_writes_is_read(tmp_path_factory, documents, dtype):
    """Documents of several sequences, of one and of none, in every integer type."""
    name = build_theirs(tmp_path_factory.mktemp("theirs") / "b", documents, dtype)
    adopt(name, 127, 0, SHA)
    found = IndexedTokens(name)
    found.verify()
    flat = [[t for s in d for t in s] for d in documents]
    assert found.read(0, len(found)).tolist() == sum(flat, [])
    assert [found.read(*found.index.span(d)).tolist() for d in range(found.header.documents)] == flat
    labels = [d for d, tokens in enumerate(flat) for _ in tokens]
    assert found.index.documents(0, len(found)).tolist() == labels


def test_parts_merge_to_what_megatron_makes_of_them(tmp_path):
    pieces = [[[1, 2, 3], [4]], [], [[5, 499], [7], [8]]]
    names = [write(tmp_path / f"p{i}", piece) for i, piece in enumerate(pieces)]
    merge([IndexedTokens(n) for n in names], tmp_path / "all", "source")
    builder = IndexedDatasetBuilder(f"{tmp_path / 'theirs'}.bin", dtype=np.uint16)
    for name in names:
        if IndexedTokens(name).header.documents:  # their reader cannot map an empty file
            builder.add_index(str(name))
    builder.finalize(f"{tmp_path / 'theirs'}.idx")
    for suffix in (".bin", ".idx"):
        assert file(tmp_path / "all", suffix).read_bytes() == file(tmp_path / "theirs", suffix).read_bytes()
    found = IndexedTokens(tmp_path / "all")
    found.verify()
    assert found.header == Header(13, 5, 500, 0, SHA, 50) and found.facts.source == "source"


def test_round_trip(stored):
    found = IndexedTokens(stored)
    assert found.read(0, len(found)).tolist() == [1, 2, 3, 0, 4, 0, 5, 499, 0] and found.read(2, 4).dtype == np.int64
    assert [found.index.span(d) for d in range(3)] == [(0, 4), (4, 6), (6, 9)]
    assert found.header == Header(9, 3, 500, 0, SHA, 30)
    for suffix in ("", ".bin", ".idx", ".json"):
        assert IndexedTokens(stored.with_name("a" + suffix)).path == stored


def test_empty_set(tmp_path):
    found = IndexedTokens(write(tmp_path / "a", []))
    assert len(found) == 0 and found.header.documents == 0 and len(found.stream()) == 0


def test_stream_of_some_documents(stored):
    stream = IndexedTokens(stored).stream(1, 3)
    assert len(stream) == 5 and stream.read(0, 5).tolist() == [4, 0, 5, 499, 0]
    assert stream.documents(1, 5).tolist() == [0, 1, 1, 1]
    with pytest.raises(ValueError, match="that holds 5"):
        stream.read(0, 6)


def spoil(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("suffix, damage, message", [
    (".bin", lambda raw: raw[:-1], r"a\.bin has 17 bytes, its header says 18"),
    (".bin", lambda raw: raw + b"\0", r"a\.bin has 19 bytes"),
    (".idx", lambda raw: raw[:-1], r"a\.idx has \d+ bytes, its header says"),
    (".idx", lambda raw: raw[:20], r"a\.idx is not an index"),
    (".idx", lambda raw: b"", r"a\.idx is not an index"),
    (".idx", lambda raw: b"PK\3\4" + raw[4:], r"a\.idx is not an index"),
    (".idx", lambda raw: raw[:9] + b"\2" + raw[10:], r"a\.idx has version 2 and dtype code 8; this code reads version 1"),
    (".idx", lambda raw: raw[:17] + b"\6" + raw[18:], r"a\.idx has version 1 and dtype code 6"),
    (".idx", lambda raw: raw[:17] + b"\3" + raw[18:], r"a\.idx has another header than .*a\.json"),
    (".idx", lambda raw: raw[:18] + b"\2" + raw[19:], r"a\.idx has another header"),
    (".json", lambda raw: raw[:-3], r"a\.json is damaged"),
    (".json", lambda raw: raw.replace(b'"vocab": 500', b'"vocab": 501'), r"a\.json does not match its checksum"),
    (".json", lambda raw: raw.replace(b'"version": 1', b'"version": 2'), r"a\.json has version 2, this code reads 1"),
    (".json", lambda raw: b"[]", r"a\.json is damaged"),
])
def test_damage_is_seen_on_opening(stored, suffix, damage, message):
    spoil(file(stored, suffix), damage)
    with pytest.raises(ValueError, match=message):
        IndexedTokens(stored)


def test_every_changed_byte_is_seen(stored):
    """Each byte of each file, one at a time: refused by the opening or by verify, with the file's name."""
    for suffix in (".bin", ".idx", ".json"):
        path = file(stored, suffix)
        raw = path.read_bytes()
        for at in range(len(raw)):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
            with pytest.raises(ValueError, match=rf"a\.({suffix[1:]}|idx has another header)"):
                IndexedTokens(stored).verify()
        path.write_bytes(raw)
    IndexedTokens(stored).verify()


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".json"])
def test_every_truncation_is_seen(stored, suffix):
    path = file(stored, suffix)
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(ValueError, match=rf"a\.{suffix[1:]}"):
            IndexedTokens(stored)


def test_token_beyond_the_vocabulary_in_a_damaged_file(stored):
    spoil(file(stored, ".bin"), lambda raw: struct.pack("<H", 500) + raw[2:])
    with pytest.raises(ValueError, match="outside of its vocabulary of 500"):
        IndexedTokens(stored).read(0, 2)


@pytest.mark.parametrize("document, message", [
    ([500], "token 500 is outside of the vocabulary of 500"), ([-1], "token -1 is outside"),
    ([], "non-empty"), ([[1]], "non-empty row"), ([3, 0, 4], "end-of-document token 0 stands within"),
])
def test_bad_documents_leave_no_file(tmp_path, document, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "a", [[1], document])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writer_leaves_the_old_set(stored):
    with pytest.raises(KeyboardInterrupt), token_writer(stored, 500, 0, SHA) as writer:
        writer.add(np.array([7]))
        raise KeyboardInterrupt
    IndexedTokens(stored).verify()
    assert sorted(os.listdir(stored.parent)) == ["a.bin", "a.idx", "a.json"]


def test_a_set_without_its_side_file_is_not_complete(stored):
    move(stored, stored.with_name("b"))
    IndexedTokens(stored.with_name("b")).verify()
    file(stored.with_name("b"), ".json").unlink()
    with pytest.raises(ValueError, match="b.json does not exist"):
        IndexedTokens(stored.with_name("b"))


def test_bad_settings(tmp_path, stored):
    with pytest.raises(ValueError, match="eod=500"):
        write(tmp_path / "b", [], eod=500)
    with pytest.raises(ValueError, match="must fit int32"):
        write(tmp_path / "b", [], vocab=(1 << 31) + 1)
    for start, stop in ((-1, 2), (0, 10), (3, 2)):
        with pytest.raises(ValueError, match="which holds 9"):
            IndexedTokens(stored).read(start, stop)


def test_more_documents_than_the_format_counts_are_refused(tmp_path, monkeypatch):
    """At the true limit for heads; the writer and the merger at a limit that a test can reach."""
    limit = (1 << 31) - 1
    for sequences, documents in ((limit + 1, 1), (1, limit + 1), (1 << 32, 1 << 32)):
        with pytest.raises(ValueError, match="the format counts up to 2147483647: make several sets and blend"):
            pack_header(8, sequences, documents, tmp_path)
        raw = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, sequences, documents + 1)
        with pytest.raises(ValueError, match="the format allows up to 2147483647 of each"):
            unpack_header(raw, tmp_path)
    assert unpack_header(pack_header(8, limit, limit, tmp_path), tmp_path) == (8, limit, limit)
    parts = [IndexedTokens(write(tmp_path / f"p{i}", [[1], [2]])) for i in range(2)]
    monkeypatch.setattr(indexed, "LIMIT", 3)
    monkeypatch.setattr(index_writer, "LIMIT", 3)
    with pytest.raises(ValueError, match="up to 3"):
        write(tmp_path / "a", [[1]] * 4)
    with pytest.raises(ValueError, match="up to 3"):
        merge(parts, tmp_path / "a", "")
    assert not list(tmp_path.glob("*a*"))


@pytest.mark.parametrize("damage, message", [
    (lambda name: spoil(file(name, ".bin"), lambda raw: raw[:-2]), "do not end where"),
    (lambda name: spoil(file(name, ".bin"), lambda raw: raw[:-1]), "do not give: one was cut"),
    (lambda name: spoil(file(name, ".idx"), lambda raw: raw + b"\0"), "holds more than tokens"),
    (lambda name: spoil(file(name, ".idx"), lambda raw: raw[:34] + b"\5" + raw[35:]), "do not follow from the lengths"),
    (lambda name: spoil(file(name, ".idx"), lambda raw: raw[:-16] + b"\5" + raw[-15:]), "hold each sequence once"),
    (lambda name: spoil(file(name, ".bin"), lambda raw: b"\xff\xff" + raw[2:]), "token outside of the tokenizer's"),
])
def test_damaged_files_of_others_are_not_adopted(tmp_path, damage, message):
    name = build_theirs(tmp_path / "b", [[[1, 2, 0]], [[3, 0]]])
    damage(name)
    with pytest.raises(ValueError, match=message):
        adopt(name, 500, 0, SHA)
    assert not file(name, ".json").exists()


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data(), st.sampled_from([0, BIG]))
def test_document_of_each_token(lengths, data, shift):
    """Against one label per token. shift: sequences so long before them that all offsets lie beyond 32 bits."""
    labels = [document for document, length in enumerate(lengths) for _ in range(length)]
    lengths = np.array([shift, *lengths] if shift else lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    index = DocumentIndex(lengths, (ends - lengths) * 2, np.arange(len(lengths) + 1), 2, int(ends[-1]))
    start = data.draw(st.integers(0, len(labels)))
    stop = data.draw(st.integers(start, len(labels)))
    found = index.documents(start + shift, stop + shift)
    assert found.dtype == np.int64
    assert found.tolist() == [label + (shift > 0) for label in labels[start:stop]]


def test_file_of_more_than_two_to_the_31_tokens(tmp_path):
    """Sparse files of eight GiB in length, a few blocks on disk; Megatron's reader sees the same."""
    name, first = tmp_path / "huge", (1 << 31) - 1
    lengths, pointers = [first, first, 5], [0, 4 * first, 8 * first]
    head = pack_header(4, 3, 3, name)
    file(name, ".idx").write_bytes(head + np.array(lengths, "<i4").tobytes() + np.array(pointers, "<i8").tobytes()
                                   + np.arange(4, dtype="<i8").tobytes())
    with file(name, ".bin").open("wb") as stream:
        stream.seek(8 * first)
        stream.write(np.array([7, 8, 9, 10, 0], dtype="<i4").tobytes())
    Sidecar(Header(2 * first + 5, 3, 500, 0, SHA, 0), "", "", indexed.zlib.crc32(head), "").write(name)
    found = IndexedTokens(name)
    assert found.read(2 * first - 1, 2 * first + 5).tolist() == [0, 7, 8, 9, 10, 0]
    assert found.index.documents(2 * first - 1, 2 * first + 2).tolist() == [1, 2, 2]
    other = IndexedDataset(str(name))
    assert other[2].tolist() == [7, 8, 9, 10, 0] and other.get(1, offset=first - 2).tolist() == [0, 0]
    assert file(name, ".bin").stat().st_blocks * 512 < 1 << 20


def test_parts_whose_offsets_pass_32_bits_merge(tmp_path):
    """The tables alone: three parts of 2^31 - 1 tokens each."""
    tokens = (1 << 31) - 1
    table = DocumentIndex(np.array([tokens], "<i4"), np.zeros(1, "<i8"), np.arange(2), 4, tokens)
    index_writer.write_index(tmp_path / "a.idx", 4, [table] * 3)
    raw = (tmp_path / "a.idx").read_bytes()
    assert np.frombuffer(raw, "<i8", 3, 34 + 12).tolist() == [0, 4 * tokens, 8 * tokens]
