"""The n-gram model against the published formula, evaluated directly with dictionaries."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from evals.ngram import FALLBACK, NGram, score, train

EOD = 0
START = "start"


class Direct:
    """Chen and Goodman's recursion on tuples. Histories begin at START; EOD is an ordinary predicted token."""

    def __init__(self, documents: list[list[int]], vocab: int, order: int):
        self.vocab, self.order = vocab, order
        raw = [Counter() for _ in range(order + 1)]
        before = [defaultdict(set) for _ in range(order + 1)]
        for document in documents:
            line = [START, *document, EOD]
            for end in range(1, len(line)):
                for n in range(1, min(order, end + 1) + 1):
                    gram = tuple(line[end - n + 1 : end + 1])
                    raw[n][gram] += 1
                    if end - n >= 0:
                        before[n][gram].add(line[end - n])
        self.count = [dict() for _ in range(order + 1)]
        for n in range(1, order + 1):
            for gram, times in raw[n].items():
                own = n == order or (n > 1 and gram[0] == START)
                self.count[n][gram] = times if own else len(before[n][gram])
        self.discount = [None] + [self.discounts(self.count[n].values()) for n in range(1, order + 1)]

    @staticmethod
    def discounts(counts) -> tuple[float, float, float]:
        n = [sum(1 for c in counts if c == k) for k in range(5)]
        if 0 in n[1:4]:
            return FALLBACK
        y = n[1] / (n[1] + 2 * n[2])
        found = tuple(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
        return found if all(0 <= d <= k for k, d in enumerate(found, 1)) else FALLBACK

    def probability(self, token: int, history: tuple) -> float:
        n = len(history) + 1
        lower = self.probability(token, history[1:]) if history else 1 / self.vocab
        follow = {g[-1]: c for g, c in self.count[n].items() if g[:-1] == history}
        if not follow:
            return lower
        total = sum(follow.values())
        d = self.discount[n]
        gamma = sum(min(c, d[min(c, 3) - 1]) for c in follow.values()) / total
        own = follow.get(token, 0)
        return (max(own - d[min(own, 3) - 1], 0) if own else 0) / total + gamma * lower


def text(seed: int, documents: int, vocab: int, length: int) -> list[list[int]]:
    """Documents with repeats, so that counts above one occur in every order."""
    random = np.random.default_rng(seed)
    phrases = [random.integers(1, vocab, random.integers(1, 6)).tolist() for _ in range(12)]
    made = []
    for _ in range(documents):
        line = []
        while len(line) < random.integers(1, length):
            line += phrases[min(random.geometric(0.25) - 1, 11)]
        made.append(line or [1])
    return made


def flat(documents: list[list[int]]) -> np.ndarray:
    return np.array([token for document in documents for token in (*document, EOD)])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("documents", [1, 60])
def test_matches_the_published_formula(order, documents):
    vocab = 11
    known, unseen = text(1, documents, vocab, 14), text(2, 8, vocab, 14)
    model = train(flat(known), vocab, EOD, order)
    direct = Direct(known, vocab, order)
    expected = []
    for document in known[:4] + unseen:
        line = [START, *document, EOD]
        expected += [math.log(direct.probability(line[i], tuple(line[max(0, i - order + 1) : i])))
                     for i in range(1, len(line))]
    np.testing.assert_allclose(model.log_probs(flat(known[:4] + unseen)), expected, rtol=1e-12, atol=1e-12)


def test_documents_shorter_than_the_order():
    known = [[1], [2], [1], [1, 2]]
    model, direct = train(flat(known), 4, EOD, 5), Direct(known, 4, 5)
    expected = [direct.probability(1, (START,)), direct.probability(3, (START, 1)), direct.probability(EOD, (1, 3))]
    np.testing.assert_allclose(np.exp(model.log_probs(np.array([1, 3, EOD]))), expected, rtol=1e-12)
    assert train(np.array([1]), 4, EOD, 5).log_probs(np.array([1, 1])).shape == (2,)


def test_both_kinds_of_discount_are_exercised():
    model = train(flat(text(1, 60, 11, 14)), 11, EOD, 5)
    assert {order.fallback for order in model.orders} == {True, False}


def every_next(model: NGram, history: list[int]) -> np.ndarray:
    return np.exp([model.log_probs(np.array([*history, w]))[-1] for w in range(model.vocab)])


@pytest.mark.parametrize("history", [[], [3], [1, 2, 3, 4, 5, 6], [5, EOD], [2, EOD, 4], [9, 9, 9, 9]])
def test_probabilities_sum_to_one(history):
    model = train(flat(text(3, 40, 10, 12)), 10, EOD, 5)
    probabilities = every_next(model, history)
    assert probabilities.min() > 0
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)


