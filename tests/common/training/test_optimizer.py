"""The optimizer against torch's own, used plainly."""

import pytest
import torch

from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.parallel.gradients import Gradients
from common.parameters import initialise
from common.training.optimizer import AdamWConfig, Optimizer


def model(dtype: torch.dtype) -> LanguageModel:
    made = LanguageModel(LanguageModelConfig(hidden=16, heads=2, vocab=30, sequence=8), Context(dtype=dtype))
    initialise(made, SERIAL, 0)
    return made


def test_two_updates_equal_torch_with_decay_on_matrices_alone():
    ours, theirs = model(torch.float64), model(torch.float64)
    optimizer = Optimizer(Gradients([ours], SERIAL, torch.float64), AdamWConfig(weight_decay=0.3))
    matrices = [p for n, p in theirs.named_parameters() if "norm" not in n and "bias" not in n]
    vectors = [p for n, p in theirs.named_parameters() if "norm" in n or "bias" in n]
    peer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}],
                             betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)
    for step, rate in enumerate((1e-2, 3e-3)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            gradient = torch.randn(a.shape, dtype=a.dtype, generator=torch.Generator().manual_seed(step))
            a.main_grad.copy_(gradient)
            b.grad = gradient.clone()
        for group in peer.param_groups:
            group["lr"] = rate
        optimizer.step(rate)
        peer.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-14), name


def test_bf16_parameters_are_their_fp32_mains_rounded():
    ours = model(torch.bfloat16)
    gradients = Gradients([ours], SERIAL)
    optimizer = Optimizer(gradients, AdamWConfig())
    start = {n: p.clone() for n, p in ours.named_parameters()}
    for _ in range(3):
        for p in ours.parameters():
            p.main_grad.fill_(1e-3)
        optimizer.step(1e-3)
    for name, p in ours.named_parameters():
        assert optimizer.main[name].dtype == torch.float32
        assert torch.equal(p.view(-1), optimizer.main[name].bfloat16()), name
    assert any(not torch.equal(p, start[n]) for n, p in ours.named_parameters())
    assert any(not torch.equal(optimizer.main[n], p.float().view(-1)) for n, p in ours.named_parameters())


def test_state_made_before_the_first_step_takes_a_checkpoint():
    optimizer = Optimizer(Gradients([model(torch.float32)], SERIAL), AdamWConfig())
    state = optimizer.state()
    assert set(state) == {"parameters", "exp_avg", "exp_avg_sq"}
    assert all(not run.data.any() for run in state["exp_avg"].values()) and optimizer.steps == 0
    optimizer.steps = 7
    assert optimizer.steps == 7


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"eps": 0.0}, {"clip": -1.0}, {"weight_decay": -0.1}])
def test_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdamWConfig(**wrong)
