import pytest
import torch
from torch.nn import functional

from common.kernels.cross_entropy import cross_entropy, cross_entropy_reference
from common.layout import Group
from tests.common.kernels.agreement import agree, normal

S, B, V = 7, 3, 29
ALONE = Group("tp", (0,), 0)


def labels(vocab: int = V):
    return torch.randint(vocab, (S, B), generator=torch.Generator().manual_seed(4))


def torch_s(vocab: int):
    """torch's own, in fp64, on the true columns."""
    return lambda x: functional.cross_entropy(x[..., :vocab].flatten(0, 1), labels(vocab).flatten(),
                                              reduction="none").view(S, B)


def ours(vocab: int):
    return lambda x: cross_entropy(x, labels(vocab), vocab, ALONE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_torch_s(dtype):
    agree(ours(V), torch_s(V), [normal(S, B, V) * 4], dtype)
    agree(lambda x: cross_entropy_reference(x, labels()), torch_s(V), [normal(S, B, V) * 4], dtype)


def test_half_logits_give_an_fp32_loss_and_a_half_gradient():
    logits = (normal(S, B, V) * 4).bfloat16()
    for function in (
        lambda x: cross_entropy(x, labels(), V, ALONE),
        lambda x: cross_entropy_reference(x, labels()),
    ):
        x = logits.clone().requires_grad_()
        loss = function(x)
        loss.sum().backward()
        expected = logits.double().requires_grad_()
        torch_s(V)(expected).sum().backward()
        assert loss.dtype == torch.float32 and x.grad.dtype == torch.bfloat16
        torch.testing.assert_close(loss.double(), torch_s(V)(logits.double()), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(x.grad.double(), expected.grad, rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits(size):
    """One logit of a row at plus or minus 1e4: right where it is the label, and where it is not."""
    x = normal(S, B, V)
    x[:, :, 5] = size
    agree(ours(V), torch_s(V), [x], torch.float32)
    agree(ours(V), torch_s(V), [x * 0 + size], torch.float32)  # all equal: the loss is log V
    uniform = cross_entropy(torch.full((S, B, V), size), labels(), V, ALONE)
    torch.testing.assert_close(uniform, torch.full((S, B), float(V)).log())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("vocab", [2, V - 3, V])
def test_padding_columns_take_no_part(vocab, dtype):
    """Whatever stands in them, NaN included; their gradient is exactly zero."""
    x = normal(S, B, V) * 4
    agree(ours(vocab), torch_s(vocab), [x], dtype)
    for junk in (1e30, torch.inf, torch.nan):
        padded = x.clone()
        padded[..., vocab:] = junk
        leaf = padded.to(dtype).requires_grad_()
        loss = ours(vocab)(leaf)
        torch.testing.assert_close(loss.double(), torch_s(vocab)(x), rtol=1e-5, atol=1e-5)
        loss.sum().backward()
        assert torch.equal(leaf.grad[..., vocab:], torch.zeros(S, B, V - vocab, dtype=dtype))
        assert torch.isfinite(leaf.grad).all()


def test_logits_are_left_as_they_are():
    x = normal(S, B, V)
    before = x.clone()
    cross_entropy(x, labels(V - 2), V - 2, ALONE)
    assert torch.equal(x, before)


@pytest.mark.parametrize("outside", [-100, V - 1, V, 10**6])
def test_labels_outside_the_vocabulary_touch_nothing(outside):
    """Where the loss does not count they may be anything, a padding column too: no gradient, and the
    others' unchanged."""
    vocab = V - 2
    x = normal(S, B, V).requires_grad_()
    mask = torch.rand(S, B, generator=torch.Generator().manual_seed(1)) < 0.5
    loss = cross_entropy(x, torch.where(mask, labels(vocab), outside), vocab, ALONE)
    assert torch.isfinite(loss).all()
    (got,) = torch.autograd.grad(torch.where(mask, loss, 0).sum(), x)
    (want,) = torch.autograd.grad(torch_s(vocab)(x)[mask].sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-14)
    assert not got[~mask].any()


def test_gradcheck():
    x = normal(3, 2, 7).requires_grad_()
    few = torch.tensor([[0, 1], [4, 2], [3, 0]])
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, few, 5, ALONE), x)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, few, 7, ALONE), x)
