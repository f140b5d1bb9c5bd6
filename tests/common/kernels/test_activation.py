import pytest
import torch
from torch.nn import functional

from common.kernels import GATED, KERNEL_SETS, activation
from tests.common.kernels.agreement import TOLERANCE, agree, normal, run

FAST = KERNEL_SETS["sdpa"].activations
REFERENCE = KERNEL_SETS["reference"].activations
TORCH = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda h: functional.gelu(h, approximate="tanh"),
    "squared_relu": lambda h: functional.relu(h) ** 2,
    "swiglu": lambda h: functional.silu(h.select(-2, 0)) * h.select(-2, 1),
}


def sample(name: str, size: float = 2.0):
    return normal(7, 3, *((2,) if name in GATED else ()), 33) * size


def test_every_activation_has_a_reference_and_an_oracle():
    assert FAST.keys() == REFERENCE.keys() == TORCH.keys() == KERNEL_SETS["paper"].activations.keys()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", TORCH)
def test_fast_paths_are_their_references(name, dtype):
    agree(FAST[name], REFERENCE[name], [sample(name)], dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", TORCH)
def test_references_are_torch_s(name, dtype):
    agree(REFERENCE[name], TORCH[name], [sample(name)], dtype)


@pytest.mark.parametrize("name", TORCH)
def test_extreme_inputs(name):
    """At plus and minus 1e4 every value and slope is finite, and as torch has it."""
    extreme = torch.tensor([-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4], dtype=torch.float64)
    h = extreme if name not in GATED else torch.stack([extreme, extreme.flip(0)])
    agree(FAST[name], TORCH[name], [h], torch.float32)
    run(REFERENCE[name], [h], torch.float32)


def test_squared_relu_has_no_slope_at_zero():
    h = torch.zeros(3, requires_grad=True)
    for function in (activation.squared_relu, activation.squared_relu_reference):
        assert torch.equal(torch.autograd.grad(function(h).sum(), h)[0], torch.zeros(3))


@pytest.mark.parametrize("name", TORCH)
def test_strided_inputs(name):
    """Inputs and gradients whose memory is in another order."""
    h = sample(name).transpose(0, 1)
    agree(
        lambda x: FAST[name](x.transpose(0, 1)), lambda x: TORCH[name](x.transpose(0, 1)), [h], torch.float64
    )
    agree(
        lambda x: FAST[name](x).transpose(0, 1), lambda x: TORCH[name](x).transpose(0, 1), [h], torch.float64
    )


def test_gradcheck():
    assert torch.autograd.gradcheck(activation.swiglu, normal(3, 2, 5).requires_grad_())
