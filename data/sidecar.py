"""What stands beside a set's tokens and index, NAME.json. It is written last: a set without it is not complete."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from common.checkpoint.files import write_text

VERSION = 1


@dataclass(frozen=True)
class Header:
    """Counts of a set, and what its tokens mean. text_bytes: UTF-8 bytes of its text, 0 where unknown."""

    tokens: int
    documents: int
    vocab: int
    eod: int
    tokenizer_sha256: str
    text_bytes: int


@dataclass(frozen=True)
class Sidecar:
    """header, the SHA-256 of both files, the CRC-32 of the index's head, and what the set was built from.

    source: hash of text and settings, by which a build that was interrupted or is asked for again knows its own.
    """

    header: Header
    tokens_sha256: str
    index_sha256: str
    index_header_crc32: int
    source: str

    def text(self) -> str:
        """The content of the side file."""
        content = json.dumps(asdict(self), sort_keys=True)
        checksum = hashlib.sha256(content.encode()).hexdigest()
        return json.dumps({"version": VERSION, **asdict(self), "checksum": checksum}, indent=1) + "\n"

    def write(self, name: Path) -> None:
        write_text(_path(name), self.text())


def read_sidecar(name: Path) -> Sidecar:
    """The side file of a set. Raises ValueError if it is missing, damaged or of another version."""
    path = _path(name)
    if not path.is_file():
        raise ValueError(f"{path} does not exist: there is no set of that name, or it was not finished; python -m "
                         "data.index build makes one, data.index adopt takes files that another tool wrote")
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        content = json.loads(text)
        if (version := content.pop("version")) != VERSION:
            raise ValueError(f"{path} has version {version}, this code reads {VERSION}; build the set anew")
        del content["checksum"]
        found = Sidecar(**{**content, "header": Header(**content["header"])})
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is damaged or no side file of a set; build the set anew") from None
    if found.text() != text:
        raise ValueError(f"{path} does not match its checksum; build the set anew")
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _path(name: Path) -> Path:
    return name.with_name(name.name + ".json")
