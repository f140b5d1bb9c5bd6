from dataclasses import replace

import pytest
import torch
from torch import nn

from common.kernels import KERNEL_SETS
from common.layers import attention
from common.layers.attention import Attention
from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.parameters import initialise
from common.recompute.policy import Recompute
from tests.common.kernels.agreement import normal
from tests.common.layers.small import build, record
from tests.oracles.parity import assert_close

CONFIG = LanguageModelConfig(
    hidden=24, heads=4, vocab=37, sequence=11, positions="none", attention_dropout=0.3
)


def torch_s(ours: Attention) -> nn.MultiheadAttention:
    """torch's layer with the same weights; it stacks queries, keys and values of all heads."""
    theirs = nn.MultiheadAttention(24, 4, dtype=torch.float64)
    k, v = ours.qkv.kv.unbind(1)
    k_bias, v_bias = ours.qkv.kv_bias.unbind(1)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.qkv.q, k, v]).reshape(72, 24))
        theirs.in_proj_bias.copy_(torch.cat([ours.qkv.q_bias, k_bias, v_bias]).reshape(72))
        theirs.out_proj.weight.copy_(ours.output.weight.reshape(24, 24))
        theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("documents", [False, True])
def test_it_is_torch_s_multihead_attention(kernels, documents):
    ours = Attention(CONFIG, Context(kernels=kernels, dtype=torch.float64), 0, Recompute()).eval()
    initialise(ours, SERIAL, 1)
    with torch.no_grad():
        for i, p in enumerate(ours.parameters()):
            p.copy_(normal(*p.shape, seed=i) * 0.5)
    theirs, batch = torch_s(ours), record(CONFIG, documents=documents)
    blocked = torch.ones(11, 11, dtype=torch.bool).triu(1).expand(3, 11, 11)
    if documents:
        blocked = blocked | (batch.documents[:, :, None] != batch.documents[:, None, :])
    x, y = (normal(11, 3, 24).requires_grad_() for _ in range(2))
    out = ours(x, batch)
    expected, _ = theirs(y, y, y, attn_mask=blocked.repeat_interleave(4, dim=0), need_weights=False)
    out.backward(normal(11, 3, 24, seed=7))
    expected.backward(normal(11, 3, 24, seed=7))
    kv, kv_bias = ours.qkv.kv.grad, ours.qkv.kv_bias.grad
    assert_close(
        {
            "output": out,
            "x": x.grad,
            "qkv": torch.cat([ours.qkv.q.grad, *kv.unbind(1)]).reshape(72, 24),
            "qkv bias": torch.cat([ours.qkv.q_bias.grad, *kv_bias.unbind(1)]).reshape(72),
            "projection": ours.output.weight.grad.reshape(24, 24),
            "bias": ours.output.bias.grad,
        },
        {
            "output": expected,
            "x": y.grad,
            "qkv": theirs.in_proj_weight.grad,
            "qkv bias": theirs.in_proj_bias.grad,
            "projection": theirs.out_proj.weight.grad,
            "bias": theirs.out_proj.bias.grad,
        },
        1e-10,
    )


def test_rotary_positions_are_the_record_s():
    """Positions moved by a constant change nothing; other distances do."""
    config = LanguageModelConfig(hidden=24, heads=4, kv_heads=2, vocab=37, sequence=11, positions="rotary")
    layer = Attention(config, Context(dtype=torch.float64), 0, Recompute())
    initialise(layer, SERIAL, 1)
    with torch.no_grad():
        layer.qkv.q.mul_(30)
        layer.qkv.kv.mul_(30)
    x, batch = normal(11, 3, 24), record(config)
    out = layer(x, batch)
    moved, stretched = (replace(batch, positions=p) for p in (batch.positions + 1000, batch.positions * 2))
    torch.testing.assert_close(layer(x, moved), out, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(layer(x, stretched), out, rtol=1e-2)


def masks_drawn(model, batch, monkeypatch) -> list[tuple]:
    drawn = []
    original = attention.attention_mask_BNQK

    def noting(site, *rest):
        keep = original(site, *rest)
        drawn.append((site, keep))
        return keep

    monkeypatch.setattr(attention, "attention_mask_BNQK", noting)
    model(batch, {})
    return drawn


def test_every_attention_of_a_model_draws_a_mask_of_its_own(monkeypatch):
    """Two of them in one layer included."""
    config = LanguageModelConfig(
        pattern="[**-]*2", hidden=24, heads=4, vocab=37, sequence=11, attention_dropout=0.5
    )
    drawn = masks_drawn(build(config), record(config), monkeypatch)
    assert len(drawn) == 4
    for i, (_, a) in enumerate(drawn):
        for _, b in drawn[:i]:
            assert (a == b).double().mean() < 0.6


def test_no_mask_in_evaluation(monkeypatch):
    model = build(CONFIG)
    assert len(masks_drawn(model, record(CONFIG), monkeypatch)) == 2
    assert not masks_drawn(model.eval(), record(CONFIG), monkeypatch)
