"""One process at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file: a second process waits until the first has finished or died."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
