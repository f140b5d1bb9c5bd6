"""Writing sets of indexed tokens: document by document, from finished parts, or beside another tool's files."""

import hashlib
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from common.checkpoint.files import flush, replaced
from data.indexed import (
    DTYPES,
    INDEX_HEADER,
    LIMIT,
    SUFFIXES,
    DocumentIndex,
    IndexedTokens,
    dtype_code,
    file,
    index_bytes,
    index_header,
    mapped_index,
    pack_header,
)
from data.sidecar import Header, Sidecar, digest

BLOCK = 1 << 22


class HashedFile:
    """A file that is written from start to end, and the SHA-256 of it."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.hash = stream, hashlib.sha256()

    def write(self, raw: bytes) -> None:
        self.stream.write(raw)
        self.hash.update(raw)


class TokenWriter:
    """Appends documents to a set, each as one sequence. Made by `token_writer`."""

    def __init__(self, out: HashedFile, vocab: int, eod: int):
        if not 0 <= eod < vocab:
            raise ValueError(f"eod={eod} is outside of the vocabulary of {vocab}")
        self.vocab, self.eod, self.code = vocab, eod, dtype_code(vocab)
        self.text_bytes, self.lengths, self._out = 0, array("i"), out

    def add(self, tokens: np.ndarray, text_bytes: int = 0) -> None:
        """Append one document, integers (tokens,), and the end-of-document token.

        text_bytes: of the UTF-8 text that the tokens stand for. Raises ValueError for a token outside of the
        vocabulary, an end-of-document token within the document, and for what the format cannot count.
        """
        if tokens.ndim != 1 or not tokens.size:
            raise ValueError(f"a document is a non-empty row of tokens, not of shape {tokens.shape}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab:
            raise ValueError(f"token {low if low < 0 else high} is outside of the vocabulary of {self.vocab}")
        if (tokens == self.eod).any():
            raise ValueError(f"the end-of-document token {self.eod} stands within a document")
        if tokens.size >= LIMIT or len(self.lengths) >= LIMIT:
            raise ValueError(f"document {len(self.lengths)} has {tokens.size} tokens; the format counts documents, "
                             f"and the tokens of each, up to {LIMIT}: cut it, or make several sets and blend them")
        self._out.write(np.append(tokens, self.eod).astype(DTYPES[self.code]).tobytes())
        self.lengths.append(len(tokens) + 1)
        self.text_bytes += text_bytes

    def index(self) -> DocumentIndex:
        """Tables of what has been written."""
        lengths, itemsize = np.array(self.lengths, dtype="<i4"), np.dtype(DTYPES[self.code]).itemsize
        ends = np.cumsum(lengths, dtype="<i8") * itemsize
        return DocumentIndex(lengths, ends - lengths * np.int64(itemsize), np.arange(len(lengths) + 1, dtype="<i8"),
                             itemsize, int(ends[-1]) // itemsize if len(ends) else 0)


def write_index(path: Path, code: int, tables: Sequence[DocumentIndex]) -> tuple[int, str]:
    """Write the index of parts that follow each other; returns the CRC-32 of its head and the SHA-256 of it."""
    head = pack_header(code, sum(len(t.lengths) for t in tables), sum(t.documents_number for t in tables), path)
    with path.open("wb") as stream:
        out = HashedFile(stream)
        out.write(head)
        for table in tables:
            out.write(table.lengths.tobytes())
        start = 0
        for table in tables:
            out.write((table.pointers + np.int64(start)).tobytes())
            start += table.tokens * table.itemsize
        out.write(np.zeros(1, "<i8").tobytes())
        start = 0
        for table in tables:
            out.write((table.borders[1:] + np.int64(start)).tobytes())
            start += len(table.lengths)
    return zlib.crc32(head), out.hash.hexdigest()


@contextmanager
def _files(name: Path) -> Iterator[tuple[Path, Path]]:
    """Names to write tokens and index to; they take their places when the block ends without an error.

    The side file of a set that was there goes first, and the new one comes last.
    """
    with replaced(file(name, ".idx")) as index, replaced(file(name, ".bin")) as tokens:
        yield tokens, index
        file(name, ".json").unlink(missing_ok=True)


@contextmanager
def token_writer(name: Path, vocab: int, eod: int, tokenizer_sha256: str, source: str = "") -> Iterator[TokenWriter]:
    """A writer whose set appears, whole, when the block ends without an error, and otherwise not at all."""
    with _files(name) as (tokens, index):
        with tokens.open("wb") as stream:
            out = HashedFile(stream)
            writer = TokenWriter(out, vocab, eod)
            yield writer
        table = writer.index()
        crc, sha256 = write_index(index, writer.code, [table])
    header = Header(table.tokens, table.documents_number, vocab, eod, tokenizer_sha256, writer.text_bytes)
    Sidecar(header, out.hash.hexdigest(), sha256, crc, source).write(name)


def merge(parts: Sequence[IndexedTokens], name: Path, source: str) -> None:
    """One set of the documents of parts of one tokenizer, in their order. Memory: the tables of one part."""
    heads = [part.header for part in parts]
    vocab, eod, tokenizer = heads[0].vocab, heads[0].eod, heads[0].tokenizer_sha256
    with _files(name) as (tokens, index):
        crc, sha256 = write_index(index, dtype_code(vocab), [part.index for part in parts])
        with tokens.open("wb") as stream:
            out = HashedFile(stream)
            for part in parts:
                with file(part.path, ".bin").open("rb") as piece:
                    while block := piece.read(BLOCK):
                        out.write(block)
    header = Header(sum(h.tokens for h in heads), sum(h.documents for h in heads), vocab, eod, tokenizer,
                    sum(h.text_bytes for h in heads))
    Sidecar(header, out.hash.hexdigest(), sha256, crc, source).write(name)


def move(name: Path, target: Path) -> None:
    """Give a set another name on the same file system, its side file last."""
    file(target, ".json").unlink(missing_ok=True)
    for suffix in SUFFIXES:
        os.replace(file(name, suffix), file(target, suffix))
        flush(target.parent)


def adopt(name: Path, vocab: int, eod: int, tokenizer_sha256: str) -> None:
    """Write the side file of a set that another tool wrote, after reading all of it.

    Raises ValueError if lengths and offsets contradict each other, for parts of images or modes beside the
    tokens, and for a token outside of the vocabulary.
    """
    code, sequences, documents = index_header(name)
    itemsize, size = np.dtype(DTYPES[code]).itemsize, file(name, ".bin").stat().st_size
    path = file(name, ".idx")
    if path.stat().st_size != index_bytes(sequences, documents) or size % itemsize:
        raise ValueError(f"{path} has {path.stat().st_size} bytes and {file(name, '.bin')} {size}, which {sequences} "
                         f"sequences and {documents} documents do not give: one was cut, or holds more than tokens")
    index = mapped_index(name, itemsize, sequences, documents, size // itemsize)
    at = 0
    for first in range(0, sequences, BLOCK):
        lengths = index.lengths[first : first + BLOCK].astype(np.int64)
        ends = at + np.cumsum(lengths) * itemsize
        if (lengths < 0).any() or (index.pointers[first : first + BLOCK] != ends - lengths * itemsize).any():
            raise ValueError(f"{path}: the offsets do not follow from the lengths of the sequences")
        at = int(ends[-1])
    falls = any((np.diff(index.borders[i : i + BLOCK + 1]) < 0).any() for i in range(0, documents, BLOCK))
    if at != size or index.borders[0] or index.borders[-1] != sequences or falls:
        raise ValueError(f"{path}: its sequences do not end where {file(name, '.bin')} does, or its documents do "
                         "not hold each sequence once")
    with file(name, ".bin").open("rb") as stream:
        while raw := stream.read(BLOCK * itemsize):
            tokens = np.frombuffer(raw, DTYPES[code])
            if tokens.min() < 0 or tokens.max() >= vocab:
                raise ValueError(f"{file(name, '.bin')} holds a token outside of the tokenizer's vocabulary of {vocab}")
    with path.open("rb") as stream:
        crc = zlib.crc32(stream.read(INDEX_HEADER.size))
    header = Header(size // itemsize, documents, vocab, eod, tokenizer_sha256, 0)
    Sidecar(header, digest(file(name, ".bin")), digest(path), crc, "").write(name)
