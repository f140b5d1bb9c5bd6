"""Dropout whose mask is a function of what it is for, not of who draws it.

The mask of a (seed, step, global sample, layer, site) is drawn in blocks of rows: 256 tokens of the residual stream,
or 256 query rows of one head. A rank draws just the blocks that its shard touches, so the mask is the same in every
layout and a recomputed forward draws it again. Each element takes one random byte and is dropped when the byte is below
round(256 p): the rate is a multiple of 1/256 (0.1 becomes 26/256 = 0.1016), the scale 1 / (1 - rate) uses the same rate.

Shapes: S sequence, B micro-batch, H hidden, N local heads, Q query rows, K key rows. Masks are bool, 1 byte, True = keep.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Function

from common.kernels.region import fused, kernel
from common.random import fill_random_bytes, key
from common.recompute.meter import tag

BLOCK = 256


@dataclass(frozen=True)
class Site:
    """Names one dropout of one micro-batch."""

    seed: int
    step: int
    samples: tuple[int, ...]
    layer: int
    name: str


def threshold(p: float) -> int:
    """Bytes below this are dropped."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout={p}: a probability from 0 up to, not including, 1")
    if p and not round(p * 256):
        raise ValueError(f"dropout={p} drops nothing: rates are multiples of 1/256; use 0, or at least 0.002")
    return min(round(p * 256), 255)


def scale(p: float) -> float:
    return 1 / (1 - threshold(p) / 256)


def _draw(rows: Tensor, first: int, total: int, *parts) -> None:
    """Fills `rows`, contiguous uint8 (n, width), with the random rows first .. first + n of `total`, block by block."""
    n, width = rows.shape
    for block in range(first // BLOCK, (first + n - 1) // BLOCK + 1):
        low, high = block * BLOCK, min((block + 1) * BLOCK, total)
        begin, end = max(low, first), min(high, first + n)
        part = rows[begin - first:end - first].view(-1)
        seed = key(*parts, block)
        if part.numel() == (high - low) * width and part.numel() % 8 == 0 and part.storage_offset() % 8 == 0:
            fill_random_bytes(part.view(torch.int64), seed)
            continue
        words = torch.empty(((high - low) * width + 7) // 8, dtype=torch.int64, device=rows.device)
        fill_random_bytes(words, seed)
        part.copy_(words.view(torch.uint8)[(begin - low) * width:(end - low) * width])


@torch.library.custom_op("common::dropout_mask", mutates_args=())
def _mask(seed: int, step: int, samples: Sequence[int], layer: int, name: str, heads: Sequence[int], first: int,
          count: int, total: int, width: int, least: int, device: torch.device) -> Tensor:
    """Bool (samples, heads or 1, count, width): rows first .. first + count of `total` of each table, True where the random
    byte is at least `least`.

    One operation of torch's, so that a trace or a compiled graph holds one call, not one for every block.
    """
    drawn = torch.empty(len(samples), max(len(heads), 1), count, width, dtype=torch.uint8, device=device)
    for b, sample in enumerate(samples):
        for n, head in enumerate([[h] for h in heads] or [[]]):
            _draw(drawn[b, n], first, total, seed, step, sample, layer, name, *head)
    return drawn.ge_(least).view(torch.bool)


@_mask.register_fake
def _(seed, step, samples, layer, name, heads, first, count, total, width, least, device):
    return torch.empty(len(samples), max(len(heads), 1), count, width, dtype=torch.bool, device=device)


def _keep(site: Site, p: float, heads: Sequence[int], first: int, count: int, total: int, width: int, device) -> Tensor:
    return _mask(site.seed, site.step, site.samples, site.layer, site.name, heads, first, count, total, width,
                 threshold(p), torch.device(device))


def hidden_mask_SBH(site: Site, p: float, shape: torch.Size, first: int, total: int, device) -> Tensor:
    """Mask (S, B, H) for tokens first .. first + S of sequences of `total` tokens."""
    S, _, H = shape
    return _keep(site, p, (), first, S, total, H, device).squeeze(1).transpose(0, 1)


def attention_mask_BNQK(site: Site, p: float, shape: torch.Size, first_head: int, device) -> Tensor:
    """Mask (B, N, Q, K) for heads first_head .. first_head + N."""
    _, N, Q, K = shape
    return _keep(site, p, range(first_head, first_head + N), 0, Q, Q, K, device)


@kernel("aten.native_dropout_backward")
def _dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x * keep * scale; on a CPU through a mask of numbers, which multiplies in a third of the time of one of bools."""
    if x.is_cuda:
        return torch.ops.aten.native_dropout_backward(x, keep, scale)
    # Laid out as x is, which the mask, drawn sample by sample, is not.
    numbers = keep.view(torch.uint8).to(x.dtype, memory_format=torch.contiguous_format)
    return numbers.mul_(x).mul_(scale)


class _Dropout(Function):
    """x * keep * scale; keeps the mask alone."""

    @staticmethod
    def forward(ctx, x, keep, scale):
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return _dropped(x, keep, scale)

    @staticmethod
    def backward(ctx, grad):
        (keep,) = ctx.saved_tensors
        return _dropped(grad, keep, ctx.scale), None, None


class _DropoutAdd(Function):
    """residual + x * keep * scale; keeps the mask alone."""

    @staticmethod
    def forward(ctx, x, residual, keep, scale):
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.addcmul(residual, x, keep.view(torch.uint8).to(x.dtype), value=scale)

    @staticmethod
    def backward(ctx, grad):
        (keep,) = ctx.saved_tensors
        return _dropped(grad, keep, ctx.scale), grad, None, None


def dropout(x: Tensor, keep: Tensor, p: float, name: str) -> Tensor:
    """x with the elements outside `keep` zeroed and the rest scaled; same shape and dtype."""
    return _Dropout.apply(x, tag(keep, name), scale(p))


def dropout_add(x: Tensor, residual: Tensor, keep: Tensor, p: float, name: str) -> Tensor:
    """residual + dropout(x); same shape and dtype."""
    return _DropoutAdd.apply(x, residual, tag(keep, name), scale(p))


def add_dropped(x: Tensor, residual: Tensor, draw: Callable[[], Tensor], p: float, name: str) -> Tensor:
    """residual + dropout(x) with the mask that `draw` makes, as one kernel together with the bias added to x before."""
    with fused("residual", joins=True):
        keep = draw()
        return dropout_add(x, residual, keep, p, name)


def add_dropped_in_steps(x: Tensor, residual: Tensor, draw: Callable[[], Tensor], p: float, name: str) -> Tensor:
    """The same as PyTorch's own two kernels."""
    with fused("dropout"):
        keep = draw()
        dropped = dropout(x, keep, p, name)
    return residual + dropped
