"""Words of documents as 64-bit hashes, and the hashes of windows of n words.

Used to compare documents: case, Unicode compatibility forms, white space and punctuation do not count.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Scripts written without spaces: each character is a word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[^\W{UNSPACED}]+|[{UNSPACED}]")
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """Case-folded words of the text; its characters other than white space where it has no word at all."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return WORD.findall(folded) or [character for character in folded if not character.isspace()]


@dataclass(frozen=True)
class WordStream:
    """Word hashes of many documents end to end.

    hashes: uint64 (words,). starts: int64 (documents + 1,), document d holds hashes[starts[d]:starts[d + 1]].
    """

    hashes: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(texts: Iterable[str]) -> "WordStream":
        """Hash every word once (64 bits of BLAKE2b, the same on every machine and in every process)."""
        known: dict[str, int] = {}
        parts, starts = [], [0]
        for text in texts:
            found = words(text)
            for word in found:
                if word not in known:
                    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                    known[word] = int.from_bytes(digest, "big")
            parts.append(np.array([known[word] for word in found], dtype=np.uint64))
            starts.append(starts[-1] + len(found))
        hashes = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        return WordStream(hashes, np.array(starts, dtype=np.int64))

    @property
    def lengths(self) -> np.ndarray:
        """Words of each document, int64 (documents,)."""
        return np.diff(self.starts)

    def take(self, documents: np.ndarray) -> "WordStream":
        """The stream of the documents with these numbers, in this order."""
        lengths = self.lengths[documents]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return WordStream(self.hashes[runs(self.starts[documents], lengths)], starts)

    def windows(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Hash of each run of `size` words within one document, and the number of that document.

        Returns uint64 (windows,) and int64 (windows,). Documents shorter than `size` have none.
        """
        count = max(0, len(self.hashes) - size + 1)
        mixed = np.zeros(count, dtype=np.uint64)
        for offset in range(size):
            mixed = (mixed + self.hashes[offset : offset + count]) * MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
        counts = np.maximum(self.lengths - size + 1, 0)
        return mixed[runs(self.starts[:-1], counts)], np.repeat(np.arange(len(counts)), counts)


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, ... for lengths[0] numbers, then the same for starts[1], and so on; int64."""
    shift = starts - (np.cumsum(lengths) - lengths)
    return np.arange(int(lengths.sum())) + np.repeat(shift, lengths)
