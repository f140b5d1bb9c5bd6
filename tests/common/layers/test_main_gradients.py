"""Gradients accumulated into main gradients over micro-batches, against autograd's of the sum."""

import pytest
import torch

from common.layers.linear import deferred_weight_gradients
from common.layout import SERIAL
from common.parallel.gradients import Gradients
from tests.common.layers.small import GPT, LLAMA, build, loss, record
from tests.oracles.parity import assert_close

BATCHES = [dict(seed=1), dict(seed=2, batch=2), dict(seed=3, documents=False)]


def by_autograd(config, dtype):
    """Of one loss, the sum over all micro-batches, without main gradients."""
    model = build(config, dtype)
    parameters = dict(model.named_parameters())
    total = sum(loss(model, record(config, **b)) for b in BATCHES)
    return dict(zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True))


def accumulated(config, dtype, main, steps=1, defer=False, recompute="none"):
    """Main gradients after `steps` steps of all micro-batches, set to zero before each."""
    model = build(config, dtype, recompute=recompute)
    gradients = Gradients([model], SERIAL, main)
    for _ in range(steps):
        gradients.zero()
        calls = []
        for b in BATCHES:
            if defer:
                with deferred_weight_gradients() as some:
                    loss(model, record(config, **b)).backward()
                calls += some
            else:
                loss(model, record(config, **b)).backward()
        for call in calls:
            call()
        gradients.reduce()
    return {n: p.main_grad.clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("steps", [1, 2])
def test_they_are_autograd_s(config, dtype, tolerance, steps):
    """A tied matrix takes what comes from both its ends; the second step starts from zero."""
    assert_close(accumulated(config, dtype, dtype, steps), by_autograd(config, dtype), tolerance)


@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["tied", "untied"])
def test_fp32_sums_of_bf16_gradients(config):
    """Each micro-batch's gradient is bf16, their sum is fp32."""
    assert_close(accumulated(config, torch.bfloat16, torch.float32), by_autograd(config, torch.float64), 5e-2)
    found = accumulated(config, torch.bfloat16, torch.float32)
    assert all(g.dtype == torch.float32 for g in found.values())
    model = build(config, torch.bfloat16)
    parameters = dict(model.named_parameters())
    exact = {n: torch.zeros(p.shape) for n, p in parameters.items()}
    for b in BATCHES:
        for n, g in zip(
            parameters,
            torch.autograd.grad(loss(model, record(config, **b)), list(parameters.values())),
            strict=True,
        ):
            exact[n] += g
    for name, g in found.items():
        if name != "embedding.tokens" or not config.tied:  # a tied matrix's two ends are added in fp32
            assert torch.equal(g, exact[name]), name
    assert_close(found, exact, 5e-3)


@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["tied", "untied"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dtype, main", [(torch.float64, torch.float64), (torch.float32, torch.float32),
                                         (torch.bfloat16, torch.float32)])
def test_deferred_are_the_immediate(config, recompute, dtype, main):
    """A tied matrix's two ends come in another order, so the last bits may differ there; nowhere else."""
    now, later = (accumulated(config, dtype, main, 1, defer, recompute) for defer in (False, True))
    for name, g in now.items():
        if config.tied and name == "embedding.tokens":
            torch.testing.assert_close(later[name], g, rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(later[name], g), name
