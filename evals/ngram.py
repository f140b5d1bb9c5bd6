"""Interpolated modified Kneser-Ney n-gram model over tokens (Chen and Goodman 1999, sections 3 and 4).

For a history h and a token w, with a(·) the adjusted counts below and h' the history without its first token,

    p(w | h) = max(a(h w) - D(a(h w)), 0) / S(h) + (D1 N1(h) + D2 N2(h) + D3 N3+(h)) / S(h) · p(w | h')

where S(h) is the sum of a(h w) over w and Nk(h) the number of w with a(h w) = k (3+: three or more). A
history never seen leaves p(w | h'). The recursion ends at p(w | nothing), mixed with 1 / V in the same way.
With n1 to n4 the number of n-grams of an order whose adjusted count is 1 to 4, Y = n1 / (n1 + 2 n2),

    D1 = 1 - 2 Y n2 / n1    D2 = 2 - 3 Y n3 / n2    D3+ = 3 - 4 Y n4 / n3

a(·) is the count for the highest order and, below it, the number of distinct tokens that precede the n-gram.
An n-gram that begins at the start of a document has none, so there a(·) is its count (Heafield et al. 2013,
section 3.2).

Documents: the end-of-document token is predicted, and stands as the start symbol before the next document.
A history reaches back to that token and never past it. The first document has one before it too.
"""

import math
from dataclasses import dataclass

import numpy as np

# Used where n1 to n4 leave a discount undefined or outside of [0, k]; values of KenLM's --discount_fallback.
FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Order:
    """The n-grams of one order.

    keys: int64 (n-grams,), sorted: index of the history in the order below, times V, plus the token (order 1:
    the token). weight: float64 (n-grams,), (a - D(a)) / S(history). backoff: float64, for each n-gram of the
    order below as a history, the share left to p(w | h'); 1 where no token follows.
    discounts: D1, D2, D3+. fallback: whether they are FALLBACK for want of counts.
    """

    keys: np.ndarray
    weight: np.ndarray
    backoff: np.ndarray
    discounts: tuple[float, float, float]
    fallback: bool


@dataclass(frozen=True)
class NGram:
    """A trained model. orders[k - 1] holds the k-grams. eod: id of the end-of-document token."""

    vocab: int
    eod: int
    orders: tuple[Order, ...]

    def log_probs(self, tokens: np.ndarray, window: int | None = None) -> np.ndarray:
        """Natural log probability of each token given those before it, float64 (tokens,).

        tokens: integers (tokens,), documents each ended by eod, as in a token file. window: the length S of a
        model's samples; token t > 0 is then predicted from tokens no older than S ⌊(t - 1) / S⌋, as there.
        """
        ids = checked(tokens, self.vocab)
        stream = np.concatenate([[self.eod], ids])
        history = reach(stream, self.eod)
        if window is not None:
            if window < 1:
                raise ValueError(f"window={window} must be at least 1")
            at = np.arange(len(ids))
            history[1:] = np.minimum(history[1:], np.where(at == 0, 1, (at - 1) % window + 1))
        probability = np.full(len(stream), 1 / self.vocab)
        previous = stream
        for k, order in enumerate(self.orders, 1):
            back = np.full(len(stream), -1, dtype=np.int64)
            back[1:] = previous[:-1] if k > 1 else 0
            back[history < k - 1] = -1
            found = lookup(order.keys, back * self.vocab + stream, back >= 0)
            probability = probability * chosen(order.backoff, back, 1.0) + chosen(order.weight, found, 0.0)
            previous = stream if k == 1 else found
        return np.log(probability[1:])


def checked(tokens: np.ndarray, vocab: int) -> np.ndarray:
    """The tokens as int64. Raises ValueError unless they are a row within the vocabulary."""
    ids = np.asarray(tokens).astype(np.int64)
    if ids.ndim != 1 or not ids.size:
        raise ValueError(f"tokens must be a non-empty row, not of shape {ids.shape}")
    if ids.min() < 0 or ids.max() >= vocab:
        outside = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"token {outside} is outside of the vocabulary of {vocab}")
    return ids


def reach(stream: np.ndarray, eod: int) -> np.ndarray:
    """Tokens that may serve as history of each, back to and with the last end of document; int64."""
    at = np.arange(len(stream))
    last = np.maximum.accumulate(np.where(stream == eod, at, 0))
    return np.concatenate([[0], at[1:] - last[:-1]])


