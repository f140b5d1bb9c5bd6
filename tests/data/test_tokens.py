"""Token files: round trip, damage, borders, and offsets beyond 32 bits."""

import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tokens import DocumentIndex, Header, TokenReader, token_writer

SHA = "ab" * 32
BIG = 1 << 33


def write(path, documents, vocab=500, eod=0):
    with token_writer(path, vocab, eod, SHA) as writer:
        for document in documents:
            writer.add(np.array(document))
    return path


@pytest.fixture
def stored(tmp_path):
    return write(tmp_path / "a.tokens", [[1, 2, 3], [4], [5, 499]])


@pytest.mark.parametrize("vocab, dtype", [(2, "uint16"), (65_536, "uint16"), (65_537, "int32"), (1 << 31, "int32"),
                                          ((1 << 31) + 1, "uint32"), (1 << 32, "uint32")])
def test_round_trip_in_the_smallest_type(tmp_path, vocab, dtype):
    documents = [[vocab - 1], [1] * 5, [vocab - 1, 1]]
    reader = TokenReader(write(tmp_path / "a.tokens", documents, vocab))
    expected = [token for document in documents for token in (*document, 0)]
    assert reader.read(0, len(reader)).tolist() == expected
    assert reader.read(2, 4).dtype == np.int64
    assert reader.header.dtype == dtype and reader.vocab == vocab and reader.header.tokenizer_sha256 == SHA
    assert [reader.index.span(d) for d in range(3)] == [(0, 2), (2, 8), (8, 11)]
    reader.verify()


def test_empty_stream(tmp_path):
    reader = TokenReader(write(tmp_path / "a.tokens", []))
    assert len(reader) == 0 and reader.header.documents == 0


def test_layout_can_be_read_without_this_code(stored):
    raw = stored.read_bytes()
    assert raw[:8] == b"MRPTOKS\0"
    assert np.frombuffer(raw, "<u2", 9, 128).tolist() == [1, 2, 3, 0, 4, 0, 5, 499, 0]
    assert np.frombuffer(raw, "<i8", 4, 152).tolist() == [0, 4, 6, 9] and len(raw) == 152 + 32


@pytest.mark.parametrize("damage, message", [
    (lambda raw: raw[:-1], r"has \d+ bytes, its header says \d+"),
    (lambda raw: raw + b"\0", "bytes, its header says"),
    (lambda raw: raw[:60], "is not a token file"),
    (lambda raw: b"", "is not a token file"),
    (lambda raw: b"PK\3\4" + raw[4:], "is not a token file"),
    (lambda raw: raw[:8] + b"\2" + raw[9:], "has format version 2, this code reads 1"),
    (lambda raw: raw[:20] + b"\7" + raw[21:], "damaged header"),
])
def test_damage_is_seen_on_opening(stored, damage, message):
    stored.write_bytes(damage(stored.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        TokenReader(stored)
    assert str(stored) in str(error.value)


@pytest.mark.parametrize("at", [128, 140, -1])
def test_any_changed_byte_is_seen_by_verify(stored, at):
    raw = bytearray(stored.read_bytes())
    raw[at] ^= 1
    stored.write_bytes(raw)
    with pytest.raises(ValueError, match="does not match its checksum"):
        TokenReader(stored).verify()


def test_token_beyond_the_vocabulary_in_a_damaged_file(stored):
    raw = bytearray(stored.read_bytes())
    raw[128:130] = struct.pack("<H", 500)
    stored.write_bytes(raw)
    with pytest.raises(ValueError, match="outside of its vocabulary of 500"):
        TokenReader(stored).read(0, 2)


@pytest.mark.parametrize("document, message", [
    ([500], "token 500 is outside of the vocabulary of 500"), ([-1], "token -1 is outside"),
    ([], "non-empty"), ([[1]], "non-empty row"), ([3, 0, 4], "end-of-document token 0 stands within"),
])
def test_bad_documents_leave_no_file(tmp_path, document, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "a.tokens", [[1], document])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writer_leaves_the_old_file(stored):
    before = stored.read_bytes()
    with pytest.raises(KeyboardInterrupt), token_writer(stored, 500, 0, SHA) as writer:
        writer.add(np.array([7]))
        raise KeyboardInterrupt
    assert stored.read_bytes() == before and os.listdir(stored.parent) == [stored.name]


def test_bad_settings(tmp_path, stored):
    with pytest.raises(ValueError, match="eod=500"):
        write(tmp_path / "b.tokens", [], eod=500)
    with pytest.raises(ValueError, match="must fit 32 bits"):
        write(tmp_path / "b.tokens", [], vocab=(1 << 32) + 1)
    with pytest.raises(ValueError, match="does not exist"):
        TokenReader(tmp_path / "b.tokens")
    for start, stop in ((-1, 2), (0, 10), (3, 2)):
        with pytest.raises(ValueError, match="which holds 9"):
            TokenReader(stored).read(start, stop)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data(), st.sampled_from([0, BIG]))
def test_document_of_each_token(lengths, data, shift):
    """Against one label per token. shift: a first document so long that all borders lie beyond 32 bits."""
    labels = [document for document, length in enumerate(lengths) for _ in range(length)]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if shift:
        offsets = np.concatenate([[0], offsets + shift])
    start = data.draw(st.integers(0, len(labels)))
    stop = data.draw(st.integers(start, len(labels)))
    found = DocumentIndex(offsets).documents(start + shift, stop + shift)
    assert found.dtype == np.int64
    assert found.tolist() == [label + (shift > 0) for label in labels[start:stop]]


@pytest.mark.parametrize("code, size", [(1, 2), (2, 4)])
def test_byte_positions_beyond_32_bits(code, size):
    for tokens in ((1 << 31) - 1, 1 << 31, (1 << 32) + 3, 1 << 40):
        header = Header(code, tokens, 5, 500, 0, SHA, SHA)
        assert header.offsets_at == 128 + (tokens * size + 7) // 8 * 8
        assert header.file_bytes == header.offsets_at + 48


def test_file_of_more_than_two_to_the_31_tokens(tmp_path):
    """A sparse file: four GiB in length, a few blocks on disk."""
    path, tokens = tmp_path / "huge.tokens", (1 << 31) + 11
    header = Header(1, tokens, 2, 500, 0, SHA, SHA)
    with path.open("wb") as file:
        file.write(header.pack())
        file.seek(128 + 2 * (tokens - 3))
        file.write(np.array([7, 8, 9], dtype="<u2").tobytes())
        file.seek(header.offsets_at)
        file.write(np.array([0, tokens - 2, tokens], dtype="<i8").tobytes())
    reader = TokenReader(path)
    assert reader.read(tokens - 4, tokens).tolist() == [0, 7, 8, 9]
    assert reader.index.documents(tokens - 4, tokens).tolist() == [0, 0, 1, 1]
    assert path.stat().st_blocks * 512 < 1 << 20


def test_header_checksum_is_crc32_of_the_fields(stored):
    raw = stored.read_bytes()
    assert struct.unpack_from("<I", raw, 112)[0] == zlib.crc32(raw[:112])
