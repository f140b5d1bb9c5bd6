"""Recomputation policies: reading them, and what they free and give back."""

import pytest
import torch

from common.recompute.meter import measuring, tag
from common.recompute.policy import SITES, Policy, Recompute


@pytest.mark.parametrize(("text", "sites", "first"), [
    ("none", set(), None), ("selective", {"attention.core"}, None), ("full", {"layer"}, None), ("full:3", {"layer"}, 3),
    ("norm,activation", {"norm", "activation"}, None), ("norm, attention.core:0", {"norm", "attention.core"}, 0),
])
def test_reads(text, sites, first):
    assert Policy.parse(text) == Policy(frozenset(sites), first)


@pytest.mark.parametrize("text", ["", "everything", "layer;norm", "full:", "full:-1", "norm,,activation", "Full"])
def test_refuses(text):
    with pytest.raises(ValueError, match="recompute="):
        Policy.parse(text)


def test_first_layers_alone():
    policy = Policy.parse("full:2")
    assert [bool(policy.at(i)) for i in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("site", SITES)
def test_gradients_are_those_without(site):
    weight = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def loss(recompute):
        with recompute.scope():
            return (recompute(site, lambda y: torch.tanh(y * 2), x @ weight) @ weight).square().sum()

    plain = torch.autograd.grad(loss(Recompute()), (weight, x))
    again = torch.autograd.grad(loss(Recompute(frozenset({site}))), (weight, x))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_a_discarded_output_is_not_kept_by_who_uses_it():
    linear = torch.nn.Linear(64, 8, bias=False)
    x = torch.randn(32, 64, requires_grad=True)

    def kept(recompute):
        with measuring(linear) as meter, recompute.scope():
            linear(tag(recompute("activation", torch.nn.functional.gelu, x), "output")).sum()
        return meter.saved["output"], meter.total

    size = x.untyped_storage().nbytes()
    assert kept(Recompute()) == (size, 2 * size)
    assert kept(Recompute(frozenset({"activation"}))) == (0, size)
