"""The loss scale against torch's GradScaler and megatron-core's, step by step."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.precision.loss_scale import DynamicLossScale, LossScaleConfig

outcomes = st.lists(st.booleans(), max_size=60)


def torch_scales(outcomes, config):
    """The scale after each step that torch's own scaler takes, fed gradients that overflow or do not."""
    scaler = torch.amp.GradScaler("cpu", init_scale=config.initial, growth_factor=config.growth,
                                  backoff_factor=config.backoff, growth_interval=config.interval)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scales = []
    for overflow in outcomes:
        scaler.scale(weight.sum()).backward()
        if overflow:
            weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales


def our_scales(outcomes, config):
    scale = DynamicLossScale(config)
    scales = []
    for overflow in outcomes:
        scale.update(overflow)
        scales.append(scale.scale)
    return scales


@settings(max_examples=40, deadline=None)
@given(outcomes, st.integers(1, 4), st.sampled_from([(2.0, 0.5), (4.0, 0.25)]))
def test_it_is_torchs_scaler(outcomes, interval, factors):
    config = LossScaleConfig(growth=factors[0], backoff=factors[1], interval=interval, smallest=1e-30)
    assert our_scales(outcomes, config) == torch_scales(outcomes, config)


def test_the_scale_stops_where_fp32_ends_as_torchs_does():
    config = LossScaleConfig(initial=2.0**120, growth=4.0, interval=1)
    ours = our_scales([False] * 8, config)
    assert ours == torch_scales([False] * 8, config)
    assert ours[-1] == 2.0**126


@pytest.fixture(scope="module")
def megatron_scaler():
    """megatron-core's scaler, whose tensors are put on the CPU."""
    from megatron.core.optimizer import grad_scaler

    real = torch.tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grad_scaler.torch, "tensor", lambda *a, **k: real(*a, **(k | {"device": "cpu"})))
        yield grad_scaler.DynamicGradScaler


@settings(max_examples=60, deadline=None)
@given(outcomes=outcomes, interval=st.integers(1, 4), hysteresis=st.integers(1, 3))
def test_it_is_megatrons_scaler_with_hysteresis_and_a_floor(megatron_scaler, outcomes, interval, hysteresis):
    config = LossScaleConfig(initial=64.0, interval=interval, hysteresis=hysteresis, smallest=4.0)
    theirs = megatron_scaler(initial_scale=64.0, min_scale=4.0, growth_factor=2.0, backoff_factor=0.5,
                             growth_interval=interval, hysteresis=hysteresis)
    expected = []
    for overflow in outcomes:
        theirs.update(overflow)
        expected.append(theirs.scale.item())
    assert our_scales(outcomes, config) == expected


@given(outcomes, outcomes)
def test_a_resumed_scale_goes_on_as_one_that_was_not_stopped(before, after):
    config = LossScaleConfig(interval=3, hysteresis=2)
    whole, first, second = (DynamicLossScale(config) for _ in range(3))
    for overflow in before:
        first.update(overflow)
        whole.update(overflow)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for overflow in after:
        second.update(overflow)
        whole.update(overflow)
    assert second.state_dict() == whole.state_dict()


def test_the_default_starts_at_2_to_the_16():
    assert DynamicLossScale(LossScaleConfig()).scale == 65536.0


@pytest.mark.parametrize("changes, message", [
    ({"growth": 1.0}, "growth=1.0 must be above 1"),
    ({"growth": float("inf")}, "growth=inf"),
    ({"backoff": 1.0}, "backoff=1.0 between 0 and 1"),
    ({"backoff": 0.0}, "backoff=0.0 between"),
    ({"interval": 0}, "interval=0"),
    ({"hysteresis": 0}, "hysteresis=0"),
    ({"smallest": 0.0}, "smallest=0.0 above 0"),
    ({"initial": 0.5}, "at most initial=0.5"),
    ({"initial": 1e39}, "initial=1e[+]39, which must be finite in fp32"),
])
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LossScaleConfig(**changes)
