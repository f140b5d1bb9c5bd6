"""A signal to one rank stops all after the same step, and interrupts none in the middle of one."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from common.training.signals import STOP_SIGNALS, StopSignals
from tests.distributed import ranks


def run_steps(context, sent):
    """Up to 20 steps of a collective each; rank r sends itself `sent[r]`, a (signal, step), in that step.

    Returns the steps done, what was agreed, and whether the handlers were put back.
    """
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    number, when = sent.get(context.rank, (None, None))
    agreed, steps = None, 0
    with StopSignals() as stop:
        while agreed is None and steps < 20:
            steps += 1
            if steps == when:
                os.kill(os.getpid(), number)
                time.sleep(0.01 * context.rank)
            dist.all_reduce(torch.ones(1))
            agreed = stop.agreed()
    return steps, agreed, [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_all_ranks_stop_after_the_step_in_which_one_got_a_signal(number):
    assert ranks(3, run_steps, {1: (number, 7)}) == [(7, number, True)] * 3


def test_ranks_agree_when_each_got_another_signal():
    sent = {0: (signal.SIGUSR1, 4), 1: (signal.SIGTERM, 4), 2: (signal.SIGUSR2, 4)}
    assert ranks(3, run_steps, sent) == [(4, max(STOP_SIGNALS), True)] * 3


def test_without_a_signal_nothing_stops():
    assert ranks(2, run_steps, {}) == [(20, None, True)] * 2


def only_in_my_half(context):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    with StopSignals() as stop:
        if context.rank == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return stop.agreed(halves[context.rank // 2])


def test_agreement_is_within_the_group():
    assert ranks(4, only_in_my_half) == [None, None, signal.SIGUSR1, signal.SIGUSR1]


def test_one_process_needs_no_group():
    with StopSignals((signal.SIGUSR1,)) as stop:
        assert stop.agreed() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.agreed() == stop.received == signal.SIGUSR1
