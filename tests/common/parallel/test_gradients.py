"""Main gradients on one process: norm and clipping against torch's own."""

import pytest
import torch

from common.layout import SERIAL
from common.parallel.gradients import Gradients
from tests.common.models.test_language_model import GPT, build, record


@pytest.mark.parametrize("limit", [0.01, 1e3])
def test_norm_and_clip_are_torch_s(limit):
    ours, theirs = build(GPT), build(GPT)
    gradients = Gradients([ours], SERIAL, torch.float64)
    for model in (ours, theirs):
        model(record(GPT), {})[1]["language"].sum.backward()
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    assert gradients.clip(limit).item() == pytest.approx(expected.item(), rel=1e-12)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.main_grad, b.grad, rtol=1e-12, atol=0)


def test_zero_lets_the_next_step_start_from_nothing():
    model = build(GPT)
    gradients = Gradients([model], SERIAL, torch.float64)
    found = []
    for _ in range(2):
        gradients.zero()
        model(record(GPT), {})[1]["language"].sum.backward()
        found.append([p.main_grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_every_gradient_lies_in_one_buffer():
    model = build(GPT)
    gradients = Gradients([model], SERIAL, torch.float64)
    (bucket,) = gradients.buckets
    flat = bucket.flat
    assert flat.numel() == sum(p.numel() for p in model.parameters())
    flat.fill_(3.0)
    assert all((p.main_grad == 3).all() and (p.grad == 3).all() for p in model.parameters())
