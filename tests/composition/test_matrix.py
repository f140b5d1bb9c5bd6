"""Every pair of features meets in some composition, and each composition trains to the numbers of one process.

Layers (5, or 9 where there are eight stages) do not divide by the stages, nor the vocabulary (101) by the tensor ranks,
nor the gradient buckets by the data ranks; the untied model has fewer key-value heads (2) than the largest tensor size.
"""

from dataclasses import replace
from itertools import combinations, product

import pytest

from common.grid import Grid
from tests.composition.parity import GPT, LLAMA, Case, assert_half_precision, assert_parity, run

TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}
# sp: sequence parallelism. zero: sharded optimizer. docs: document masks. slice: scatter/gather of stage messages.
# overlap: of messages with computing.
TABLE = """
tp pp schedule    dp zero sp recompute        tied precision dropout docs slice overlap
 1  2 1f1b         1    0  0 norm,activation     1      bf16       0    1     1     none
 1  2 interleaved  1    0  0 full:1              0      bf16     0.1    0     1 tp,pp,dp
 1  2 zb-h1        1    0  0 full                0      fp64       0    0     1 tp,pp,dp
 1  2 interleaved  1    0  0 none                1      fp32       0    0     1 tp,pp,dp
 2  1 1f1b         1    0  0 selective           1      fp32     0.1    1     1     none
 1  1 1f1b         3    1  0 norm,activation     0      fp32       0    0     1     none
 1  1 1f1b         3    0  0 none                0      fp32       0    0     1     none
 1  2 gpipe        2    0  0 norm,activation     0      fp64       0    1     1 tp,pp,dp
 4  1 1f1b         1    0  0 full                0      fp64       0    1     1     none
 1  2 interleaved  3    1  0 full                1      fp64       0    1     1 tp,pp,dp
 1  2 zb-h1        3    0  0 selective           1      bf16     0.1    0     1 tp,pp,dp
 1  2 gpipe        3    0  0 full                0      fp64       0    1     1     none
 2  1 1f1b         3    0  1 full:1              1      fp64     0.1    0     1 tp,pp,dp
 1  4 zb-h1        2    1  0 none                0      fp64       0    0     1     none
 1  4 gpipe        2    1  0 full:1              0      fp32     0.1    1     1     none
 2  2 interleaved  2    1  1 full                0      fp32     0.1    0     0     none
 2  4 gpipe        1    0  0 selective           0      bf16     0.1    1     0     none
 2  4 zb-h1        1    0  1 norm,activation     0      fp64     0.1    1     0     none
 2  4 interleaved  1    0  1 full                1      bf16       0    0     1 tp,pp,dp
 2  4 1f1b         1    0  0 none                0      bf16     0.1    1     0     none
 4  1 1f1b         2    1  1 selective           1      bf16     0.1    1     1     none
 4  2 zb-h1        1    0  0 full:1              1      fp32       0    1     0 tp,pp,dp
 4  2 gpipe        1    0  1 none                1      fp32       0    0     1 tp,pp,dp
 4  2 interleaved  1    0  0 selective           1      fp64       0    0     1     none
 4  2 interleaved  1    0  0 norm,activation     1      fp32       0    1     0 tp,pp,dp
"""
HEADER, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
ROWS = [dict(zip(HEADER, row, strict=True)) for row in ROWS]


def case(row: dict[str, str]) -> Case:
    n = {name: int(row[name]) for name in ("tp", "pp", "dp", "zero", "sp", "tied", "docs", "slice")}
    chunks = 2 if row["schedule"] == "interleaved" else 1
    model = replace(GPT if n["tied"] else LLAMA, pattern=f"[*-]*{9 if n['pp'] * chunks == 8 else 5}")
    return Case(Grid(n["tp"], dp=n["dp"], pp=n["pp"]), bool(n["sp"]), row["recompute"], "paper", float(row["dropout"]),
                bool(n["docs"]), row["precision"], model, row["schedule"], chunks, bool(n["slice"]), bool(n["zero"]),
                batch=12 if n["dp"] == 3 else 8, micro=1 if n["dp"] == 3 else 2,
                overlap=row["overlap"])


def possible(row: dict[str, str]) -> bool:
    """Whether the features of a row can be together at all, on at most eight ranks."""
    tp, pp, dp = (int(row[a]) for a in ("tp", "pp", "dp"))
    return (1 < tp * pp * dp <= 8 and not (row["sp"] == "1" and tp == 1) and not (row["zero"] == "1" and dp == 1)
            and not (row["schedule"] != "1f1b" and pp == 1) and not (row["slice"] == "0" and (pp == 1 or tp == 1)))


def test_every_pair_of_features_meets():
    def pairs(row):
        return set(combinations(row.items(), 2))

    levels = [sorted({row[name] for row in ROWS}) for name in HEADER]
    wanted = set().union(*(pairs(row) for row in (dict(zip(HEADER, v, strict=True)) for v in product(*levels))
                           if possible(row)))
    assert not wanted - set().union(*map(pairs, ROWS))


@pytest.mark.parametrize("world", sorted({case(row).grid.world for row in ROWS}))
def test_matches_one_process(world):
    cases = [c for c in map(case, ROWS) if c.grid.world == world]
    for c, found in zip(cases, run(world, cases), strict=True):
        if c.precision == "bf16":
            assert_half_precision(c, found)
        else:
            assert_parity(c, found, TOLERANCE[c.precision])


def test_borders_and_uneven_cuts():
    """Stages cut where the pattern says, and a first stage of one layer."""
    wanted = [Case(Grid(pp=2), precision="fp64", model=replace(GPT, pattern="[*-]|[*-]*3")),
              Case(Grid(pp=2), precision="fp64", model=replace(LLAMA, pattern="[*-]*2|[-]|[*]|[*-]"), chunks=2,
                   schedule="interleaved")]
    for c, found in zip(wanted, run(2, wanted), strict=True):
        assert_parity(c, found, 1e-10)
