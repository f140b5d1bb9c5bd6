"""The schedules by name: GPipe, 1F1B, interleaved 1F1B and forward-only (arXiv:2104.04473, section 2.2), and ZB-H1.

Each is a pure function of pipeline size p, chunks per rank v and micro-batches m. All run with one message under way
on each channel (Schedule.buffers).
"""

import numpy as np

from common.pipeline.schedule import CODE, Schedule, alternate, pack


def _need(name: str, **sizes: int) -> None:
    for what, value in sizes.items():
        if value < 1:
            raise ValueError(f"schedule {name}: {what}={value}: needs at least 1")


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (arXiv:1811.06965); m micro-batches in flight on every rank."""
    _need("gpipe", p=p, m=m)
    order = np.arange(m)
    actions = np.concatenate([pack("forward", 0, order), pack("backward", 0, order)])
    return Schedule("gpipe", p, 1, m, (actions,) * p)


def one_f_one_b(p: int, m: int) -> Schedule:
    """PipeDream-Flush: rank r runs p - r - 1 forwards, then one forward and one backward in turn."""
    _need("1f1b", p=p, m=m)
    order = np.arange(m)
    forwards, backwards = pack("forward", 0, order), pack("backward", 0, order)
    return Schedule("1f1b", p, 1, m, tuple(alternate(forwards, backwards, min(p - r - 1, m)) for r in range(p)))


def interleaved(p: int, v: int, m: int) -> Schedule:
    """Each rank holds v chunks and takes micro-batches p at a time through each of them (section 2.2.2).

    Raises ValueError where p does not divide m.
    """
    _need("interleaved", p=p, v=v, m=m)
    if m % p:
        nearest = sorted({max(m // p, 1) * p, -(-m // p) * p})
        raise ValueError(f"{m} micro-batches with pp={p}: the interleaved schedule takes them pp at a time, "
                         f"so use {' or '.join(map(str, nearest))} (any multiple of {p})")
    turn = np.arange(m * v)
    chunk, micro_batch = turn % (p * v) // p, turn // (p * v) * p + turn % p
    forwards, backwards = pack("forward", chunk, micro_batch), pack("backward", v - 1 - chunk, micro_batch)
    warmup = [min(2 * (p - r - 1) + (v - 1) * p, m * v) for r in range(p)]
    return Schedule("interleaved", p, v, m, tuple(alternate(forwards, backwards, w) for w in warmup))


def zb_h1(p: int, m: int) -> Schedule:
    """The zero-bubble schedule H1 (arXiv:2401.10241, section 2.1): 1F1B with the weight gradient as its own action.

    Rank r puts its weight gradients off by r micro-batches, so that each rank has at most p in flight, as the first
    one has under 1F1B. With m >= p the bubble is (p - 1)(tF + tB - tW), where tW, the weight gradient's time, is at most
    tF, the forward's, and tB, the input gradient's; (p - 1) times the longer of these two where it is above either.
    It is never more than 1F1B's, (p - 1)(tF + tB + tW).
    """
    _need("zb-h1", p=p, m=m)
    order = np.arange(m)
    forwards, weights = pack("forward", 0, order), pack("weight_gradient", 0, order)
    inputs = pack("input_gradient", 0, order)
    return Schedule("zb-h1", p, 1, m, tuple(
        _put_off(weights, alternate(forwards, inputs, min(p - r - 1, m)), min(r, m)) for r in range(p)))


def _put_off(weights: np.ndarray, others: np.ndarray, late: int) -> np.ndarray:
    """Each weight gradient right after the `late`-th next input gradient; those that are left at the end."""
    inputs = np.flatnonzero(others[:, 0] == CODE["input_gradient"])
    early = len(weights) - late
    return np.concatenate([np.insert(others, inputs[late:] + 1, weights[:early], axis=0), weights[early:]])


def forward_only(p: int, m: int, v: int = 1) -> Schedule:
    """For evaluation and generation: forwards alone, p micro-batches at a time through each chunk; any m."""
    _need("forward_only", p=p, v=v, m=m)
    order = [(c, i) for first in range(0, m, p) for c in range(v) for i in range(first, min(first + p, m))]
    chunk, micro_batch = np.array(order).T
    return Schedule("forward_only", p, v, m, (pack("forward", chunk, micro_batch),) * p)


TRAINING = ("gpipe", "1f1b", "interleaved", "zb-h1")


def make(name: str, p: int, v: int, m: int) -> Schedule:
    """The training schedule of that name."""
    if name not in TRAINING:
        raise ValueError(f"schedule={name!r}: use one of {', '.join(TRAINING)}")
    if name == "interleaved":
        return interleaved(p, v, m)
    if v > 1:
        raise ValueError(f"chunks={v} with schedule={name!r}: only the interleaved schedule has several chunks per rank")
    return {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}[name](p, m)
