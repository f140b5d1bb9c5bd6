import pytest
import torch
from torch.nn import functional

from common.kernels import KERNEL_SETS, norm
from tests.common.kernels.agreement import TOLERANCE, agree, normal, run

EPS = 1e-5
SHAPES = [(7, 3, 33), (1, 1, 3), (5, 64)]


def inputs(*shape, bias):
    x = normal(*shape) * 3 + 1
    return [x, normal(shape[-1], seed=2), normal(shape[-1], seed=3)][:3 if bias else 2]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_is_its_reference(shape, dtype):
    agree(
        lambda *t: norm.layer_norm(*t, EPS),
        lambda *t: norm.layer_norm_reference(*t, EPS),
        inputs(*shape, bias=True),
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_is_its_reference(shape, dtype):
    agree(
        lambda *t: norm.rms_norm(*t, EPS),
        lambda *t: norm.rms_norm_reference(*t, EPS),
        inputs(*shape, bias=False),
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_references_are_torch_s(dtype):
    x, weight, bias = inputs(6, 2, 37, bias=True)
    agree(
        lambda *t: norm.layer_norm_reference(*t, EPS),
        lambda x, w, b: functional.layer_norm(x, (37,), w, b, EPS),
        [x, weight, bias],
        dtype,
    )
    agree(
        lambda *t: norm.rms_norm_reference(*t, EPS),
        lambda x, w: functional.rms_norm(x, (37,), w, EPS),
        [x, weight],
        dtype,
    )


@pytest.mark.parametrize("rms_norm", [norm.rms_norm, norm.rms_norm_reference])
def test_rms_norm_of_strided_inputs_and_gradients(rms_norm):
    x = normal(9, 4, 5).transpose(0, 1).requires_grad_()
    weight = normal(5, seed=2).requires_grad_()
    expected = functional.rms_norm(x, (5,), weight, EPS)
    cotangent = normal(5, 9, 4, seed=3).permute(2, 1, 0)
    for broadcast in (cotangent, torch.ones((), dtype=torch.float64).expand(4, 9, 5)):
        want = torch.autograd.grad(expected, (x, weight), broadcast, retain_graph=True)
        got = torch.autograd.grad(rms_norm(x, weight, EPS), (x, weight), broadcast)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("size", [1e-20, 1e-4, 1e4, 1e15])
def test_tiny_and_huge_inputs(kernels, size):
    """fp32 against fp64 on the same numbers: squares of 1e15 fit, those of 1e-20 vanish beside eps."""
    kernel_set = KERNEL_SETS[kernels]
    x, weight, bias = inputs(5, 2, 24, bias=True)
    x = x * size
    agree(
        lambda *t: kernel_set.rms_norm(*t, EPS),
        lambda x, w: functional.rms_norm(x, (24,), w, EPS),
        [x, weight],
        torch.float32,
    )
    agree(
        lambda *t: kernel_set.layer_norm(*t, EPS),
        lambda x, w, b: functional.layer_norm(x, (24,), w, b, EPS),
        [x, weight, bias],
        torch.float32,
    )


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("mean", [0, 10, 100])
def test_half_types_lose_no_more_than_rounding(kernels, mean):
    """Statistics and sums in fp32: many tokens and a mean far from zero cost no digits beyond the half
    type's own."""
    x, weight, bias = normal(64, 4, 48) + mean, normal(48, seed=2), normal(48, seed=3)
    for half in (torch.bfloat16, torch.float16):
        agree(
            lambda *t: KERNEL_SETS[kernels].layer_norm(*t, EPS),
            lambda x, w, b: functional.layer_norm(x, (48,), w, b, EPS),
            [x, weight, bias],
            half,
            4e-3,
        )
        agree(
            lambda *t: KERNEL_SETS[kernels].rms_norm(*t, EPS),
            lambda x, w: functional.rms_norm(x, (48,), w, EPS),
            [x, weight],
            half,
            4e-3,
        )


@pytest.mark.parametrize("kernels", KERNEL_SETS)
def test_equal_inputs(kernels):
    """No variance: LayerNorm gives its bias, and no NaN."""
    x = torch.full((3, 2, 16), 7.0)
    weight, bias = torch.randn(16), torch.randn(16)
    assert torch.equal(KERNEL_SETS[kernels].layer_norm(x, weight, bias, EPS), bias.expand(3, 2, 16))
    run(lambda *t: KERNEL_SETS[kernels].layer_norm(*t, EPS), [x, weight, bias], torch.float32)
    zero = torch.zeros(3, 2, 16)
    assert torch.equal(KERNEL_SETS[kernels].rms_norm(zero, weight, EPS), zero)


def test_gradcheck():
    x, weight, bias = (t.requires_grad_() for t in inputs(3, 2, 5, bias=True))
    assert torch.autograd.gradcheck(lambda x, w: norm.rms_norm(x, w, EPS), (x, weight))
    assert torch.autograd.gradcheck(lambda x, w, b: norm.layer_norm(x, w, b, EPS), (x, weight, bias))
