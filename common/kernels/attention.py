"""Attention cores: from queries, keys and values to context.

q (S, B, N, D); k, v (S, B, G, D) with N a multiple of G; result (S, B, N, D). Causal always; `documents` (B, S) limits
attention to equal ids. `keep` makes the dropout mask (B, N, S, S) when called, or is None.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from common.kernels.dropout import dropout
from common.kernels.norm import upcast
from common.kernels.region import absorbed, fused
from common.recompute.meter import tag

Keep = Callable[[torch.Size], Tensor] | None


def allowed(length: int, documents_BS: Tensor | None, device) -> Tensor:
    """Bool (1 or B, 1, S, S): which key each query may see."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril_()[None, None]
    if documents_BS is None:
        return causal
    return causal & (documents_BS[:, None, :, None] == documents_BS[:, None, None, :])


def attention_reference(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, keep: Keep, p: float) -> Tensor:
    """softmax(q k^T / sqrt(D)) v (arXiv:1706.03762, equation 1), every step in the open."""
    S, B, N, D = q.shape
    repeat = N // k.shape[2]
    q_BNSD, k_BNSD, v_BNSD = (upcast(x).permute(1, 2, 0, 3) for x in (q, k, v))
    k_BNSD, v_BNSD = (x.repeat_interleave(repeat, dim=1) for x in (k_BNSD, v_BNSD))
    scores = q_BNSD @ k_BNSD.transpose(-1, -2) / math.sqrt(D)
    weights = torch.softmax(scores.masked_fill(~allowed(S, documents, q.device), -torch.inf), dim=-1)
    if keep is not None:
        weights = _dropped(weights, keep, p)
    return (weights @ v_BNSD).permute(2, 0, 1, 3).to(q.dtype)


def _dropped(weights: Tensor, keep: Keep, p: float) -> Tensor:
    with fused("dropout"):  # its kernel draws the mask as well
        mask = keep(weights.shape)
        return dropout(weights, mask, p, "attention.softmax_mask")


def _rows(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as batches of matrices, (B G, N/G S, D) and (B G, S, D).

    The N / G queries of a group stand as extra rows, so that keys and values are never repeated.
    """
    S, B, N, D = q.shape
    G = k.shape[2]
    with absorbed():  # a GPU's batched products take strides
        q_rows = q.view(S, B, G, N // G, D).permute(1, 2, 3, 0, 4).reshape(B * G, N // G * S, D)
        k_rows = k.permute(1, 2, 0, 3).reshape(B * G, S, D)
        v_rows = v.permute(1, 2, 0, 3).reshape(B * G, S, D)
    for rows, name in ((q_rows, "attention.q"), (k_rows, "attention.k"), (v_rows, "attention.v")):
        tag(rows, name)
    return q_rows, k_rows, v_rows


def _context(weights: Tensor, v_rows: Tensor, S: int) -> Tensor:
    """Weights (B, N, S, S) times values (B G, S, D) -> (S, B, N, D)."""
    B, N = weights.shape[:2]
    BG, _, D = v_rows.shape
    context = torch.bmm(weights.view(BG, B * N // BG * S, S), v_rows)
    return context.view(B, BG // B, B * N // BG, S, D).permute(3, 0, 1, 2, 4).reshape(S, B, N, D)


def _bias(S: int, documents: Tensor | None, N: int, G: int, like: Tensor) -> Tensor:
    """0 where a query may see a key and -inf elsewhere, (B G or 1, N/G S, S)."""
    blocked = ~allowed(S, documents, like.device)
    bias = torch.zeros(blocked.shape, dtype=like.dtype, device=like.device).masked_fill_(blocked, -torch.inf)
    return bias[:, :, None].expand(-1, G if documents is not None else 1, N // G, S, S).reshape(-1, N // G * S, S)


def attention_unfused(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, keep: Keep, p: float) -> Tensor:
    """Two batched products with a softmax between, as the papers of 2021-22 ran it.

    Keeps q, k, v, the softmax output, and with dropout its mask and its output: the 5as^2b bytes of
    arXiv:2205.05198, section 4.1.
    """
    S, B, N, D = q.shape
    q_rows, k_rows, v_rows = _rows(q, k, v)
    with fused("aten.baddbmm"):  # on a GPU the mask is the softmax kernel's own work, from indices
        scores = torch.baddbmm(_bias(S, documents, N, k.shape[2], q), q_rows, k_rows.transpose(1, 2),
                               alpha=1 / math.sqrt(D))
    weights = tag(torch.softmax(scores, dim=-1), "attention.softmax").view(B, N, S, S)
    if keep is not None:
        weights = tag(_dropped(weights, keep, p), "attention.dropped")
    return _context(weights, v_rows, S)


def attention_unscaled(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, keep: Keep, p: float) -> Tensor:
    """The same before scaling, masking and softmax were fused (arXiv:2104.04473, section 4.2): each is a kernel of its
    own, in fp32, as the fallback of the fused kernel in the authors' code runs it.

    Keeps the softmax output in fp32 besides what the fused form keeps.
    """
    S, B, N, D = q.shape
    q_rows, k_rows, v_rows = _rows(q, k, v)
    scores = upcast(torch.bmm(q_rows, k_rows.transpose(1, 2)))
    with absorbed():  # the mask is made once and for all
        blocked = _bias(S, documents, N, k.shape[2], q) < 0
    weights = torch.softmax((scores / math.sqrt(D)).masked_fill_(blocked, -torch.inf), dim=-1).to(q.dtype)
    weights = weights.view(B, N, S, S)
    if keep is not None:
        weights = tag(_dropped(weights, keep, p), "attention.dropped")
    return _context(weights, v_rows, S)


def attention_sdpa(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, keep: Keep, p: float) -> Tensor:
    """PyTorch's fused attention: nothing quadratic is kept. With dropout on the weights the unfused form runs, since
    the fused kernels draw masks that depend on the layout."""
    if keep is not None:
        return attention_unfused(q, k, v, documents, keep, p)
    tag(q, "attention.q"), tag(k, "attention.k"), tag(v, "attention.v")
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    mask = None if documents is None else allowed(q.shape[2], documents, q.device)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None,
                                                  enable_gqa=q.shape[1] != k.shape[1])
    return out.permute(2, 0, 1, 3)
