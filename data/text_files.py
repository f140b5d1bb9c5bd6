"""Documents from local files: plain text, JSON lines, compressed or not, or a folder of them."""

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from data.document import Document, clean

TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".rst", ".py"})
JSONL_SUFFIXES = frozenset({".jsonl", ".ndjson"})
COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
NOT_DECOMPRESSED = frozenset({".zst", ".lz4", ".br"})
NOT_READ = NOT_DECOMPRESSED | {".zip", ".7z", ".tar", ".tgz", ".parquet", ".arrow"}
SEPARATOR = "<|endoftext|>"
MANY_FILES = 10
PIECES = 200
PIECE_CHARACTERS = (512, 16_384)


def form(path: Path) -> str:
    """The suffix that says what a file holds: that before the one of a compression."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in NOT_DECOMPRESSED | COMPRESSED.keys() else suffix


def check_readable(path: Path) -> None:
    """Raises ValueError for a file in a form that is not read."""
    for suffix in (path.suffix.lower(), form(path)):
        if suffix in NOT_READ:
            raise ValueError(f"{path}: {suffix} files are not read; unpack or convert it to text or JSON lines, "
                             f"plain or compressed as {', '.join(COMPRESSED)}")


def is_jsonl(path: Path) -> bool:
    """Whether a file holds JSON lines; else it is text."""
    return form(path) in JSONL_SUFFIXES


def local_files(source: Path) -> list[Path]:
    """The file itself, or the text and JSON-lines files under the folder in order of their names."""
    if not source.exists():
        raise ValueError(f"source {str(source)!r} does not exist; give a text file, a .jsonl file, a "
                         'folder of them, or "packages"')
    if source.is_file():
        check_readable(source)
        return [source]
    suffixes = TEXT_SUFFIXES | JSONL_SUFFIXES
    files = sorted(path for path in source.rglob("*") if path.is_file() and form(path) in suffixes)
    for path in files:
        check_readable(path)
    if not files:
        raise ValueError(f"folder {str(source)!r} has no file named {', '.join(sorted(suffixes))}; "
                         "rename the files or give one of them")
    return files


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed."""
    return COMPRESSED.get(path.suffix.lower(), open)(path, "rb")


def line_at(path: Path, begin: int, number: int) -> str:
    """The name of a line for messages: the number-th from byte `begin` on, where a line begins."""
    before = 0
    if begin:
        with path.open("rb") as file:
            before = sum(file.read(min(1 << 20, begin - at)).count(b"\n") for at in range(0, begin, 1 << 20))
    return f"{path}, line {before + number}"


def read_lines(path: Path, begin: int = 0, stop: int | None = None) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, those that begin in [begin, stop) of one that is not compressed.

    A line must begin at `begin`; the numbers count from there. Raises ValueError naming file and line where the
    file is not text, or is compressed and damaged.
    """
    with opened(path) as file:
        if begin:
            file.seek(begin)
        at = begin
        for number, raw in enumerate(_whole(file, path), 1):
            if stop is not None and at >= stop:
                return
            if at == 0:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            at += len(raw)
            if b"\0" in raw:
                raise ValueError(f"{line_at(path, begin, number)}: a zero byte, so this is not UTF-8 text but a "
                                 "binary or UTF-16 file; convert it to UTF-8 text or JSON lines")
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{line_at(path, begin, number)}: byte 0x{raw[error.start]:02x} at column "
                                 f"{error.start + 1} is not UTF-8; convert the file, for instance with "
                                 "iconv -t UTF-8") from None


def _whole(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Lines of a file; a compressed one that ends early or does not match its checksum is the user's to replace."""
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}; fetch it again") from None
    except OSError as error:  # bz2 has no error of its own
        if path.suffix.lower() == ".bz2" and error.errno is None:
            raise ValueError(f"{path} is damaged: {error}; fetch it again") from None
        raise


def read_text(path: Path, name: str, whole: bool) -> Iterator[Document]:
    """Documents of a text file as they stand: between separator lines where it has any, else the whole file or its pieces.

    A separator is a line holding <|endoftext|> alone. Pieces end at the first blank line after about one
    200th of the file (512 to 16,384 characters), or at any line end after four times that.
    whole: the file is one document and one unit of the split; otherwise each document is a unit.
    """
    lines = [(number, line) for number, line in read_lines(path)]
    separated = any(line.strip() == SEPARATOR for _, line in lines)
    low, high = PIECE_CHARACTERS
    piece = min(high, max(low, sum(len(line) for _, line in lines) // PIECES))
    start, parts, size = 1, [], 0

    def document() -> Document:
        source = f"{name}:{start}"
        return Document("".join(parts), source, name if whole else source)

    for number, line in lines:
        ends = line.strip() == SEPARATOR
        if not ends:
            parts.append(line)
            size += len(line)
        if not separated and not whole:
            ends = size >= 4 * piece or (size >= piece and not line.strip())
        if ends:
            yield document()
            start, parts, size = number + 1, [], 0
    yield document()


def read_jsonl(path: Path, name: str, key: str, begin: int = 0, stop: int | None = None) -> Iterator[Document]:
    """One document, its own unit of the split, from the string under `key` of each line's object, as it stands.

    begin, stop: as read_lines has them; lines in the sources count from there.
    """
    for number, line in read_lines(path, begin, stop):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            where = line_at(path, begin, number)
            raise ValueError(f"{where}: not JSON ({error.msg}); each line must be one JSON object") from None
        if not isinstance(record, dict) or not isinstance(record.get(key), str):
            keys = ", ".join(sorted(record)) if isinstance(record, dict) else "no object"
            raise ValueError(f"{line_at(path, begin, number)}: text_key={key!r} names no string; found: {keys}")
        try:
            record[key].encode()
        except UnicodeEncodeError:
            raise ValueError(f"{line_at(path, begin, number)}: {key!r} holds half of a surrogate pair, which no UTF-8 text can; "
                             "escape the whole pair or drop it") from None
        source = f"{name}:{number}"
        yield Document(record[key], source, source)


def read_local(source: Path, text_key: str, max_bytes: int | None) -> Iterator[Document]:
    """Cleaned documents of a file or folder in order of file name and line, until they hold max_bytes of UTF-8.

    In a folder of ten or more text files each file is one document and one unit of the split.
    A record of JSON lines always is.
    """
    files = local_files(source)
    whole = sum(not is_jsonl(path) for path in files) >= MANY_FILES
    held = 0
    for path in files:
        name = path.name if path == source else path.relative_to(source).as_posix()
        if path.stat().st_size == 0 and path == source:
            raise ValueError(f"{path} is empty; give a file with text in it")
        if is_jsonl(path):
            documents = read_jsonl(path, name, text_key)
        else:
            documents = read_text(path, name, whole)
        for document in documents:
            document = replace(document, text=clean(document.text))
            held += len(document.text.encode())
            if max_bytes is not None and held > max_bytes:
                return
            yield document
