"""Linear layers of one rank: values, gradients, in-place and deferred weight gradients."""

import pytest
import torch
from torch.nn import functional

from common.layers.context import Context
from common.layers.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_linear,
    deferred_weight_gradients,
    row_linear,
)
from common.layout import SERIAL, Group
from common.parameters import initialise
from tests.common.kernels.agreement import TOLERANCE, agree, normal

ALONE = Group("tp", (0,), 0)
S, B, H = 5, 3, 7
SHAPES = ((4, 3, H), (2, 2, 3, H))


def column(dtype=torch.float64, bias=True):
    layer = ColumnParallelLinear(Context(dtype=dtype), ("q", "kv"), SHAPES, bias, 0.5, "input")
    return filled(layer)


def row(dtype=torch.float64, bias=True):
    return filled(RowParallelLinear(Context(dtype=dtype), 6, (4, 3), bias, 0.5, "input"))


def filled(layer):
    initialise(layer, SERIAL, 3)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if name.endswith("bias"):
                p.copy_(normal(*p.shape, seed=len(name)))
    return layer


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_column_products(dtype):
    """One input, two weights of several output dims, with and without bias."""
    agree(
        lambda x, v, w, b, c: torch.cat(
            [y.flatten(2) for y in column_linear(x, [v, w], [b, c], ALONE, False)], -1
        ),
        lambda x, v, w, b, c: torch.cat(
            [
                functional.linear(x, v.view(12, H), b.view(12)),
                functional.linear(x, w.view(12, H), c.view(12)),
            ],
            -1,
        ),
        [
            normal(S, B, H),
            normal(4, 3, H, seed=2),
            normal(2, 2, 3, H, seed=3),
            normal(4, 3, seed=4),
            normal(2, 2, 3, seed=5),
        ],
        dtype,
    )
    agree(lambda x, v: column_linear(x, [v], [None], ALONE, False)[0], lambda x, v: x @ v.view(12, H).T,
          [normal(S, B, H), normal(4, 3, H, seed=2)], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_row_products(dtype):
    agree(lambda x, w: row_linear(x, w, ALONE, False), lambda x, w: x @ w.view(6, 12).T,
          [normal(S, B, 12), normal(6, 4, 3, seed=2)], dtype)


def test_layers_shape_their_outputs():
    x = normal(S, B, H)
    layer = column()
    q, kv = layer(x)
    assert torch.allclose(q, torch.einsum("sbh,ndh->sbnd", x, layer.q) + layer.q_bias)
    assert torch.allclose(kv, torch.einsum("sbh,gtdh->sbgtd", x, layer.kv) + layer.kv_bias)
    layer = row()
    y = layer(normal(S, B, 4, 3))
    assert torch.allclose(y, torch.einsum("sbnd,ond->sbo", normal(S, B, 4, 3), layer.weight) + layer.bias)


def test_gradcheck():
    x, v, w = normal(2, 2, 3), normal(2, 2, 3, seed=2), normal(3, 3, seed=3)
    b, c = normal(2, 2, seed=4), normal(3, seed=5)
    leaves = [t.requires_grad_() for t in (x, v, w, b, c)]
    assert torch.autograd.gradcheck(
        lambda x, v, w, b, c: column_linear(x, [v, w], [b, c], ALONE, False), leaves
    )
    u = normal(3, 2, 2, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, u: row_linear(x, u, ALONE, False), (normal(2, 2, 4).requires_grad_(), u)
    )


@pytest.mark.parametrize(
    "frozen",
    [
        ("q",),
        ("q_bias",),
        ("q", "kv"),
        ("q", "q_bias"),
        ("kv", "q_bias", "kv_bias"),
        ("q", "kv", "q_bias", "kv_bias"),
        ("x",),
        ("x", "q", "kv"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_frozen_parts_get_no_gradient_and_the_others_theirs(frozen, in_place):
    """Weights, biases and the input, in any combination."""
    x = normal(S, B, H).requires_grad_("x" not in frozen)
    layer = column()
    cotangent = normal(S, B, 24, seed=9)
    everything = dict(layer.named_parameters()) | {"x": x}
    whole = column()
    want = dict(whole.named_parameters()) | {"x": normal(S, B, H).requires_grad_()}
    (torch.cat([y.flatten(2) for y in whole(want["x"])], -1) * cotangent).sum().backward()
    for name, p in layer.named_parameters():
        p.requires_grad_(name not in frozen)
        if in_place and p.requires_grad:
            p.main_grad = torch.zeros_like(p)
            p.grad = p.main_grad
    out = torch.cat([y.flatten(2) for y in layer(x)], -1)
    if out.requires_grad:
        (out * cotangent).sum().backward()
    for name, p in everything.items():
        if name in frozen:
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, want[name].grad, rtol=1e-12, atol=1e-12)


def step(layer, x, dtype):
    """One forward and backward of a layer into its main gradients; the input gradient."""
    x = x.detach().requires_grad_()
    out = layer(x)
    out = torch.cat([y.flatten(2) for y in out], -1) if isinstance(out, tuple) else out
    out.backward(normal(*out.shape, seed=8).to(dtype))
    return x.grad


def with_main_gradients(layer, dtype):
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape, dtype=dtype)
        if p.dtype == dtype:
            p.grad = p.main_grad
    return layer


@pytest.mark.parametrize("make, shape", [(column, (S, B, H)), (row, (S, B, 12))], ids=["column", "row"])
@pytest.mark.parametrize("dtype, main", [(torch.float64, torch.float64), (torch.float32, torch.float32),
                                         (torch.bfloat16, torch.float32)])
def test_deferred_weight_gradients_are_the_immediate_ones(make, shape, dtype, main):
    """Bit for bit; the input gradient comes at once; nothing accumulates before the calls are made."""
    batches = [normal(*shape, seed=s).to(dtype) for s in (1, 2)]
    now, later = (with_main_gradients(make(dtype, bias=make is column), main) for _ in range(2))
    immediate = [step(now, x, dtype) for x in batches]
    with deferred_weight_gradients() as calls:
        deferred = [step(later, x, dtype) for x in batches]
    assert all(torch.equal(a, b) for a, b in zip(immediate, deferred, strict=True))
    assert len(calls) == 2 * (4 if make is column else 1)  # weights and biases of the column layer
    assert not any(p.main_grad.any() for p in later.parameters())
    for call in calls:
        call()
    for a, b in zip(now.parameters(), later.parameters(), strict=True):
        assert a.main_grad.any() and torch.equal(a.main_grad, b.main_grad)


def test_deferring_ends_with_its_block():
    layer = with_main_gradients(column(), torch.float64)
    with pytest.raises(RuntimeError, match="stop"), deferred_weight_gradients():
        raise RuntimeError("stop")
    step(layer, normal(S, B, H), torch.float64)
    assert layer.q.main_grad.any()
    with deferred_weight_gradients() as outer:
        with deferred_weight_gradients() as inner:
            step(layer, normal(S, B, H), torch.float64)
        assert len(inner) == 4 and not outer


def test_half_weights_accumulate_in_fp32():
    """A hundred small gradients onto a large one: lost in bf16, kept in fp32."""
    layer = with_main_gradients(row(torch.bfloat16, bias=False), torch.float32)
    layer.weight.main_grad.fill_(256.0)
    x = torch.ones(1, 1, 12, dtype=torch.bfloat16)
    for _ in range(100):
        layer(x).backward(torch.full((1, 1, 6), 2.0**-6, dtype=torch.bfloat16))
    assert torch.equal(layer.weight.main_grad, torch.full((6, 4, 3), 256 + 100 * 2.0**-6))
