"""Both sides of the pipeline contests compute the same gradients, which plain autograd gives too."""

from dataclasses import replace

import pytest
import torch

from papers.interleaved_pipelining.exact_wait import Times, WaitingLayer, micro_batch
from tests.benchmarks.pipeline import CONTESTS, agree, both, run
from tests.distributed import ranks


def serial(stages: int, m: int) -> list[torch.Tensor]:
    layers = [WaitingLayer(stage, Times(0.0, 0.0)) for stage in range(stages)]
    for i in range(m):
        x = micro_batch(i).tokens.float()
        for layer in layers:
            x = layer(x)
        x.sum().backward()
    return [layer.weight.grad for layer in layers]


@pytest.mark.parametrize("contest", [replace(CONTESTS[0], p=2, v=2, m=4), replace(CONTESTS[2], p=3, v=1, m=5)],
                         ids=lambda contest: contest.schedule)
def test_gradients_are_equal(contest):
    expected = serial(contest.p * contest.v, contest.m)
    for rank, (ours, theirs) in enumerate(ranks(contest.p, both, contest)):
        assert len(ours) == contest.v and agree(ours, theirs)
        assert agree(ours, expected[rank::contest.p])


def test_a_contest_times_both_sides_by_the_waits():
    """Millisecond waits: neither side can be faster than the schedule allows."""
    found = run(replace(CONTESTS[0], p=2, v=2, m=2, forward=0.001), launch=lambda function, p, *a: ranks(p, function, *a))
    assert found["formula_s"] == pytest.approx(0.015)
    assert min(found["ours_s"] + found["theirs_s"]) >= found["formula_s"]
    assert len(found["ours_s"]) == 11 and found["interval"][0] <= found["ratio"] <= found["interval"][1]
