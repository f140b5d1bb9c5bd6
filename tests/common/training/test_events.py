"""Spikes of the loss, on made-up losses whose spikes are known."""

import random

from common.training.events import WINDOW, Watch


def losses(count: int, spread: float = 0.05) -> list[float]:
    """Falling from 4 to 2, with noise."""
    draw = random.Random(3)
    return [2 + 2 * 0.97**n + draw.gauss(0, spread) for n in range(count)]


def test_a_loss_that_falls_and_scatters_has_no_spike():
    watch = Watch(patience=3)
    assert {watch.event(loss, False) for loss in losses(2000)} == {None}


def test_a_jump_is_a_spike_and_what_follows_is_held_against_the_same_steps():
    watch = Watch(patience=3, losses=losses(400)[-WINDOW:])
    assert watch.event(3.5, False) == "spike"
    assert watch.event(2.05, False) is None
    assert watch.event(9.0, False) == "spike"


def test_of_too_few_steps_nothing_is_said():
    watch = Watch(patience=3)
    assert [watch.event(x, False) for x in (5.0, 5.0, 50.0)] == [None] * 3


def test_steps_that_are_all_alike_may_differ_a_little():
    watch = Watch(patience=3, losses=[1.0] * WINDOW)
    assert watch.event(1.05, False) is None and watch.event(1.2, False) == "spike"


def test_skipped_losses_are_no_measure():
    watch = Watch(patience=3, losses=[1.0] * WINDOW)
    assert watch.event(float("nan"), True) == "skipped"
    assert watch.losses.count(1.0) == WINDOW and watch.bad == 1
    watch.event(1.0, False)
    assert watch.bad == 0
