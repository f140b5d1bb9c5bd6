"""Rotary position embedding (arXiv:2104.09864), halves paired: element i turns with element i + D/2.

x (S, B, N, D); cos and sin (S, B or 1, 1, D/2), at least fp32.
"""

import torch
from torch import Tensor
from torch.autograd import Function

from common.kernels.norm import upcast
from common.kernels.region import kernel


def table(positions_SB: Tensor, dim: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of position * base^(-2i/dim), (S, B, 1, dim/2)."""
    at_least = torch.promote_types(dtype, torch.float32)
    frequency = base ** (-torch.arange(0, dim, 2, device=positions_SB.device, dtype=torch.float64) / dim)
    angle = positions_SB[..., None, None].to(torch.float64) * frequency
    return angle.cos().to(at_least), angle.sin().to(at_least)


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = upcast(x).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


@kernel("rotary")
def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty_like(x)
    half = x.shape[-1] // 2
    a, b = upcast(x[..., :half]), upcast(x[..., half:])
    out[..., :half] = (a * cos).addcmul_(b, sin, value=-1)
    out[..., half:] = (a * sin).addcmul_(b, cos)
    return out


class _Rotate(Function):
    """Keeps the tables, not x: the gradient is turned back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _Rotate.apply(x, cos, sin)
