"""The fake world: any grid, nothing allocated or sent, and no trace of it left behind."""

import resource
import sys
from math import prod

import pytest
import torch
import torch.distributed as dist

from common.collectives import all_gather, all_reduce, reduce_scatter
from common.grid import Grid
from common.trace.trace import trace
from common.trace.world import world
from tests.common.trace.shapes import gpt


def test_any_rank_of_a_large_grid_has_its_groups():
    grid = Grid(tp=8, pp=64, dp=6)
    with world(grid, 2049) as layout:
        for axes in (("tp",), ("dp",), ("pp",), ("tp", "pp"), ("dp", "cp")):
            group = layout.group(*axes)
            assert group.size == prod(getattr(grid, a) for a in axes)
            assert group.ranks[group.index] == 2049
            assert dist.get_process_group_ranks(group.handle) == list(group.ranks)


def test_a_group_is_found_by_its_handle_even_where_two_names_hold_the_same_ranks():
    with world(Grid(tp=4), 1) as layout:
        tensor, both = layout.group("tp"), layout.group("tp", "pp")
        assert tensor.ranks == both.ranks
        assert layout.find(tensor.handle).name == "tp"
        assert layout.find(both.handle).name == "tp+pp"
        with pytest.raises(ValueError, match="which no layout of this trace made"):
            layout.find(dist.group.WORLD)


def test_collectives_give_shapes_and_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with world(Grid(tp=8), 3) as layout:
        group = layout.group("tp")
        x = torch.empty(2**20, 2**20)  # 4 TiB
        assert all_gather(x, group).shape == (2**23, 2**20)
        assert reduce_scatter(x, group).shape == (2**17, 2**20)
        assert all_reduce(x, group).shape == x.shape
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 512 * 1024  # KiB


def test_nothing_is_left_behind_also_after_an_error():
    with pytest.raises(ZeroDivisionError), world(Grid(tp=2), 0):
        raise ZeroDivisionError
    assert not dist.is_initialized()
    assert type(torch.empty(1)) is torch.Tensor
    trace(gpt(1, 64, 4), Grid(tp=2))
    assert not dist.is_initialized()


def test_a_process_that_already_communicates_is_refused_and_left_alone():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises(RuntimeError, match="already running here .gloo, 1 ranks."), world(Grid(tp=2), 0):
            pass
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("settings, message", [
    ({"rank": 8}, "rank 8 is outside a grid of 8 ranks"),
    ({"first": 2, "last": 2}, "first=2, last=2: layers 0 to 4 of this model"),
    ({"last": 5}, "last=5: layers 0 to 4"),
    ({"micro_batch": 0}, "micro_batch=0"),
    ({"recompute": "selective", "kernels": "flash"}, "kernels='flash': use one of"),
    ({"recompute": "some"}, "recompute='some'"),
])
def test_what_cannot_be_traced_is_refused_before_a_world_is_made(settings, message):
    with pytest.raises(ValueError, match=message):
        trace(gpt(4, 64, 8), Grid(tp=8), **settings)
    assert not dist.is_initialized()


def test_errors_after_a_trace_are_shown_as_before():
    before = sys.excepthook
    with world(Grid(tp=2)):
        pass
    assert sys.excepthook is before
