"""Troubles that parallel training is known for, each by its name. One process is the yardstick throughout."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from common.grid import Grid
from common.kernels.dropout import Site, attention_mask_BNQK, hidden_mask_SBH
from common.layout import Layout
from common.models.config import check
from common.recompute.policy import Policy
from common.training.step import build
from tests.composition.parity import ADAMW, GPT, LLAMA, Case, deviation, outcome, records, serial_outcome
from tests.distributed import ranks

SHARDED = Case(Grid(tp=4), True, "none", "paper", 0.1, True, "fp64", GPT)
GROUPED = replace(SHARDED, model=LLAMA)  # two key-value groups on four tensor ranks
WHOLE = replace(SHARDED, sequence_parallel=False)
DATA = Case(Grid(dp=2, tp=2), True, "none", "paper", 0.0, False, "fp64", GPT)


def _found(context, cases):
    found = [outcome(case, context.rank) for case in cases]
    return found if context.rank == 0 else None


@pytest.fixture(scope="module")
def found():
    cases = [SHARDED, GROUPED, WHOLE, DATA]
    return dict(zip(cases, ranks(4, _found, cases)[0], strict=True))


def worst(case, found, *names: str) -> float:
    apart = deviation(found[case], serial_outcome(case.serial))
    chosen = [v for n, v in apart.items() if any(part in n for part in names)]
    assert chosen, names
    return max(chosen)


@pytest.mark.parametrize("case", [SHARDED, WHOLE, GROUPED])
def test_every_parameter_counts_once_in_the_global_norm(case, found):
    """Norms and biases, which each tensor rank holds, sharded weights, copies of key-value groups, tied embeddings."""
    squares = sum(float(np.square(x).sum()) for n, x in serial_outcome(case.serial).items() if n.startswith("gradient."))
    assert float(found[case]["norm"]) == pytest.approx(squares**0.5, rel=1e-12)


def test_norm_weights_are_summed_over_tensor_ranks_under_sequence_parallelism(found):
    assert worst(SHARDED, found, "norm.weight", "norm.bias", "output.bias", "down.bias") < 1e-10


def test_unequal_numbers_of_counted_tokens_are_no_mean_of_means(found):
    """Each data rank has its own number of counted tokens; one sequence has none."""
    counts = [int(r.loss_mask.sum()) for i in range(2) for r in records(DATA, 0, dp=2, index=i)]
    assert len(set(counts)) > 1 and not records(DATA, 0, micro=1)[2].loss_mask.any()
    assert worst(DATA, found, "loss", "gradient.") < 1e-10


def test_dropout_masks_differ_between_shards_and_agree_between_copies():
    site = Site(1, 2, (3, 4), 5, "mlp")
    whole = hidden_mask_SBH(site, 0.5, torch.Size((24, 2, 8)), 0, 24, "cpu")
    parts = [hidden_mask_SBH(site, 0.5, torch.Size((6, 2, 8)), first, 24, "cpu") for first in (0, 6, 12, 18)]
    assert torch.equal(torch.cat(parts), whole)
    assert not any(torch.equal(parts[0], other) for other in parts[1:])
    heads = attention_mask_BNQK(site, 0.5, torch.Size((2, 4, 8, 8)), 0, "cpu")
    assert torch.equal(heads[:, 2:], attention_mask_BNQK(site, 0.5, torch.Size((2, 2, 8, 8)), 2, "cpu"))
    assert not torch.equal(heads[:, :2], heads[:, 2:])


@pytest.mark.parametrize("policy", ["selective", "full", "norm,activation"])
def test_a_recomputed_forward_draws_the_same_masks(policy):
    plain = serial_outcome(WHOLE.serial)
    again = outcome(replace(WHOLE.serial, recompute=policy))
    assert all(np.array_equal(again[n], x) for n, x in plain.items())


def test_vocabulary_that_the_tensor_size_does_not_divide(found):
    """101 rows on four ranks: 26 each, three of padding on the last. It takes no part in loss or gradient."""
    assert worst(SHARDED, found, "loss", "embedding.tokens") < 1e-10
    assert found[SHARDED]["parameter.embedding.tokens"].shape == (101, 64)


def _padding_after_three_steps(context):
    from tests.composition.parity import train_step

    training = build(GPT, SHARDED.execution, ADAMW["fp64"], Layout(Grid(tp=4), context.rank), seed=7)
    for step in range(3):
        train_step(training, records(SHARDED, step), 1e-2, 1.0)
    return training.model.embedding.tokens[23:].abs().max().item()


def test_padding_rows_stay_zero():
    assert ranks(4, _padding_after_three_steps)[3] == 0


def test_fewer_key_value_groups_than_tensor_ranks(found):
    assert worst(GROUPED, found, "gradient.", "parameter.") < 1e-10


def test_selective_recomputation_that_would_free_nothing_is_refused():
    with pytest.raises(ValueError, match="frees nothing.*kernels=paper"):
        check(GPT, kernels="sdpa", recompute="selective")


def test_a_policy_says_which_tensors_it_frees():
    said = Policy.parse("selective").describe()
    assert all(name in said for name in ("attention.softmax", "attention.softmax_mask", "attention.dropped"))


@pytest.mark.parametrize("case", [SHARDED, WHOLE, DATA, GROUPED])
def test_the_loss_does_not_change_with_the_layout(case, found):
    assert worst(case, found, "loss") < 1e-12
