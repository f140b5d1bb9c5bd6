"""Token streams on disk: one memory-mapped file of tokens with the borders of their documents.

    header    128 bytes, little-endian, HEADER below
    tokens    uint16, int32 or uint32: the first that holds the vocabulary; padded with zeros to 8 bytes
    offsets   int64 (documents + 1,): document d is tokens[offsets[d] : offsets[d + 1]]

Every document ends with the end-of-document token, which occurs nowhere else.
"""

import hashlib
import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from common.checkpoint.files import replaced

MAGIC = b"MRPTOKS\0"
VERSION = 1
# magic, version, dtype code, tokens, documents, vocabulary, end-of-document id, SHA-256 of the tokenizer and
# of everything after the header, CRC-32 of the header before this field.
HEADER = struct.Struct("<8sIIqqqq32s32sI")
HEADER_BYTES = 128
DTYPES = {1: np.dtype("<u2"), 2: np.dtype("<i4"), 3: np.dtype("<u4")}


def dtype_code(vocab: int) -> int:
    """Code of the smallest token type that holds ids 0 to vocab - 1."""
    for code, dtype in DTYPES.items():
        if 1 <= vocab <= np.iinfo(dtype).max + 1:
            return code
    raise ValueError(f"vocab={vocab}: token ids must fit 32 bits, so 1 to {1 << 32} entries")


@dataclass(frozen=True)
class Header:
    """Counts of a token stream, and where its parts lie in the file. Plain integers, so nothing overflows."""

    code: int
    tokens: int
    documents: int
    vocab: int
    eod: int
    tokenizer_sha256: str
    body_sha256: str

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.code]

    @property
    def offsets_at(self) -> int:
        """Byte of the file at which the offsets begin."""
        return HEADER_BYTES + -(-self.tokens * self.dtype.itemsize // 8) * 8

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        return self.offsets_at + 8 * (self.documents + 1)

    def pack(self) -> bytes:
        fields = HEADER.pack(MAGIC, VERSION, self.code, self.tokens, self.documents, self.vocab, self.eod,
                             bytes.fromhex(self.tokenizer_sha256), bytes.fromhex(self.body_sha256), 0)
        checked = fields[:-4]
        return (checked + struct.pack("<I", zlib.crc32(checked))).ljust(HEADER_BYTES, b"\0")


def unpack(raw: bytes, path: Path) -> Header:
    """The header in these bytes. Raises ValueError naming the file if they hold none this code can read."""
    if len(raw) < HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is not a token file; python -m data.prepare makes one")
    magic, version, code, tokens, documents, vocab, eod, tokenizer, body, crc = HEADER.unpack_from(raw)
    if version != VERSION:
        raise ValueError(f"{path} has format version {version}, this code reads {VERSION}; "
                         "prepare the data anew")
    if zlib.crc32(raw[: HEADER.size - 4]) != crc:
        raise ValueError(f"{path} has a damaged header; prepare the data anew")
    return Header(code, tokens, documents, vocab, eod, tokenizer.hex(), body.hex())


class DocumentIndex:
    """Borders of documents: offsets int64 (documents + 1,), from 0, strictly rising."""

    def __init__(self, offsets: np.ndarray):
        self.offsets = offsets

    def span(self, document: int) -> tuple[int, int]:
        """First token of a document and the token after its last."""
        return int(self.offsets[document]), int(self.offsets[document + 1])

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Number of the document of each token in [start, stop), int64 (stop - start,)."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        borders = np.clip(self.offsets[first : last + 1], start, stop)
        return np.repeat(np.arange(first, last, dtype=np.int64), np.diff(borders))


class TokenWriter:
    """Appends documents to a token file. Made by `token_writer`."""

    def __init__(self, file: BinaryIO, vocab: int, eod: int, tokenizer_sha256: str):
        if not 0 <= eod < vocab:
            raise ValueError(f"eod={eod} is outside of the vocabulary of {vocab}")
        self.vocab, self.eod, self.tokenizer_sha256 = vocab, eod, tokenizer_sha256
        self._code = dtype_code(vocab)
        self._offsets = array("q", [0])
        self._hash = hashlib.sha256()
        self._file = file
        file.write(bytes(HEADER_BYTES))

    def add(self, tokens: np.ndarray) -> None:
        """Append one document, integers (tokens,), and the end-of-document token."""
        if tokens.ndim != 1 or not tokens.size:
            raise ValueError(f"a document is a non-empty row of tokens, not of shape {tokens.shape}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab:
            raise ValueError(f"token {low if low < 0 else high} is outside of the vocabulary of {self.vocab}")
        if (tokens == self.eod).any():
            raise ValueError(f"the end-of-document token {self.eod} stands within a document")
        self._write(np.append(tokens, self.eod).astype(DTYPES[self._code]).tobytes())
        self._offsets.append(self._offsets[-1] + len(tokens) + 1)

    def _write(self, raw: bytes) -> None:
        self._file.write(raw)
        self._hash.update(raw)

    def finish(self) -> None:
        """Write padding, offsets and, last, the header."""
        header = Header(self._code, self._offsets[-1], len(self._offsets) - 1, self.vocab, self.eod,
                        self.tokenizer_sha256, "")
        self._write(bytes(header.offsets_at - self._file.tell()))
        self._write(np.array(self._offsets, dtype="<i8").tobytes())
        self._file.seek(0)
        self._file.write(replace(header, body_sha256=self._hash.hexdigest()).pack())


@contextmanager
def token_writer(path: Path, vocab: int, eod: int, tokenizer_sha256: str) -> Iterator[TokenWriter]:
    """A writer whose file appears, whole, when the block ends without an error, and otherwise not at all."""
    with replaced(path) as partial, partial.open("wb") as file:
        writer = TokenWriter(file, vocab, eod, tokenizer_sha256)
        yield writer
        writer.finish()


class TokenReader:
    """A token file, memory-mapped. Raises ValueError if it is missing, torn, or not a token file."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise ValueError(f"token file {path} does not exist; python -m data.prepare makes one")
        with path.open("rb") as file:
            self.header = unpack(file.read(HEADER_BYTES), path)
        size = os.path.getsize(path)
        if size != self.header.file_bytes:
            raise ValueError(f"{path} has {size} bytes, its header says {self.header.file_bytes}: it was cut "
                             "or written over; prepare the data anew")
        self.path = path
        if self.header.tokens:
            self._tokens = np.memmap(path, self.header.dtype, "r", HEADER_BYTES, (self.header.tokens,))
        else:
            self._tokens = np.zeros(0, self.header.dtype)
        offsets = np.memmap(path, "<i8", "r", self.header.offsets_at, (self.header.documents + 1,))
        self.index = DocumentIndex(offsets)
        self.vocab, self.eod = self.header.vocab, self.header.eod

    def __len__(self) -> int:
        return self.header.tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop - 1, int64. Raises ValueError beyond the ends or the vocabulary."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"tokens {start} to {stop} of {self.path}, which holds {len(self)}")
        tokens = self._tokens[start:stop].astype(np.int64)
        if tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocab):
            raise ValueError(f"{self.path} holds a token outside of its vocabulary of {self.vocab}; "
                             "prepare the data anew")
        return tokens

    def verify(self) -> None:
        """Read the whole file against its checksum. Raises ValueError if a byte has changed."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(HEADER_BYTES)
            while block := file.read(1 << 22):
                digest.update(block)
        if digest.hexdigest() != self.header.body_sha256:
            raise ValueError(f"{self.path} does not match its checksum; prepare the data anew")
