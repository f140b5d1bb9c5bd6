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
        weights = dropout(weights, keep(weights.shape), p, "attention.softmax_mask")
    return (weights @ v_BNSD).permute(2, 0, 1, 3).to(q.dtype)


def attention_unfused(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, keep: Keep, p: float) -> Tensor:
    """Two batched products with a softmax between, as the papers of 2021-22 ran it.

    Keeps q, k, v, the softmax output, and with dropout its mask and its output: the 5as^2b bytes of
    arXiv:2205.05198, section 4.1.
    """
    S, B, N, D = q.shape
    G = k.shape[2]
    # The N / G queries of a group stand as extra rows, so that keys and values are never repeated.
    q_rows = q.view(S, B, G, N // G, D).permute(1, 2, 3, 0, 4).reshape(B * G, N // G * S, D)
    k_rows = k.permute(1, 2, 0, 3).reshape(B * G, S, D)
    v_rows = v.permute(1, 2, 0, 3).reshape(B * G, S, D)
    for rows, name in ((q_rows, "attention.q"), (k_rows, "attention.k"), (v_rows, "attention.v")):
        tag(rows, name)
    blocked = ~allowed(S, documents, q.device)
    bias = torch.zeros(blocked.shape, dtype=q.dtype, device=q.device).masked_fill_(blocked, -torch.inf)
    bias = bias[:, :, None].expand(-1, G if documents is not None else 1, N // G, S, S).reshape(-1, N // G * S, S)
    scores = torch.baddbmm(bias, q_rows, k_rows.transpose(1, 2), alpha=1 / math.sqrt(D))
    weights = tag(torch.softmax(scores, dim=-1), "attention.softmax").view(B, N, S, S)
    if keep is not None:
        weights = tag(dropout(weights, keep(weights.shape), p, "attention.softmax_mask"), "attention.dropped")
    context = torch.bmm(weights.view(B * G, N // G * S, S), v_rows)
    return context.view(B, G, N // G, S, D).permute(3, 0, 1, 2, 4).reshape(S, B, N, D)


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
