"""What one operation costs: floating-point operations, bytes read, bytes written.

FLOPs are those of matrix products and attention, two per multiply-add, from the formulas of
torch.utils.flop_counter. Attention counts the whole square, causal or not: 4 b s^2 h forward, as
arXiv:2205.05198, appendix A, does; the backward of fused attention makes the scores again, so it counts five
products where the unfused one runs four. Bytes are those of a kernel that reads each input once and writes
each output once; views and allocations cost nothing.
"""

from functools import cache
from math import prod

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from common.trace.live import tensors

aten = torch.ops.aten


def _attention(query, key, *args, **kwargs) -> int:
    """Two products, scores and weighted sum, of (b, n, s, d) with (b, n or fewer, k, d)."""
    b, n, s, d = query.shape
    return 2 * 2 * b * n * s * key.shape[2] * d


def _attention_backward(grad_out, query, key, *args, **kwargs) -> int:
    """Scores made again, then the gradients of the weights, values, queries and keys."""
    return _attention(query, key) // 2 * 5


FLOPS = {
    **flop_registry,
    aten.addmm_: flop_registry[aten.addmm],
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
RENAMES = {aten._unsafe_view, aten._reshape_alias, aten.detach, aten.lift_fresh}  # views in fact
OVERWRITES = {aten.copy_, aten.fill_, aten.zero_, aten.random_, aten.normal_}  # write their target unread
LOOKUPS = {aten.embedding, aten.gather, aten.index, aten.index_select}  # read as much of a table as they return
SCATTERS = {aten.scatter_add_: 3, aten.scatter_: 3}  # touch as much of their target as this argument holds


@cache
def free(func: torch._ops.OpOverload) -> bool:
    """Whether the operation runs nothing: a view, an allocation, a query."""
    returns = func._schema.returns
    view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return view or func.namespace == "prim" or func.overloadpacket in ALLOCATIONS | RENAMES


def flops(func: torch._ops.OpOverload, args, kwargs, out) -> int:
    formula = FLOPS.get(func.overloadpacket)
    return formula(*args, **kwargs, out_val=out) if formula else 0


@cache
def _written(func: torch._ops.OpOverload) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and keywords of the arguments that the operation writes to."""
    marked = [(i, a) for i, a in enumerate(func._schema.arguments)
              if a.alias_info is not None and a.alias_info.is_write]
    return tuple(i for i, a in marked if not a.kwarg_only), tuple(a.name for _, a in marked if a.kwarg_only)


def size(x: Tensor) -> int:
    """Bytes that a tensor's elements take, those repeated by expansion counted once."""
    return prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride) * x.itemsize


def touched(func: torch._ops.OpOverload, args, kwargs, out) -> tuple[list[tuple[Tensor, int]], list[tuple[Tensor, int]]]:
    """What is read and what is written: tensors, each with its bytes."""
    packet = func.overloadpacket
    places, names = _written(func)
    targets = [x for i in places if i < len(args) for x in tensors(args[i])]
    outs = [x for name in names for x in tensors(kwargs.get(name))]
    mine = {id(x) for x in targets + outs}
    sources = {id(x): x for x in tensors([*args, *kwargs.values()]) if id(x) not in mine}
    if packet in SCATTERS:
        hit = size(args[SCATTERS[packet]])
        return [*_sized(sources.values()), (args[0], hit)], [(args[0], hit)]
    made = _sized(x for x in tensors(out) if id(x) not in mine)
    if packet in LOOKUPS:
        return _sized(x for x in sources.values() if x is not args[0]) + [(args[0], sum(n for _, n in made))], made
    read = [*sources.values(), *([] if packet in OVERWRITES else targets)]
    return _sized(read), made + _sized(targets + outs)


def _sized(xs) -> list[tuple[Tensor, int]]:
    return [(x, size(x)) for x in xs]


def traffic(func: torch._ops.OpOverload, args, kwargs, out) -> tuple[int, int]:
    """Bytes read and bytes written."""
    reads, writes = touched(func, args, kwargs, out)
    return sum(n for _, n in reads), sum(n for _, n in writes)
