"""Documents from local files: plain text, JSON lines, or a folder of them."""

import json
from collections.abc import Iterator
from pathlib import Path

from data.document import Document, clean

TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".rst", ".py"})
JSONL_SUFFIXES = frozenset({".jsonl", ".ndjson"})
SEPARATOR = "<|endoftext|>"
MANY_FILES = 10
PIECES = 200
PIECE_CHARACTERS = (512, 16_384)


def local_files(source: Path) -> list[Path]:
    """The file itself, or the text and JSON-lines files under the folder in order of their names."""
    if not source.exists():
        raise ValueError(f"source {str(source)!r} does not exist; give a text file, a .jsonl file, a "
                         'folder of them, or "packages"')
    if source.is_file():
        return [source]
    suffixes = TEXT_SUFFIXES | JSONL_SUFFIXES
    files = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix.lower() in suffixes)
    if not files:
        raise ValueError(f"folder {str(source)!r} has no file named {', '.join(sorted(suffixes))}; "
                         "rename the files or give one of them")
    return files


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file. Raises ValueError naming file and line where the file is not text."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if b"\0" in raw:
                raise ValueError(f"{path}, line {number}: a zero byte, so this is not UTF-8 text but a "
                                 "binary or UTF-16 file; convert it to UTF-8 text or JSON lines")
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: byte 0x{raw[error.start]:02x} at column "
                                 f"{error.start + 1} is not UTF-8; convert the file, for instance with "
                                 "iconv -t UTF-8") from None


def read_text(path: Path, name: str, whole: bool) -> Iterator[Document]:
    """Documents of a text file: between separator lines where it has any, else the whole file or its pieces.

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
        return Document(clean("".join(parts)), source, name if whole else source)

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


def read_jsonl(path: Path, name: str, key: str) -> Iterator[Document]:
    """One document, its own unit of the split, from the string under `key` of each line's object."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error.msg}); each line must be one JSON object") from None
        if not isinstance(record, dict) or not isinstance(record.get(key), str):
            keys = ", ".join(sorted(record)) if isinstance(record, dict) else "no object"
            raise ValueError(f"{where}: text_key={key!r} names no string; found: {keys}")
        try:
            record[key].encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where}: {key!r} holds half of a surrogate pair, which no UTF-8 text can; "
                             "escape the whole pair or drop it") from None
        source = f"{name}:{number}"
        yield Document(clean(record[key]), source, source)


def read_local(source: Path, text_key: str, max_bytes: int | None) -> Iterator[Document]:
    """Documents of a file or folder in order of file name and line, until they hold max_bytes of UTF-8.

    In a folder of ten or more text files each file is one document and one unit of the split.
    A record of JSON lines always is.
    """
    files = local_files(source)
    whole = sum(path.suffix.lower() not in JSONL_SUFFIXES for path in files) >= MANY_FILES
    held = 0
    for path in files:
        name = path.name if path == source else path.relative_to(source).as_posix()
        if path.stat().st_size == 0 and path == source:
            raise ValueError(f"{path} is empty; give a file with text in it")
        if path.suffix.lower() in JSONL_SUFFIXES:
            documents = read_jsonl(path, name, text_key)
        else:
            documents = read_text(path, name, whole)
        for document in documents:
            held += len(document.text.encode())
            if max_bytes is not None and held > max_bytes:
                return
            yield document
