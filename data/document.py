"""One document of a corpus."""

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A text, where it came from, and the unit of the corpus that no split may divide.

    text: Unicode NFC, line ends "\\n", no blank lines at either end.
    source: file and, within it, the definition or line.
    package: the unit of the split: an installed package, or a file or piece of a local corpus.
    """

    text: str
    source: str
    package: str


def clean(text: str) -> str:
    """NFC, one kind of line end, no white space at line ends or around the text."""
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")
