"""Shared windows of words, against a count over sets of tuples."""

import random

import pytest

from data.leaks import leaks
from data.words import WordStream


def direct(train: list[str], held_out: list[str], size: int) -> tuple[int, int, int]:
    """(windows, shared, documents sharing) with Python sets."""
    known = {tuple(text.split()[i : i + n]) for text in train for n in range(1, size + 1)
             for i in range(len(text.split()) - n + 1)}
    windows = shared = sharing = 0
    for text in held_out:
        words = text.split()
        n = min(size, len(words))
        found = [tuple(words[i : i + n]) in known for i in range(len(words) - n + 1)] if n else []
        windows, shared, sharing = windows + len(found), shared + sum(found), sharing + any(found)
    return windows, shared, sharing


@pytest.mark.parametrize("size", [1, 3, 13])
def test_matches_sets_of_words(size):
    random.seed(size)
    phrases = ["".join(random.choices("abcdefgh", k=3)) + " " for _ in range(30)]
    texts = ["".join(random.choices(phrases, k=random.randint(0, 40))).strip() for _ in range(120)]
    texts[100] = texts[3] or "abc"
    train, valid, test = texts[:80], texts[80:90], texts[90:]
    found = leaks(WordStream.of(train), {"valid": WordStream.of(valid), "test": WordStream.of(test)}, size)
    for name, members in (("valid", valid), ("test", test)):
        leak = found[name]
        assert (leak.windows, leak.shared, leak.documents_sharing) == direct(train, members, size)
        assert leak.share == leak.shared / leak.windows and leak.documents == len(members)


def measure(train: list[str], held_out: list[str], size: int):
    return leaks(WordStream.of(train), {"test": WordStream.of(held_out)}, size)["test"]


def test_windows_stay_within_a_document():
    assert measure(["one two", "three four"], ["two three"], 2).shared == 0
    assert measure(["one two three four"], ["two three"], 2).shared == 1


def test_texts_shorter_than_the_window_count_once():
    leak = measure(["a long line with the short text in it"], ["short text", "Short, text!", "other text", ""], 13)
    assert (leak.windows, leak.shared, leak.documents_sharing, leak.documents) == (3, 2, 2, 4)


def test_nothing_in_common_and_nothing_at_all():
    assert measure(["one two three"], ["four five six"], 3).share == 0
    assert measure([], ["four five six"], 3).shared == 0
    assert measure(["one"], [], 3).share == 0