def lookup(keys: np.ndarray, wanted: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Index of each wanted key among the sorted keys, -1 where it is absent or `where` is false."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    if not len(keys):
        return found
    at = np.minimum(np.searchsorted(keys, wanted[where]), len(keys) - 1)
    found[where] = np.where(keys[at] == wanted[where], at, -1)
    return found


def chosen(values: np.ndarray, index: np.ndarray, otherwise: float) -> np.ndarray:
    """values[index], and `otherwise` where the index is -1."""
    result = np.full(len(index), otherwise)
    result[index >= 0] = values[index[index >= 0]]
    return result


def discounts(counts: np.ndarray) -> tuple[tuple[float, float, float], bool]:
    """D1, D2 and D3+ from the adjusted counts of one order, and whether they are FALLBACK."""
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in range(1, 5))
    if min(n1, n2, n3) == 0:
        return FALLBACK, True
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    if any(not 0 <= value <= k for k, value in enumerate(found, 1)):
        return FALLBACK, True
    return found, False


def estimate(keys: np.ndarray, histories: np.ndarray, counts: np.ndarray, n_histories: int) -> Order:
    """Weights and back-off shares of one order from the adjusted counts of its n-grams."""
    values, fallback = discounts(counts)
    kind = np.minimum(counts, 3)
    discount = np.array((0.0, *values))[kind]
    total = np.bincount(histories, counts, n_histories)
    taken = np.bincount(histories, np.minimum(discount, counts), n_histories)
    backoff = np.divide(taken, total, out=np.ones(n_histories), where=total > 0)
    weight = np.maximum(counts - discount, 0) / total[histories]
    return Order(keys, weight, backoff, values, fallback)


def train(tokens: np.ndarray, vocab: int, eod: int, order: int = 5) -> NGram:
    """Count and estimate. tokens: integers (tokens,), documents each ended by eod.

    Counting sorts the positions of the stream once for each order, with no Python loop over n-grams: at
    order 5 about 120 bytes of memory a token. Raises ValueError for tokens outside the vocabulary or an order
    below 1.
    """
    if order < 1:
        raise ValueError(f"order={order} must be at least 1")
    if not 0 <= eod < vocab:
        raise ValueError(f"eod={eod} is outside of the vocabulary of {vocab}")
    stream = np.concatenate([[eod], checked(tokens, vocab)])
    history = reach(stream, eod)
    # Order 1 has an entry for every token of the vocabulary, so that a token is its own index as a history.
    unigrams = np.arange(vocab)
    ids = stream.astype(np.int32)
    keys, histories, first = unigrams, np.zeros(vocab, dtype=np.int64), None
    counts = np.bincount(stream[1:], minlength=vocab)
    found = []
    for k in range(2, order + 2):
        n_histories = 1 if k == 2 else len(found[-1].keys)
        if k == order + 1:
            found.append(estimate(keys, histories, counts, n_histories))
            break
        at = np.flatnonzero(history >= k - 1)
        pair = ids[at - 1].astype(np.int64) * vocab + stream[at]
        next_keys, next_first, index, next_counts = distinct(pair)
        next_first = at[next_first]
        adjusted = np.bincount(ids[next_first], minlength=len(keys))
        if first is not None:
            starts = history[first] == k - 2
            adjusted[starts] = counts[starts]
        found.append(estimate(keys, histories, adjusted, n_histories))
        ids = np.full(len(stream), -1, dtype=np.int32)
        ids[at] = index
        keys, histories, first, counts = next_keys, next_keys // vocab, next_first, next_counts
    return NGram(vocab, eod, tuple(found))


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sorted distinct values, where each first occurs, the index of every value among them, their counts."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    new = np.ones(len(values), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    index = np.empty(len(values), dtype=np.int32)
    index[order] = np.cumsum(new) - 1
    return ordered[starts], order[starts], index, np.diff(np.append(starts, len(values)))


@dataclass(frozen=True)
class Score:
    """Loss over some tokens: nats per token, perplexity per token, and bits per UTF-8 byte of their text.

    The loss of end-of-document tokens counts, their text has no bytes.
    """

    tokens: int
    loss: float
    perplexity: float
    bits_per_byte: float


def score(log_probs: np.ndarray, text_bytes: int) -> Score:
    """Sum up natural log probabilities, float (tokens,), of a text of so many bytes."""
    if not log_probs.size:
        raise ValueError(f"no token of {text_bytes} bytes: a score needs at least one")
    return score_of(-float(np.mean(log_probs, dtype=np.float64)), log_probs.size, text_bytes)


def score_of(loss: float, tokens: int, text_bytes: int) -> Score:
    """The score that a mean loss in nats over so many tokens of a text makes."""
    if text_bytes < 1 or tokens < 1:
        raise ValueError(f"{tokens} tokens of {text_bytes} bytes: a score needs at least one of each")
    return Score(tokens, loss, math.exp(loss), loss * tokens / math.log(2) / text_bytes)
