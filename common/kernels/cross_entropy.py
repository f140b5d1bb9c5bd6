"""Cross-entropy over a vocabulary cut along the tensor axis; the whole logits are never gathered.

logits (S, B, V/tp), labels (S, B) over the whole vocabulary, loss (S, B) in at least fp32. Columns at or beyond the
true vocabulary are padding: they take no probability and get no gradient. One tensor of the logits' shape is kept, in at
least fp32: the 4sbv/t bytes of arXiv:2205.05198, section 4.3.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from common.collectives import all_reduce
from common.kernels.norm import upcast
from common.layout import Group
from common.recompute.meter import tag


def cross_entropy_reference(logits_SBV: Tensor, labels_SB: Tensor) -> Tensor:
    """-log softmax(logits)[label] of unsharded, unpadded logits."""
    picked = upcast(logits_SBV).gather(-1, labels_SB[..., None]).squeeze(-1)
    return torch.logsumexp(upcast(logits_SBV), -1) - picked


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, labels, vocab, group):
        first = group.index * logits.shape[-1]
        real = min(max(vocab - first, 0), logits.shape[-1])
        x = upcast(logits)
        if real < logits.shape[-1]:
            x = x.clone() if x is logits else x
            x[..., real:] = -torch.inf
        peak = all_reduce(x.amax(-1, keepdim=True), group, dist.ReduceOp.MAX)
        x = x - peak
        local = labels - first
        mine = (local >= 0) & (local < real)
        local = torch.where(mine, local, 0)
        picked = torch.where(mine, x.gather(-1, local[..., None]).squeeze(-1), 0)
        x.exp_()
        both = all_reduce(torch.stack([x.sum(-1), picked]), group)
        total, picked = both.unbind(0)
        for small in (total, local, mine):
            tag(small, "loss.labels")
        ctx.save_for_backward(tag(x, "loss.logits"), total, local, mine)
        ctx.dtype = logits.dtype
        return total.log() - picked

    @staticmethod
    def backward(ctx, grad):
        exps, total, local, mine = ctx.saved_tensors
        grad = upcast(grad)
        d = exps * (grad / total)[..., None]
        d.scatter_add_(-1, local[..., None], -(grad * mine)[..., None])
        return d.to(ctx.dtype), None, None, None


def cross_entropy(logits_SBV: Tensor, labels_SB: Tensor, vocab: int, group: Group) -> Tensor:
    return _CrossEntropy.apply(logits_SBV, labels_SB, vocab, group)
