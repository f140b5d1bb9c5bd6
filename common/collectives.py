"""Collectives, plain and differentiable. The only autograd functions that communicate, beside the parallel linears.

Everything is out of place and takes its group as an argument. A group of one rank costs nothing: the input comes back.
Sequence-sharded tensors are cut along dim 0. The conjugate pairs are those of arXiv:2205.05198, section 4.2.2:
f / f-bar are `copy_to` / `reduce_from`, g / g-bar are `gather_sequence` / `scatter_sum`.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from common.layout import Group


@dataclass
class Pending:
    """A collective under way; `wait` returns its output once it is complete."""

    output: Tensor
    work: dist.Work | None = None

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.output


def start_all_reduce(x: Tensor, group: Group, op=dist.ReduceOp.SUM, owned: bool = False) -> Pending:
    """Begins a sum (or other `op`) of `x` over `group`; same shape. An `owned` x may be overwritten, which saves a copy."""
    if group.size == 1:
        return Pending(x)
    output = x if owned and x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
    return Pending(output, dist.all_reduce(output, op, group=group.handle, async_op=True))


def start_all_gather(x: Tensor, group: Group, into: Tensor | None = None) -> Pending:
    """Begins joining the group's shards along dim 0: (n, ...) -> (n x size, ...), written to `into` if it is given."""
    if group.size == 1:
        return Pending(x)
    output = x.new_empty(x.shape[0] * group.size, *x.shape[1:]) if into is None else into
    return Pending(output, dist.all_gather_single(output, x.contiguous(), group=group.handle, async_op=True))


def start_reduce_scatter(x: Tensor, group: Group, into: Tensor | None = None) -> Pending:
    """Begins summing `x` over `group`, this rank keeping its slice of dim 0: (n x size, ...) -> (n, ...)."""
    if group.size == 1:
        return Pending(x)
    if x.shape[0] % group.size:
        raise ValueError(f"dim 0 of {tuple(x.shape)} does not divide by the {group.size} ranks of group {group.name}")
    output = x.new_empty(x.shape[0] // group.size, *x.shape[1:]) if into is None else into
    return Pending(output, dist.reduce_scatter_single(output, x.contiguous(), group=group.handle, async_op=True))


def all_reduce(x: Tensor, group: Group, op=dist.ReduceOp.SUM) -> Tensor:
    return start_all_reduce(x, group, op).wait()


def all_gather(x: Tensor, group: Group) -> Tensor:
    return start_all_gather(x, group).wait()


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    return start_reduce_scatter(x, group).wait()


def local_slice(x: Tensor, group: Group) -> Tensor:
    """This rank's slice of dim 0 of a replicated tensor."""
    if x.shape[0] % group.size:
        raise ValueError(f"dim 0 of {tuple(x.shape)} does not divide by the {group.size} ranks of group {group.name}")
    each = x.shape[0] // group.size
    return x.narrow(0, group.index * each, each)


class _CopyTo(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce(grad, ctx.group), None


class _ReduceFrom(Function):
    @staticmethod
    def forward(ctx, x, group):
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _GatherSequence(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx, grad):
        return reduce_scatter(grad, ctx.group), None


class _ScatterSum(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return reduce_scatter(x, group)

    @staticmethod
    def backward(ctx, grad):
        return all_gather(grad, ctx.group), None


def copy_to(x: Tensor, group: Group) -> Tensor:
    """f: identity forward, all-reduce backward. For a replicated input that each rank uses in its own way."""
    return x if group.size == 1 else _CopyTo.apply(x, group)


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """f-bar: all-reduce forward, identity backward. For partial sums whose total every rank then uses alike."""
    return x if group.size == 1 else _ReduceFrom.apply(x, group)


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """g: all-gather of dim 0 forward, reduce-scatter backward."""
    return x if group.size == 1 else _GatherSequence.apply(x, group)


def scatter_sum(x: Tensor, group: Group) -> Tensor:
    """g-bar: reduce-scatter of dim 0 forward, all-gather backward."""
    return x if group.size == 1 else _ScatterSum.apply(x, group)
