"""Files that are complete or absent, and that outlive a crash of the machine."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flush(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it takes the place of `path` if the block ends without an error.

    A reader sees the old file or the new one, never a part; the new one has the old one's permissions.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        if path.exists():
            shutil.copymode(path, partial)
        flush(partial)
        os.replace(partial, path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replaces the file by `text`, all at once or not at all; makes the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
