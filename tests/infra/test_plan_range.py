"""What does not divide, what published runs cover, and which layouts no other beats."""

from dataclasses import replace

from common.grid import Grid
from common.predict.hardware import cluster
from infra.plan_divide import uneven
from infra.plan_range import covered
from infra.plan_search import frontier
from papers.interleaved_pipelining.recipes import gpt_1t, gpt_7_5b


def test_frontier_is_what_no_other_beats():
    points = [(1.0, 9.0), (2.0, 9.5), (3.0, 4.0), (3.0, 5.0), (8.0, 1.0), (9.0, 1.0)]
    assert frontier(points) == [(1.0, 9.0), (3.0, 4.0), (8.0, 1.0)]


def _uneven(recipe, name: str = "selene") -> list[str]:
    return [f"{item.what}: {item.would}" for item in uneven(recipe, cluster(name))]


def test_what_does_not_divide_and_what_would():
    even = gpt_7_5b()
    assert not _uneven(even)
    assert (
        _uneven(replace(even, model=replace(even.model, vocab=51_201)))[0]
        == "vocabulary 51,201 over tp 4: 51,204"
    )
    cut = replace(even, grid=Grid(tp=1, dp=1, pp=7))
    assert "36 layers over 7 stages: 35 or 42 layers" in _uneven(cut)[0]
    few = replace(
        even, grid=Grid(tp=4, dp=64, pp=4), training=replace(even.training, batch=128, micro_batch=1)
    )
    assert _uneven(few) == ["2 micro-batches over pp 4: a batch of 256 or more"]
    across = replace(even, grid=Grid(tp=16, dp=1, pp=1))
    assert "tp 16 over nodes of 8: tp 1, 2, 4, 8" in _uneven(across)
    assert "9 ranks over nodes of 8: 16 ranks" in _uneven(replace(even, grid=Grid(dp=9)))


def test_range_is_that_of_the_published_runs():
    selene, found = cluster("selene"), covered()
    assert found.numbers["hidden size"][1] == 25_600 and found.numbers["ranks"][1] == 3360
    assert not found.outside(gpt_1t(), selene)
    said = found.outside(replace(gpt_1t(), model=replace(gpt_1t().model, sequence=8192)), cluster("dgx_h100"))
    assert len(said) == 2 and "never checked against a measurement" in said[0] and "sequence 8,192" in said[1]
