"""How much of the held-out text also stands in the training text: shared windows of n words.

The measure of decontamination since GPT-3 (Brown et al. 2020, appendix C: n = 13). Windows stay within a
document. A held-out document shorter than n words is one window, compared with all windows of its length.
"""

from dataclasses import dataclass

import numpy as np

from data.words import WordStream


@dataclass(frozen=True)
class Leak:
    """Windows of held-out documents, how many of them the training documents hold, and their share."""

    windows: int
    shared: int
    share: float
    documents: int
    documents_sharing: int


def present(wanted: np.ndarray, values: np.ndarray) -> np.ndarray:
    """bool, for each wanted uint64 hash whether it is among values."""
    distinct, inverse = np.unique(wanted, return_inverse=True)
    at = np.minimum(np.searchsorted(distinct, values), len(distinct) - 1)
    found = np.zeros(len(distinct), dtype=bool)
    found[at[distinct[at] == values]] = True
    return found[inverse]


def leaks(train: WordStream, held_out: dict[str, WordStream], size: int) -> dict[str, Leak]:
    """Leak of each named set of held-out documents from the training documents, windows of `size` words."""
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in held_out}
    for length in range(1, size + 1):
        wanted = {name: compared(stream, length, size) for name, stream in held_out.items()}
        pooled = np.concatenate([values for values, _ in wanted.values()])
        if not pooled.size:
            continue
        flags = present(pooled, train.windows(length)[0])
        for name, (values, document) in wanted.items():
            parts[name].append((document, flags[: len(values)]))
            flags = flags[len(values) :]
    return {name: summary(pairs, len(held_out[name].lengths)) for name, pairs in parts.items()}


def compared(stream: WordStream, length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of `length` words that count: all at full size, below it those that are a whole document."""
    values, document = stream.windows(length)
    if length == size:
        return values, document
    whole = stream.lengths[document] == length
    return values[whole], document[whole]


def summary(pairs: list[tuple[np.ndarray, np.ndarray]], documents: int) -> Leak:
    """Counts over (document of each window, whether it is shared)."""
    windows = sum(len(flag) for _, flag in pairs)
    shared = sum(int(flag.sum()) for _, flag in pairs)
    sharing = len(np.unique(np.concatenate([document[flag] for document, flag in pairs]))) if pairs else 0
    return Leak(windows, shared, shared / windows if windows else 0.0, documents, sharing)
