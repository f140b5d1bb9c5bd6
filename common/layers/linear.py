"""Column- and row-parallel linear layers; sequence parallelism is their mode (arXiv:2205.05198, section 4.2.2).

Column: the weight is cut along its outputs, the input is whole (or its sequence shards are gathered), the output is cut.
Row: the weight is cut along its inputs, the input is cut, the partial outputs are summed (or summed and scattered).
Under sequence parallelism a column layer keeps only its shard of the input and gathers it again in backward; that
gather runs beside the input gradient, and the input gradient's reduction beside the weight gradient.

Shapes: S sequence, B micro-batch, I inputs and O outputs of this rank; s = S / tp under sequence parallelism, else S.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import Function

from common.collectives import (
    all_gather,
    reduce_scatter,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)
from common.kernels.region import fused, kernel
from common.layers.context import Context
from common.parameters import Constant, Facts, Normal, parameter
from common.recompute.meter import tag

_deferred: list[Callable[[], None]] | None = None


@contextmanager
def deferred_weight_gradients():
    """Backward passes run inside put their weight gradients into the yielded list instead of computing them.

    Each entry is a call that accumulates the gradient of one weight or bias. Needs `main_grad` on them.
    """
    global _deferred
    previous, _deferred = _deferred, []
    try:
        yield _deferred
    finally:
        _deferred = previous


def _rows(w: Tensor) -> Tensor:
    """A column layer's weight (..., I) as a matrix (O, I)."""
    return w.reshape(-1, w.shape[-1])


def _columns(w: Tensor) -> Tensor:
    """A row layer's weight (O, ...) as a matrix (O, I)."""
    return w.reshape(w.shape[0], -1)


@kernel("weight_gradient")
@torch.no_grad()
def _add_product(main_OI: Tensor, grad_TO: Tensor, x_TI: Tensor) -> None:
    """Adds grad^T x to a weight's main gradient in place, in its own dtype."""
    if main_OI.dtype == grad_TO.dtype:
        main_OI.addmm_(grad_TO.t(), x_TI)
    else:
        main_OI.add_(grad_TO.t() @ x_TI)


@torch.no_grad()
def _add_sum(main: Tensor, grad_TO: Tensor) -> None:
    """Adds the column sums of grad to a bias's main gradient in place."""
    main.view(-1).add_(grad_TO.sum(0))


def _as_one(name: str, weights: Sequence[Tensor]) -> AbstractContextManager:
    """Products of one input with several weights are one product with the weights joined."""
    return fused(name) if len(weights) > 1 else nullcontext()


def _now_or_later(add: Callable[..., None], *arguments: Tensor) -> None:
    if _deferred is None:
        add(*arguments)
    else:
        _deferred.append(partial(add, *arguments))


def _weight_gradient(weight: Tensor, as_matrix: Callable, grad_TO: Tensor, x_TI: Tensor, needed: bool) -> Tensor | None:
    """A weight's gradient for autograd: None where it is frozen or accumulates in place, now or deferred."""
    if not needed:
        return None
    if hasattr(weight, "main_grad"):
        return _now_or_later(_add_product, as_matrix(weight.main_grad), grad_TO, x_TI)
    return (grad_TO.t() @ x_TI).view_as(weight)


def _bias_gradient(bias: Tensor, grad_TO: Tensor, needed: bool) -> Tensor | None:
    if not needed:
        return None
    if hasattr(bias, "main_grad"):
        return _now_or_later(_add_sum, bias.main_grad, grad_TO)
    return grad_TO.sum(0).view_as(bias)


class _ColumnLinear(Function):
    """One input, any number of weights: x (s, B, I) -> (S, B, O_k) for each weight k."""

    @staticmethod
    def forward(ctx, x, group, scattered, overlap, count, *parameters):
        ctx.save_for_backward(x)
        ctx.group, ctx.scattered, ctx.overlap = group, scattered, overlap
        ctx.weights, ctx.biases = parameters[:count], parameters[count:]
        whole = all_gather(x, group) if scattered else x
        with _as_one("products", ctx.weights):
            return tuple(nn.functional.linear(whole, _rows(w), None if b is None else b.view(-1))
                         for w, b in zip(ctx.weights, ctx.biases, strict=True))

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        count = len(ctx.weights)
        needs = ctx.needs_input_grad[5:5 + count]
        gathering = start_all_gather(x, ctx.group) if ctx.scattered and any(needs) else None
        if gathering and not ctx.overlap:
            gathering.wait()
        grads_TO = [g.reshape(-1, g.shape[-1]) for g in grads]
        reducing = None
        if ctx.needs_input_grad[0]:
            with _as_one("input_gradient", ctx.weights):
                d_whole = grads_TO[0] @ _rows(ctx.weights[0])
                for g, w in zip(grads_TO[1:], ctx.weights[1:], strict=True):
                    d_whole.addmm_(g, _rows(w))
            d_whole = d_whole.view(*grads[0].shape[:-1], -1)
            reducing = start_reduce_scatter(d_whole, ctx.group) if ctx.scattered else \
                start_all_reduce(d_whole, ctx.group, owned=True)
            if not ctx.overlap:
                reducing.wait()
        whole = gathering.wait() if gathering else x
        x_TI = whole.reshape(-1, whole.shape[-1])
        with _as_one("weight_gradient", ctx.weights):
            d_weights = [_weight_gradient(w, _rows, g, x_TI, need)
                         for w, g, need in zip(ctx.weights, grads_TO, needs, strict=True)]
        d_biases = [_bias_gradient(b, g, need)
                    for b, g, need in zip(ctx.biases, grads_TO, ctx.needs_input_grad[5 + count:], strict=True)]
        d_x = reducing.wait() if reducing else None
        return d_x, None, None, None, None, *d_weights, *d_biases


