"""Files and folders that a command is asked to write to, checked before its work starts."""

import os
from collections.abc import Sequence
from pathlib import Path

PICTURES = (".png", ".svg", ".pdf")


def check_target(path: Path, option: str, endings: Sequence[str] = (), force: bool = False,
                 new_folders: bool = False) -> None:
    """Raises ValueError for a file that cannot be written, or that exists and is not to be replaced.

    option: that asked for the file. endings: of its name, any without. force: it may be replaced. new_folders: the
    folders above it are made where they are missing.
    """
    asked = f"{option} {path}"
    if endings and path.suffix.lower() not in endings:
        raise ValueError(f"{asked}: end the name in {' or '.join(', '.join(endings).rsplit(', ', 1))}")
    if path.is_dir():
        raise ValueError(f"{asked} is a folder: name a file in it")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise ValueError(f"{asked} is no ordinary file: name another")
    check_folder(path.parent, asked, new_folders)
    if not os.path.isfile(path):
        return
    if not os.access(path, os.W_OK):
        raise ValueError(f"{asked} is read-only: name another file")
    if not force:
        raise ValueError(f"{asked} exists: name another file, or give --force to replace it")


def check_folder(path: Path, option: str, new: bool = True) -> None:
    """Raises ValueError for a folder in which nothing can be written. new: it is made where it is missing."""
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.exists(part))
    if not there.is_dir():
        raise ValueError(f"{option}: {there} is a file and no folder")
    if there != path.absolute() and not new:
        raise ValueError(f"{option}: there is no folder {path}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{option}: the folder {there} is read-only, name another")
