"""Time of one layer's forward and backward on this machine, under each recomputation policy.

One thread, and the processor's time, not the clock's: on an idle machine they are the same, and other
programs do not count. Runs alternate: each round times every policy once, in a rotated order, and ratios are
taken within a round, so that a processor whose speed drifts does not decide the result. Shapes: S sequence,
B micro-batch, H hidden.
"""

import gc
import statistics
import time
from collections.abc import Sequence
from math import comb

import torch

from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.parameters import initialise

WARM_UP = 2  # rounds that are not counted
Times = dict[str, list[tuple[float, float]]]


class TimedLayer:
    """One layer with fp32 weights whose gradients accumulate in place, as in training."""

    def __init__(self, config: LanguageModelConfig, policy: str, micro_batch: int):
        self.config, self.micro_batch = config, micro_batch
        self.stage = LanguageModel(config, Context(SERIAL, "paper"), policy, first=1, last=2)
        initialise(self.stage, SERIAL, seed=1)
        self.gradients = Gradients([self.stage], SERIAL)

    def run(self, step: int) -> tuple[float, float]:
        """Processor seconds of forward and of backward with its recomputation; `step` keys the masks."""
        shape_SBH = self.config.sequence, self.micro_batch, self.config.hidden
        x, grad = torch.randn(shape_SBH, requires_grad=True), torch.randn(shape_SBH)
        none_BS = torch.zeros(self.micro_batch, self.config.sequence, dtype=torch.int64)
        samples = tuple(range(self.micro_batch))
        record = Record(none_BS, none_BS, none_BS.bool(), none_BS, samples=samples, step=step)
        begin = time.process_time()
        carry, _ = self.stage(record, {"hidden": x})
        middle = time.process_time()
        carry["hidden"].backward(grad)
        return middle - begin, time.process_time() - middle


def layer_times(config: LanguageModelConfig, micro_batch: int, policies: Sequence[str], rounds: int) -> Times:
    """Policy -> (forward, backward) processor seconds of each round. The second layer of `config` runs."""
    layers = {policy: TimedLayer(config, policy, micro_batch) for policy in policies}
    times: Times = {policy: [] for policy in policies}
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        for number in range(-WARM_UP, rounds):
            turn = number % len(policies)
            for policy in (*policies[turn:], *policies[:turn]):
                found = layers[policy].run(number + WARM_UP)
                if number >= 0:
                    times[policy].append(found)
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()
    return times


def median_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median and an interval that holds the true one with at least 95 %.

    The interval is two order statistics and assumes no distribution. ValueError for fewer than nine values.
    """
    n = len(values)
    if n < 9:
        raise ValueError(f"{n} rounds are too few for an interval: take at least 9")
    ordered = sorted(values)
    below, k = 0.0, 0
    while below + comb(n, k) / 2**n <= 0.025:
        below += comb(n, k) / 2**n
        k += 1
    return statistics.median(ordered), (ordered[k - 1], ordered[n - k])