class _RowLinear(Function):
    """x (S, B, I) -> (s, B, O), summed over the group."""

    @staticmethod
    def forward(ctx, x, weight, group, scattered):
        ctx.save_for_backward(x)
        ctx.weight, ctx.group, ctx.scattered = weight, group, scattered
        part = nn.functional.linear(x, _columns(weight))
        return reduce_scatter(part, group) if scattered else start_all_reduce(part, group, owned=True).wait()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grad = all_gather(grad, ctx.group) if ctx.scattered else grad
        grad_TO = grad.reshape(-1, grad.shape[-1])
        d_x = (grad_TO @ _columns(ctx.weight)).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = _weight_gradient(ctx.weight, _columns, grad_TO, x.reshape(-1, x.shape[-1]), ctx.needs_input_grad[1])
        return d_x, d_weight, None, None


def column_linear(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], group, scattered: bool,
                  overlap: bool = True) -> tuple[Tensor, ...]:
    """Column-parallel products of one input (s, B, I) with several weights (..., I); one gather serves all."""
    if torch.compiler.is_compiling() and group.size == 1:
        return tuple(nn.functional.linear(x, _rows(w), None if b is None else b.view(-1))
                     for w, b in zip(weights, biases, strict=True))
    return _ColumnLinear.apply(x, group, scattered, overlap, len(weights), *weights, *biases)


def row_linear(x: Tensor, weight: Tensor, group, scattered: bool) -> Tensor:
    """Row-parallel product of x (S, B, I) and weight (O, ...) -> (s, B, O), the bias left to the caller: it is added once, after the sum."""
    if torch.compiler.is_compiling() and group.size == 1:
        return nn.functional.linear(x, _columns(weight))
    return _RowLinear.apply(x, weight, group, scattered)


class ColumnParallelLinear(nn.Module):
    """Several weights over one input, each cut along its first dim (or `dim`) over the tensor axis.

    shapes: logical weight shapes, the last dim the inputs; a weight (2, F, H) gives (S, B, 2, F/tp). parts: into how many
    parts the tensor axis cuts each weight, when fewer than it has ranks (key-value groups); copies then share a gradient.
    """

    def __init__(self, context: Context, names: Sequence[str], shapes: Sequence[tuple[int, ...]], bias: bool, std: float,
                 input_name: str, dims: Sequence[int] | None = None, parts: Sequence[int | None] | None = None):
        super().__init__()
        self.context, self.names, self.input_name = context, tuple(names), input_name
        for name, shape, dim, part in zip(names, shapes, dims or [0] * len(names), parts or [None] * len(names),
                                          strict=True):
            cut = {"axis": "tp", "dim": dim, "parts": part}
            self._add(name, Facts(tuple(shape), init=Normal(std), **cut))
            self._add(f"{name}_bias", Facts(tuple(shape[:-1]), init=Constant(0), decay=False, **cut) if bias else None)

    def _add(self, name: str, facts: Facts | None) -> None:
        c = self.context
        self.register_parameter(name, facts and parameter(facts, c.layout, c.dtype, c.device))

    def forward(self, x_SBH: Tensor) -> tuple[Tensor, ...]:
        weights = [getattr(self, n) for n in self.names]
        biases = [getattr(self, f"{n}_bias") for n in self.names]
        context = self.context
        outputs = column_linear(tag(x_SBH, self.input_name), weights, biases, context.tp, context.scattered, context.overlap)
        return tuple(y.view(*y.shape[:2], *w.shape[:-1]) for y, w in zip(outputs, weights, strict=True))


class RowParallelLinear(nn.Module):
    """Weight (O, *inputs), cut along dim 1 over the tensor axis; x (S, B, *local inputs) -> (s, B, O)."""

    def __init__(self, context: Context, outputs: int, inputs: tuple[int, ...], bias: bool, std: float, input_name: str):
        super().__init__()
        self.context, self.input_name = context, input_name
        c = context
        self.weight = parameter(Facts((outputs, *inputs), "tp", 1, init=Normal(std)), c.layout, c.dtype, c.device)
        self.bias = None
        if bias:
            facts = Facts((outputs,), partial=c.partial, decay=False, init=Constant(0))
            self.bias = parameter(facts, c.layout, c.dtype, c.device)

    def forward(self, x: Tensor) -> Tensor:
        x = tag(x.reshape(*x.shape[:2], math.prod(x.shape[2:])), self.input_name)
        y = row_linear(x, self.weight, self.context.tp, self.context.scattered)
        if self.bias is None:
            return y
        with fused("residual", joins=True):
            return y + self.bias
