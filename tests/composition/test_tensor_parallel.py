"""Tensor parallelism x sequence parallelism x recomputation x dropout against one process."""

from itertools import product

import numpy as np
import pytest

from common.grid import Grid
from tests.composition.parity import GPT, LLAMA, Case, assert_half_precision, assert_parity, run

POLICIES = ("none", "selective", "full", "full:1", "attention.core,norm,activation")
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}
RATES = {"fp32": (0.0, 0.1), "fp64": (0.1,)}


def cases(tp: int, precision: str) -> list[Case]:
    both = (False, True) if tp > 1 else (False,)
    return [Case(Grid(tp=tp), sp, policy, "paper", dropout, bool(dropout), precision, model)
            for sp, policy, dropout, model in product(both, POLICIES, RATES[precision], (GPT, LLAMA))]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_matches_one_process(tp, precision):
    wanted = cases(tp, precision)
    for case, found in zip(wanted, run(tp, wanted), strict=True):
        assert_parity(case, found, TOLERANCE[precision])


@pytest.mark.parametrize("tp", [2, 4])
def test_fused_attention_matches_one_process(tp):
    wanted = [Case(Grid(tp=tp), sp, policy, "sdpa", 0.0, documents, "fp64", model) for sp, policy, documents, model in
              product((False, True), ("none", "full"), (False, True), (GPT, LLAMA))]
    for case, found in zip(wanted, run(tp, wanted), strict=True):
        assert_parity(case, found, 1e-10)


def test_data_parallel_ranks_divide_by_global_tokens():
    wanted = [Case(Grid(tp=tp, dp=4 // tp), tp > 1, "none", "paper", 0.1, False, "fp64", model)
              for tp, model in product((1, 2), (GPT, LLAMA))]
    for case, found in zip(wanted, run(4, wanted), strict=True):
        assert_parity(case, found, 1e-10)


@pytest.mark.parametrize("tp", [1, 2])
def test_recomputation_changes_no_bit(tp):
    both = (False, True) if tp > 1 else (False,)
    wanted = [Case(Grid(tp=tp), sp, policy, "paper", 0.1, False, "fp32", model)
              for sp, model in product(both, (GPT, LLAMA)) for policy in POLICIES]
    found = run(tp, wanted)
    for start in range(0, len(wanted), len(POLICIES)):
        plain = found[start]
        for case, other in zip(wanted[start + 1:start + len(POLICIES)], found[start + 1:], strict=False):
            for name, x in plain.items():
                assert np.array_equal(other[name], x), f"{case}: {name}"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_bf16_is_as_close_as_one_process_in_bf16(tp):
    wanted = [Case(Grid(tp=tp), sp and tp > 1, "selective", "paper", 0.1, False, "bf16", model)
              for sp, model in product((False, True), (GPT, LLAMA))]
    for case, found in zip(wanted, run(tp, wanted), strict=True):
        assert_half_precision(case, found)
