"""MLP activations. Each keeps its input alone for backward.

Plain activations map (..., F) to (..., F); gated ones map (..., 2, F), gate then value, to (..., F).
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from common.kernels.region import kernel


def gelu(h: Tensor) -> Tensor:
    """x Phi(x) (arXiv:1606.08415)."""
    return functional.gelu(h)


def gelu_reference(h: Tensor) -> Tensor:
    return h * 0.5 * (1 + torch.erf(h / 2**0.5))


def gelu_tanh(h: Tensor) -> Tensor:
    """The tanh approximation of GELU (arXiv:1606.08415, section 2), as GPT-2 and Megatron-LM use it."""
    return functional.gelu(h, approximate="tanh")


def gelu_tanh_reference(h: Tensor) -> Tensor:
    return 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))


class _SquaredReLU(Function):
    @staticmethod
    @kernel("squared_relu")
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return functional.relu(h).square_()

    @staticmethod
    @kernel("squared_relu_backward")
    def backward(ctx, grad):
        (h,) = ctx.saved_tensors
        return functional.relu(h).mul_(grad).mul_(2)


def squared_relu(h: Tensor) -> Tensor:
    """max(x, 0)^2 (arXiv:2109.08668)."""
    return _SquaredReLU.apply(h)


def squared_relu_reference(h: Tensor) -> Tensor:
    return torch.where(h > 0, h * h, torch.zeros_like(h))


class _SwiGLU(Function):
    @staticmethod
    @kernel("swiglu")
    def forward(ctx, h):
        ctx.save_for_backward(h)
        gate, value = h.unbind(-2)
        return functional.silu(gate).mul_(value)

    @staticmethod
    @kernel("swiglu_backward")
    def backward(ctx, grad):
        (h,) = ctx.saved_tensors
        gate, value = h.unbind(-2)
        d_h = torch.empty_like(h)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        torch.mul(grad, silu, out=d_h.select(-2, 1))
        torch.mul(grad, value, out=silu)
        slope = torch.addcmul(sigmoid, gate * sigmoid, 1 - sigmoid)
        torch.mul(silu, slope, out=d_h.select(-2, 0))
        return d_h


def swiglu(h: Tensor) -> Tensor:
    """silu(gate) * value (arXiv:2002.05202)."""
    return _SwiGLU.apply(h)


def swiglu_reference(h: Tensor) -> Tensor:
    gate, value = h.unbind(-2)
    return gate * torch.sigmoid(gate) * value
