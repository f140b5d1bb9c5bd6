import math

import pytest
import torch
from torch.nn import functional

from common.kernels import KERNEL_SETS, attention
from common.kernels.dropout import scale
from tests.common.kernels.agreement import TOLERANCE, agree, cotangent, normal, run

FUNCTIONS = {name: k.attention for name, k in KERNEL_SETS.items()}
# S, B, N, G, D: odd sizes; one head, grouped and single keys; one token.
SIZES = [(13, 3, 5, 5, 7), (17, 2, 6, 2, 5), (9, 2, 4, 1, 3), (33, 1, 1, 1, 16)]


def inputs(S, B, N, G, D):
    return [normal(S, B, N, D) * 2, normal(S, B, G, D, seed=2) * 2, normal(S, B, G, D, seed=3)]


def documents(S, B):
    """Each sample cut elsewhere; one whole; numbers neither sorted nor alike."""
    cuts = torch.arange(S) // (torch.arange(B)[:, None] * 3 + 4)
    ids = (cuts * 7 + 3) % 5
    ids[-1] = 9
    return ids


def torch_s(q, k, v, ids=None, keep=None, p=0.0):
    """torch's attention with an explicit mask, keys and values repeated; dropout written out."""
    S, repeat = q.shape[0], q.shape[2] // k.shape[2]
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    k, v = (x[:, :, None].expand(-1, -1, repeat, -1, -1).flatten(1, 2) for x in (k, v))
    see = torch.ones(S, S, dtype=torch.bool).tril()
    if ids is not None:
        see = torch.stack([torch.stack([row == row[i] for i in range(S)]) for row in ids])[:, None] & see
    if keep is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=see).permute(2, 0, 1, 3)
    weights = (
        (torch.einsum("bnqd,bnkd->bnqk", q, k) / math.sqrt(q.shape[-1])).masked_fill(~see, -torch.inf).exp()
    )
    weights = weights / weights.sum(-1, keepdim=True) * keep * scale(p)
    return torch.einsum("bnqk,bnkd->qbnd", weights, v)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_every_kernel_is_torch_s(kernels, sizes, masked, dtype):
    ids = documents(*sizes[:2]) if masked else None
    agree(lambda q, k, v: FUNCTIONS[kernels](q, k, v, ids, None, 0.0), lambda q, k, v: torch_s(q, k, v, ids),
          inputs(*sizes), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_one_token_is_its_own_value(kernels, masked, dtype):
    """Its gradients in q and k are zero by mathematics: what is left are roundings of dO · v that cancel."""
    q, k, v = inputs(1, 2, 2, 2, 4)
    ids = documents(1, 2) if masked else None
    found = run(lambda *qkv: FUNCTIONS[kernels](*qkv, ids, None, 0.0), (q, k, v), dtype)
    slope = cotangent(v.shape).to(dtype)
    assert torch.equal(found["output"], v.to(dtype)) and torch.equal(found["gradient 2"], slope)
    left = 4 * torch.finfo(dtype).eps * float((slope.double().norm(dim=-1) * v.norm(dim=-1)).max())
    for name, other in (("gradient 0", k), ("gradient 1", q)):
        assert float(found[name].abs().max()) <= left * float(other.abs().max()) / 2, name  # sqrt(D) is 2


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_dropout_on_the_weights(kernels, masked, dtype):
    S, B, N, G, D = SIZES[1]
    p = 0.3
    ids = documents(S, B) if masked else None
    keep = torch.rand(B, N, S, S, generator=torch.Generator().manual_seed(6)) >= p
    asked = []

    def draw(shape):
        asked.append(tuple(shape))
        return keep

    agree(lambda q, k, v: FUNCTIONS[kernels](q, k, v, ids, draw, p),
          lambda q, k, v: torch_s(q, k, v, ids, keep, p), inputs(S, B, N, G, D), dtype)
    assert asked == [(B, N, S, S)]


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_no_gradient_crosses_a_border(kernels, masked):
    """The output of a token reaches neither later tokens nor other documents."""
    S, B = 12, 2
    ids = torch.tensor([[0] * 5 + [1] * 7, [2] * 12]) if masked else None
    q, k, v = (x.requires_grad_() for x in inputs(S, B, 4, 2, 4))
    FUNCTIONS[kernels](q, k, v, ids, None, 0.0)[8, 0].sum().backward()
    for x in (k, v):
        reached = x.grad[:, 0].abs().sum((1, 2)) > 0
        assert reached.tolist() == [(5 if masked else 0) <= i <= 8 for i in range(S)]
        assert not x.grad[:, 1].any()


@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_large_scores(kernels):
    """Scores in the thousands: the softmax is a choice of one key, not a NaN."""
    q, k, v = inputs(9, 2, 4, 2, 8)
    agree(
        lambda q, k, v: FUNCTIONS[kernels](q, k, v, None, None, 0.0),
        torch_s,
        [q * 40, k * 40, v],
        torch.float64,
    )
    out = FUNCTIONS[kernels]((q * 1e3).float(), (k * 1e3).float(), v.float(), None, None, 0.0)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_inputs_in_another_order_of_memory(kernels):
    """Keys and values are slices of one product, queries a transpose."""
    kv = normal(11, 2, 2, 2, 6)
    q = normal(2, 11, 4, 6, seed=2)
    agree(lambda q, kv: FUNCTIONS[kernels](q.transpose(0, 1), *kv.unbind(3), None, None, 0.0),
          lambda q, kv: torch_s(q.transpose(0, 1), *kv.unbind(3)), [q, kv], torch.float64)


def test_documents_may_see_what_they_share():
    see = attention.allowed(4, torch.tensor([[0, 0, 1, 0]]), "cpu")[0, 0]
    assert see.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]]
