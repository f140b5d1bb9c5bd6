"""Exact and near duplicates, removed before a corpus is split.

Near duplicates: documents whose sets of five-word shingles have a Jaccard similarity of at least `threshold`.
MinHash with locality-sensitive hashing (Broder 1997; datasketch) proposes pairs, the exact similarity of the
sets decides, and of each connected cluster of such pairs one document stays. The outcome does not depend on
the order of the documents. Hashing misses a pair at the threshold with a probability of some per cent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from datasketch import MinHash, MinHashLSH

from data.document import Document
from data.words import WordStream

# Pairs are checked afterwards, so a miss costs more than a pair proposed in vain.
LSH_WEIGHTS = (0.2, 0.8)


@dataclass(frozen=True)
class Removed:
    """How many documents went, and how many clusters of near duplicates they came from."""

    near_empty: int
    exact_duplicates: int
    near_duplicates: int
    near_clusters: int


class Clusters:
    """Disjoint sets of the numbers 0 to n - 1."""

    def __init__(self, n: int):
        self.parent = list(range(n))

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def join(self, i: int, j: int) -> None:
        self.parent[max(i, j)] = min(i, j)

    def groups(self) -> Iterator[list[int]]:
        members: dict[int, list[int]] = {}
        for i in range(len(self.parent)):
            members.setdefault(self.find(i), []).append(i)
        yield from members.values()


def near_empty(document: Document, min_characters: int) -> bool:
    """Fewer than min_characters characters that are not white space."""
    return len("".join(document.text.split())) < min_characters


def exact_representatives(documents: list[Document], candidates: np.ndarray) -> np.ndarray:
    """Of the candidates (indices), one for each text: the one whose (package, source) sorts first."""
    first: dict[str, int] = {}
    for i in candidates.tolist():
        held = first.setdefault(documents[i].text, i)
        if (documents[i].package, documents[i].source) < (documents[held].package, documents[held].source):
            first[documents[i].text] = i
    return np.array(sorted(first.values()), dtype=np.int64)


def shingle_sets(stream: WordStream, size: int) -> list[np.ndarray]:
    """Sorted distinct hashes of each document's runs of `size` words; of all its words where it has fewer."""
    values, document = stream.windows(size)
    sets = np.split(values, np.searchsorted(document, np.arange(1, len(stream.lengths))))
    for i in np.flatnonzero(stream.lengths < size):
        sets[i] = stream.take(np.array([i])).windows(int(stream.lengths[i]))[0]
    return [np.unique(part) for part in sets]


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """|a ∩ b| / |a ∪ b| of two sorted arrays without repeats."""
    shared = np.intersect1d(a, b, assume_unique=True).size
    return shared / (a.size + b.size - shared)


def near_clusters(stream: WordStream, threshold: float, shingle: int, permutations: int) -> list[list[int]]:
    """Connected clusters, as lists of document numbers, of pairs at or above the threshold.

    A threshold of 1 looks for none: equal documents are gone by then. Raises ValueError when so many permutations cannot
    tell so high a threshold.
    """
    sets = shingle_sets(stream, shingle)
    if threshold == 1:
        return [[i] for i in range(len(sets))]
    try:
        index = MinHashLSH(threshold=threshold, num_perm=permutations, weights=LSH_WEIGHTS)
    except ValueError:
        raise ValueError(f"near_threshold={threshold} cannot be told with near_permutations={permutations}: use more, a "
                         "threshold of 0.9 or less with 128, or 1 to drop exact duplicates alone") from None
    hashes = ((values >> np.uint64(32)).tolist() for values in sets)
    clusters = Clusters(len(sets))
    for i, sketch in enumerate(MinHash.generator(hashes, num_perm=permutations, seed=1, hashfunc=int)):
        for j in index.query(sketch):
            if clusters.find(i) != clusters.find(j):
                short, long = sorted((sets[i].size, sets[j].size))
                if short >= threshold * long and jaccard(sets[i], sets[j]) >= threshold:
                    clusters.join(clusters.find(i), clusters.find(j))
        index.insert(i, sketch)
    return list(clusters.groups())


def deduplicate(documents: list[Document], stream: WordStream, *, min_characters: int, threshold: float,
                shingle: int, permutations: int) -> tuple[np.ndarray, np.ndarray, Removed]:
    """Drop near-empty documents, then exact, then near duplicates.

    stream: the words of the documents. Of a cluster the longest text stays, among equally long ones the one
    that sorts first. Returns the indices, in order, of the documents that are not near-empty and of those
    that stay, and the counts.
    """
    filled = np.flatnonzero([not near_empty(document, min_characters) for document in documents])
    distinct = exact_representatives(documents, filled)
    groups = near_clusters(stream.take(distinct), threshold, shingle, permutations) if distinct.size else []

    def rank(i: int) -> tuple[int, str]:
        text = documents[distinct[i]].text
        return -len(text), text

    kept = distinct[sorted(min(group, key=rank) for group in groups)]
    return filled, kept, Removed(
        near_empty=len(documents) - len(filled),
        exact_duplicates=len(filled) - len(distinct),
        near_duplicates=len(distinct) - len(kept),
        near_clusters=sum(len(group) > 1 for group in groups),
    )
