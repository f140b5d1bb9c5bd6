"""The grid against enumeration by hand-written mixed-radix arithmetic."""

import itertools
import time

import pytest

from common.grid import DENSE, EXPERT, Grid

GRIDS = [Grid(), Grid(tp=2, dp=3, pp=2), Grid(tp=4, cp=2, dp=2, pp=3, ep=4), Grid(tp=4, dp=4, ep=8, etp=1),
         Grid(tp=2, cp=2, dp=2, pp=2, ep=2, etp=4, order="tp-cp-pp-dp"), Grid(tp=2, dp=4, pp=2, ep=4, order="pp-dp-tp-cp")]


def dense(grid: Grid, rank: int) -> dict[str, int]:
    found = {}
    for axis in grid.order.split("-"):
        rank, found[axis] = divmod(rank, getattr(grid, axis))
    return found


def expert(grid: Grid, rank: int) -> dict[str, int]:
    """The rank's place among those of its pipeline index, counted in the grid's order, cut anew."""
    here = dense(grid, rank)
    place, weight = 0, 1
    for axis in [a for a in grid.order.split("-") if a != "pp"]:
        place += here[axis] * weight
        weight *= getattr(grid, axis)
    place, etp = divmod(place, grid.etp or grid.tp)
    edp, ep = divmod(place, grid.ep)
    return {"etp": etp, "ep": ep, "edp": edp, "pp": here["pp"]}


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_coordinates_and_ranks(grid):
    for rank in range(grid.world):
        found = grid.coordinates(rank)
        assert found == dense(grid, rank) | expert(grid, rank)
        assert grid.rank(**dense(grid, rank)) == rank == grid.rank(**expert(grid, rank))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("view", [DENSE, EXPERT])
def test_groups_share_all_other_coordinates(grid, view):
    place = dense if view == DENSE else expert
    for count in (1, 2, 3):
        for axes in itertools.permutations(view, count):
            groups = grid.groups(*axes)
            assert sorted(r for g in groups for r in g) == list(range(grid.world))
            for rank in range(0, grid.world, 5):
                here = place(grid, rank)
                mates = [r for r in range(grid.world)
                         if all(place(grid, r)[a] == here[a] for a in view if a not in axes)]
                found = grid.group(rank, *axes)
                assert sorted(found) == mates and found in groups
                # first axis fastest
                assert list(found) == sorted(mates, key=lambda r: [place(grid, r)[a] for a in reversed(axes)])


def test_a_group_of_another_view_is_refused():
    with pytest.raises(ValueError, match="mix the dense view"):
        Grid(tp=2, dp=2, ep=2).groups("tp", "ep")


def test_replicas_split_an_axis():
    grid = Grid(tp=8, dp=2)
    assert [grid.replicas(r, "tp", 2) for r in (0, 5, 11)] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    with pytest.raises(ValueError, match="tp=8 does not split into 3"):
        grid.replicas(0, "tp", 3)


def test_links_that_groups_cross():
    grid = Grid(tp=8, dp=4, pp=2)
    assert grid.nodes(0, "tp", per_node=8) == 1
    assert grid.nodes(0, "dp", per_node=8) == 4
    assert grid.nodes(0, "tp", per_node=4) == 2
    assert grid.nodes(0, "tp", "dp", "pp", per_node=8) == 8


def test_three_thousand_ranks_at_once():
    start = time.perf_counter()
    grid = Grid(tp=8, dp=6, pp=64, ep=4, etp=1)
    assert len(grid.groups("tp")) == 384 and len(grid.groups("ep")) == 768
    assert len({grid.group(r, "dp") for r in range(0, grid.world, 7)}) <= 512
    assert time.perf_counter() - start < 5  # it takes a few hundredths of a second


@pytest.mark.parametrize(("wrong", "said"), [
    ({"tp": 0}, "tp=0"), ({"pp": -1}, "pp=-1"), ({"etp": 0}, "etp=0"), ({"order": "tp-dp"}, "order='tp-dp'"),
    ({"dp": 4, "ep": 3}, "ep=3 x etp=1 does not divide"),
])
def test_impossible_grids(wrong, said):
    with pytest.raises(ValueError, match=said):
        Grid(**wrong)


def test_a_rank_outside():
    with pytest.raises(ValueError, match="rank 4 is outside a grid of 4"):
        Grid(tp=4).coordinates(4)
