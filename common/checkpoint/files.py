"""Files that must outlive a crash of the machine."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