def test_no_history_crosses_a_document_border():
    model = train(flat(text(4, 40, 10, 12)), 10, EOD, 5)
    alone = model.log_probs(flat([[3, 4, 5]]))
    after = model.log_probs(flat([[7, 7, 1, 2], [3, 4, 5]]))
    np.testing.assert_array_equal(after[-4:], alone)


def test_window_cuts_histories_where_samples_are_cut():
    known = text(5, 40, 10, 30)
    model, stream, window = train(flat(known), 10, EOD, 4), flat(known[:3]), 5
    cut = model.log_probs(stream, window)
    direct = Direct(known, 10, 4)
    for t in range(1, len(stream)):
        visible = stream[(t - 1) // window * window : t].tolist()
        if EOD in visible:
            visible = [START, *visible[len(visible) - visible[::-1].index(EOD) :]]
        expected = direct.probability(int(stream[t]), tuple(visible[-3:]))
        assert cut[t] == pytest.approx(math.log(expected), abs=1e-12)
    assert not np.allclose(cut, model.log_probs(stream))


def test_large_vocabulary_and_many_histories_do_not_collide():
    """Keys are history x V + token: 2^20 tokens would overflow 64 bits if five were packed side by side."""
    vocab = 1 << 20
    random = np.random.default_rng(0)
    documents = [random.integers(1, vocab, 40).tolist() for _ in range(30)]
    documents += documents[:7]
    model, direct = train(flat(documents), vocab, EOD, 5), Direct(documents, vocab, 5)
    line = [START, *documents[0], EOD]
    expected = [math.log(direct.probability(line[i], tuple(line[max(0, i - 4) : i]))) for i in range(1, len(line))]
    np.testing.assert_allclose(model.log_probs(flat(documents[:1])), expected, rtol=1e-12)


def test_higher_order_is_better_on_text_that_repeats():
    known, held_out = text(6, 400, 20, 20), text(6, 420, 20, 20)[400:]
    losses = [-train(flat(known), 20, EOD, n).log_probs(flat(held_out)).mean() for n in (1, 2, 3)]
    assert losses[0] > losses[1] > losses[2]


def test_score():
    found = score(np.log(np.array([0.5, 0.125])), text_bytes=4)
    assert (found.tokens, found.bits_per_byte) == (2, pytest.approx(1.0))
    assert found.loss == pytest.approx(2 * math.log(2)) and found.perplexity == pytest.approx(4)
    with pytest.raises(ValueError, match="0 bytes"):
        score(np.zeros(3), 0)


@pytest.mark.parametrize("tokens, settings, message", [
    ([1, 7], {}, "token 7 is outside of the vocabulary of 7"),
    ([1, -2], {}, "token -2 is outside"),
    ([], {}, "non-empty"),
    ([[1, 2]], {}, "non-empty row"),
    ([1, 2], {"order": 0}, "order=0"),
])
def test_bad_input_is_named(tokens, settings, message):
    with pytest.raises(ValueError, match=message):
        train(np.array(tokens), 7, EOD, **settings)
    with pytest.raises(ValueError, match="eod=7"):
        train(np.array([1]), 7, 7)
    with pytest.raises(ValueError, match="window=0"):
        train(np.array([1, 0]), 7, EOD).log_probs(np.array([1]), window=0)
