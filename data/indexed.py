"""Indexed tokens: a set of documents in the files that Megatron's tools read and write, memory-mapped.

    NAME.bin     the tokens of all sequences end to end
    NAME.idx     "MMIDIDX\\0\\0", version 1 (u64), dtype code (u8), sequences S and borders D + 1 (u64 each), then
                 int32 (S,) lengths, int64 (S,) byte offsets into NAME.bin, int64 (D + 1,) document d is the
                 sequences borders[d] to borders[d + 1] - 1
    NAME.json    what Megatron's files do not say: vocabulary, end of document, tokenizer, checksums (data.sidecar)

All integers are little-endian. Offsets are 64 bits wide; numbers of sequences and documents are at most
2^31 - 1, since readers of the format keep them in 32 bits, and so is the length of a sequence.
"""

import struct
import zlib
from bisect import bisect_left, bisect_right
from pathlib import Path

import numpy as np

from data.sidecar import Header, Sidecar, digest, read_sidecar

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
INDEX_HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
LIMIT = (1 << 31) - 1
SUFFIXES = (".bin", ".idx", ".json")


def dtype_code(vocab: int) -> int:
    """Code of the token type that Megatron takes for a vocabulary: uint16 below 65,500 entries, else int32."""
    if not 1 <= vocab <= 1 << 31:
        raise ValueError(f"vocab={vocab}: token ids must fit int32, so 1 to {1 << 31} entries")
    return 8 if vocab < 65_500 else 4


def index_bytes(sequences: int, documents: int) -> int:
    """Length of an index file."""
    return INDEX_HEADER.size + 12 * sequences + 8 * (documents + 1)


def pack_header(code: int, sequences: int, documents: int, path: Path) -> bytes:
    """The head of an index. Raises ValueError for more sequences or documents than the format counts."""
    for name, count in (("sequences", sequences), ("documents", documents)):
        if count > LIMIT:
            raise ValueError(f"{path} would hold {count} {name}; the format counts up to {LIMIT}: make several "
                             "sets and blend them")
    return INDEX_HEADER.pack(MAGIC, VERSION, code, sequences, documents + 1)


