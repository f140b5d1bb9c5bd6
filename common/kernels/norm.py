"""LayerNorm and RMSNorm over the last dim. Statistics in at least fp32; the input and the statistics are kept.

x (..., H), weight and bias (H); the result has x's dtype.
"""

import torch
from torch import Tensor
from torch.autograd import Function

from common.kernels.region import kernel
from common.recompute.meter import tag


def upcast(x: Tensor) -> Tensor:
    """At least fp32: half types go up, fp64 stays."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def layer_norm_reference(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, variance over H, not H - 1 (arXiv:1607.06450, equation 4)."""
    y = upcast(x)
    centred = y - y.mean(-1, keepdim=True)
    y = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (y * upcast(weight) + upcast(bias)).to(x.dtype)


class _HalfLayerNorm(Function):
    """PyTorch's CPU kernel keeps statistics and sums weight gradients in the input's own half type, which costs a weight
    gradient 2 % in bf16; here all of it is fp32, as in its GPU kernel."""

    @staticmethod
    @kernel("layer_norm")
    def forward(ctx, x, weight, bias, eps):
        y, mean, rstd = torch.native_layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps)
        ctx.save_for_backward(x, weight, bias, tag(mean, "norm.statistics"), tag(rstd, "norm.statistics"))
        return y.to(x.dtype)

    @staticmethod
    @kernel("layer_norm_backward")
    def backward(ctx, grad):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        d_x, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward(
            grad.float(), x.float(), weight.shape, mean, rstd, weight.float(), bias.float(), [True, True, True])
        return d_x.to(x.dtype), d_weight.to(weight.dtype), d_bias.to(bias.dtype), None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    if x.is_cpu and x.itemsize == 2:
        return _HalfLayerNorm.apply(x, weight, bias, eps)
    y, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
    tag(mean, "norm.statistics"), tag(rstd, "norm.statistics")
    return y


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight (arXiv:1910.07467, equation 4)."""
    y = upcast(x)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * upcast(weight)).to(x.dtype)


class _RMSNorm(Function):
    @staticmethod
    @kernel("rms_norm")
    def forward(ctx, x, weight, eps):
        y = upcast(x)
        rstd = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, tag(rstd, "norm.statistics"))
        return (y * rstd).mul_(upcast(weight)).to(x.dtype)

    @staticmethod
    @kernel("rms_norm_backward")
    def backward(ctx, grad):
        x, weight, rstd = ctx.saved_tensors
        g, n = upcast(grad), upcast(x) * rstd
        gn = g * n
        d_weight = gn.reshape(-1, gn.shape[-1]).sum(0)
        dot = torch.mv(gn.reshape(-1, gn.shape[-1]), upcast(weight)).view(rstd.shape).div_(gn.shape[-1])
        d_x = (g * upcast(weight)).addcmul_(n, dot, value=-1).mul_(rstd)
        return d_x.to(x.dtype), d_weight.to(weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _RMSNorm.apply(x, weight, eps)
