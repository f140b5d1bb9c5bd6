"""Duplicates: exact, near, clusters, near-empty, Unicode forms, order."""

import itertools
import random

import numpy as np
import pytest

import data.deduplicate
from data.deduplicate import deduplicate
from data.document import Document, clean
from data.words import WordStream

WORDS = [a + b for a in "bdfgklmnprst" for b in ("ale", "ink", "orm", "ust", "ape", "eel", "ion", "oar")]


def sentence(seed: int, length: int = 120) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def document(text: str, source: str = "s", package: str = "p") -> Document:
    return Document(clean(text), source, package)


def kept(documents: list[Document], **settings) -> tuple[list[str], object]:
    defaults = {"min_characters": 10, "threshold": 0.7, "shingle": 5, "permutations": 128}
    stream = WordStream.of(each.text for each in documents)
    _, indices, removed = deduplicate(documents, stream, **{**defaults, **settings})
    return [documents[i].text for i in indices], removed


def shingles(text: str, size: int = 5) -> set:
    words = text.split()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def chain(seed: int, links: int, step: int = 12, length: int = 120) -> list[str]:
    """Texts of which each is near its neighbours and the ends are far apart."""
    words = sentence(seed, length + step * links)
    return [" ".join(words[i * step : i * step + length]) for i in range(links)]


def test_clusters_not_pairs():
    texts = chain(1, 6)
    near = [len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b)) for a, b in itertools.pairwise(texts)]
    ends = len(shingles(texts[0]) & shingles(texts[-1])) / len(shingles(texts[0]) | shingles(texts[-1]))
    assert min(near) > 0.75 and ends < 0.4
    found, removed = kept([document(text) for text in texts])
    assert found == [max(texts, key=lambda text: (len(text), [-ord(c) for c in text]))]
    assert (removed.near_duplicates, removed.near_clusters) == (5, 1)


def test_outcome_does_not_depend_on_order():
    texts = [text for seed in range(12) for text in chain(seed, 4)] + [" ".join(sentence(s)) for s in range(100, 130)]
    documents = [document(text, f"s{i}", f"p{i % 3}") for i, text in enumerate(texts + texts[:20])]
    expected = None
    for seed in range(4):
        shuffled = random.Random(seed).sample(documents, len(documents))
        _, indices, _ = deduplicate(shuffled, WordStream.of(d.text for d in shuffled), min_characters=10,
                                    threshold=0.7, shingle=5, permutations=128)
        found = {shuffled[i] for i in indices}
        expected = expected or found
        assert found == expected
    assert len(expected) == 42


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_pairs_are_decided_by_the_exact_similarity(threshold):
    """Brute force over all pairs of word sets, which shares nothing with hashing."""
    texts = []
    for seed in range(40):
        words = sentence(seed)
        other = list(words)
        for at in random.Random(seed).sample(range(len(words)), seed % 8):
            other[at] = f"new{at}"
        texts += [" ".join(words), " ".join(other)]
    texts = list(dict.fromkeys(texts))
    apart = set(range(len(texts)))
    sets = [shingles(text) for text in texts]
    cluster = {i: {i} for i in apart}
    for i, j in itertools.combinations(apart, 2):
        if len(sets[i] & sets[j]) / len(sets[i] | sets[j]) >= threshold:
            cluster[i] |= cluster[j]
            for member in cluster[i]:
                cluster[member] = cluster[i]
    groups = {frozenset(group) for group in cluster.values()}
    expected = {min((texts[i] for i in group), key=lambda text: (-len(text), text)) for group in groups}
    found, _ = kept([document(text) for text in texts], threshold=threshold, permutations=256)
    assert set(found) == expected


def test_short_and_symbolic_documents_are_not_all_equal():
    """Texts with fewer words than a shingle, or with no word at all, have no shingles in common by default."""
    texts = ["alpha beta gamma", "delta epsilon zeta", "+-+-+-+-+-+-+-", "==========:::", "数学は美しい学問です",
             "音楽は楽しいものです"]
    found, removed = kept([document(text) for text in texts])
    assert found == texts and removed.near_duplicates == 0


def test_near_empty_documents_are_dropped_and_counted_apart():
    found, removed = kept([document(t) for t in ("", "x", " y \n z ", "ten characters, no less", "   ")])
    assert found == ["ten characters, no less"]
    assert (removed.near_empty, removed.exact_duplicates) == (4, 0)
    assert kept([document("")])[0] == []


def test_unicode_forms_are_one_text():
    composed, decomposed = "déjà vu à la carte", "de\u0301ja\u0300 vu a\u0300 la carte"
    assert composed != decomposed
    found, removed = kept([document(composed, "a"), document(decomposed, "b")])
    assert found == [composed] and removed.exact_duplicates == 1


def test_case_and_compatibility_forms_are_near():
    words = " ".join(sentence(3))
    found, removed = kept([document(words), document(words.title().replace("T", "\uff34"))])
    assert len(found) == 1 and removed.near_duplicates == 1


def test_exact_duplicate_that_stays_is_the_first_by_package_and_source():
    same = " ".join(sentence(5))
    documents = [Document(same, "b", "q"), Document(same, "z", "a"), Document(same, "c", "a")]
    for order in itertools.permutations(documents):
        _, indices, _ = deduplicate(list(order), WordStream.of([same] * 3), min_characters=1, threshold=0.7,
                                    shingle=5, permutations=128)
        assert [order[i] for i in indices] == [documents[2]]


def test_large_cluster_compares_no_pair_twice_over(monkeypatch):
    """Members already joined are not compared, or a cluster of n would take n² / 2 comparisons of sets."""
    compared = []
    exact = data.deduplicate.jaccard
    monkeypatch.setattr(data.deduplicate, "jaccard", lambda a, b: compared.append(1) or exact(a, b))
    words = " ".join(sentence(9, 200))
    found, removed = kept([document(f"{words} {i}") for i in range(300)])
    assert len(found) == 1 and removed.near_clusters == 1
    assert len(compared) == 299


def test_words_of_scripts_without_spaces_and_windows():
    stream = WordStream.of(["a b c d", "", "b c", "日本語 abc漢字"])
    assert stream.lengths.tolist() == [4, 0, 2, 6]
    values, documents = stream.windows(2)
    assert documents.tolist() == [0, 0, 0, 2, 3, 3, 3, 3, 3]
    assert values[1] == values[3] and len(set(values.tolist())) == 8
    taken = stream.take(np.array([2, 0]))
    assert taken.windows(2)[0].tolist() == [values[3], *values[:3].tolist()]


def test_a_threshold_of_one_drops_exact_duplicates_alone():
    near = sentence(1)
    documents = [document(" ".join(near), "a"), document(" ".join([*near, "more"]), "b"), document(" ".join(near), "c")]
    texts, removed = kept(documents, threshold=1.0)
    assert len(texts) == 2 and removed.exact_duplicates == 1 and removed.near_duplicates == 0


def test_a_threshold_that_the_permutations_cannot_tell():
    with pytest.raises(ValueError, match="near_threshold=0.99 cannot be told with near_permutations=16"):
        kept([document(" ".join(sentence(i)), str(i)) for i in range(3)], threshold=0.99, permutations=16)