def unpack_header(raw: bytes, path: Path) -> tuple[int, int, int]:
    """(dtype code, sequences, documents). Raises ValueError naming the file for what this code cannot read."""
    if len(raw) < INDEX_HEADER.size or raw[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is not an index of tokens; python -m data.index build makes one")
    _, version, code, sequences, borders = INDEX_HEADER.unpack(raw[: INDEX_HEADER.size])
    if version != VERSION or code not in DTYPES:
        raise ValueError(f"{path} has version {version} and dtype code {code}; this code reads version {VERSION} "
                         f"and the integer codes {', '.join(map(str, DTYPES))}")
    if not (sequences <= LIMIT and 1 <= borders <= LIMIT + 1):
        raise ValueError(f"{path} counts {sequences} sequences and {borders - 1} documents; the format allows "
                         f"up to {LIMIT} of each")
    return code, sequences, borders - 1


class DocumentIndex:
    """Borders of documents, in tokens from the start of the set.

    lengths: int32 (sequences,). pointers: int64 (sequences,), bytes. borders: int64 (documents + 1,), sequences.
    They stand unaligned in the file, so numpy would copy all of one to search it: bisect reads what it compares.
    """

    def __init__(self, lengths: np.ndarray, pointers: np.ndarray, borders: np.ndarray, itemsize: int, tokens: int):
        self.lengths, self.pointers, self.borders = lengths, pointers, borders
        self.itemsize, self.tokens = itemsize, tokens
        self.documents_number = len(borders) - 1

    def start(self, document: int) -> int:
        """First token of a document; the number of tokens for the one after the last."""
        sequence = int(self.borders[document])
        return self.tokens if sequence == len(self.pointers) else int(self.pointers[sequence]) // self.itemsize

    def span(self, document: int) -> tuple[int, int]:
        """First token of a document and the token after its last."""
        return self.start(document), self.start(document + 1)

    def first_from(self, token: int) -> int:
        """The first document that starts at this token or after it; the number of documents if none does."""
        return bisect_left(range(self.documents_number), token, key=self.start)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Number of the document of each token in [start, stop), int64 (stop - start,)."""
        first = max(bisect_right(range(self.documents_number), start, key=self.start) - 1, 0)
        last = max(self.first_from(stop), first)
        sequences = self.borders[first : last + 1]
        inside = self.pointers[sequences[0] : sequences[-1]] // self.itemsize
        starts = np.append(inside, self.start(last))[sequences - sequences[0]]
        return np.repeat(np.arange(first, last, dtype=np.int64), np.diff(np.clip(starts, start, stop)))


class Stream:
    """A run of whole documents of a set as one stream of tokens."""

    def __init__(self, source: "IndexedTokens", first: int, last: int):
        self.source, self.first, self.last = source, first, last
        self.path, self.header, self.vocab = source.path, source.header, source.vocab
        self.start, self.stop = source.index.start(first), source.index.start(last)

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop - 1 of the stream, int64. Raises ValueError beyond the ends or the vocabulary."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"tokens {start} to {stop} of a part of {self.path} that holds {len(self)}")
        return self.source.read(self.start + start, self.start + stop)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Number of the document of each token in [start, stop), from 0 in this stream, int64 (stop - start,)."""
        return self.source.index.documents(self.start + start, self.start + stop) - self.first


class IndexedTokens:
    """A set on disk, opened: lengths and the checksum of header and side file are checked, nothing is read in.

    name: path of the set without a suffix, or of any of its files. Raises ValueError if a file is missing, cut,
    or not of this format; OSError where it cannot be read.
    """

    def __init__(self, name: Path):
        self.path = set_name(name)
        self.facts: Sidecar = read_sidecar(self.path)
        self.header: Header = self.facts.header
        code, sequences, documents = index_header(self.path)
        dtype = np.dtype(DTYPES[code])
        if zlib.crc32(pack_header(code, sequences, documents, self.path)) != self.facts.index_header_crc32:
            raise ValueError(f"{file(self.path, '.idx')} has another header than {file(self.path, '.json')} "
                             "says: it was written over; build the set anew")
        for suffix, size in ((".idx", index_bytes(sequences, documents)),
                             (".bin", self.header.tokens * dtype.itemsize)):
            if (found := file(self.path, suffix).stat().st_size) != size:
                raise ValueError(f"{file(self.path, suffix)} has {found} bytes, its header says {size}: it was "
                                 "cut or written over; build the set anew")
        self.vocab, self.eod = self.header.vocab, self.header.eod
        self._tokens = _mapped(file(self.path, ".bin"), dtype, 0, self.header.tokens)
        self.index = mapped_index(self.path, dtype.itemsize, sequences, documents, self.header.tokens)
        if self.index.borders[0] or self.index.borders[-1] != sequences:
            raise ValueError(f"{file(self.path, '.idx')} has a damaged table of documents; build the set anew")

    def __len__(self) -> int:
        return self.header.tokens

    def stream(self, first: int = 0, last: int | None = None) -> Stream:
        """Documents first to last - 1; all by default."""
        return Stream(self, first, self.header.documents if last is None else last)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop - 1, int64. Raises ValueError beyond the ends or the vocabulary."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"tokens {start} to {stop} of {self.path}, which holds {len(self)}")
        tokens = self._tokens[start:stop].astype(np.int64)
        if tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocab):
            raise ValueError(f"{file(self.path, '.bin')} holds a token outside of its vocabulary of {self.vocab}; "
                             "build the set anew")
        return tokens

    def verify(self) -> None:
        """Read both files against their checksums. Raises ValueError naming the file if a byte has changed."""
        for suffix, expected in ((".idx", self.facts.index_sha256), (".bin", self.facts.tokens_sha256)):
            if digest(file(self.path, suffix)) != expected:
                raise ValueError(f"{file(self.path, suffix)} does not match its checksum; build the set anew")


def set_name(path: Path) -> Path:
    """The path of a set without the suffix of one of its files."""
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def file(name: Path, suffix: str) -> Path:
    """One of a set's files."""
    return name.with_name(name.name + suffix)


def index_header(name: Path) -> tuple[int, int, int]:
    """(dtype code, sequences, documents) of a set's index. Raises ValueError where there is none."""
    path = file(name, ".idx")
    if not path.is_file() or not file(name, ".bin").is_file():
        raise ValueError(f"{path} and {file(name, '.bin')} are not both there; python -m data.index build makes them")
    with path.open("rb") as stream:
        return unpack_header(stream.read(INDEX_HEADER.size), path)


def mapped_index(name: Path, itemsize: int, sequences: int, documents: int, tokens: int) -> DocumentIndex:
    """The tables of an index file."""
    path, at = file(name, ".idx"), INDEX_HEADER.size
    return DocumentIndex(_mapped(path, "<i4", at, sequences), _mapped(path, "<i8", at + 4 * sequences, sequences),
                         _mapped(path, "<i8", at + 12 * sequences, documents + 1), itemsize, tokens)


def _mapped(path: Path, dtype: np.dtype | str, offset: int, count: int) -> np.ndarray:
    if not count:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r", offset, (count,)).view(np.ndarray)
