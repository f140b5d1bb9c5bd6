"""Times of single kernels on one device: matrix products by size, other operations by bytes, overheads.

Each time is the lower quartile of several samples, since other work on the machine only ever adds to them; of calls
on SETS operands in turn, so that only small ones are found in cache, as in a step.
"""

import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from common.device import Device
from common.kernels import dropout  # noqa: F401  defines the operation that draws masks
from common.predict.machine import Kernel, Product
from common.trace.work import flops, traffic
from infra.rank_context import RankContext

aten = torch.ops.aten
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
          "fp16": torch.float16}  # fp8 has a product of its own
WIDTH = 256  # of the rows that row-wise operations work on
SETS = 4
SAMPLE = 1e-3  # seconds of calls that one sample holds at least


@dataclass(frozen=True)
class Plan:
    """What to measure. products: (precision, layout, m, n, k). elements: sizes of other operations. attention:
    (batch, heads, sequence, head dim). precision: of the other operations. seconds: for each item."""

    products: tuple[tuple[str, str, int, int, int], ...]
    elements: tuple[int, ...]
    attention: tuple[tuple[int, int, int, int], ...]
    precision: str
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What one rank found. launch: seconds, see common/predict/machine.py."""

    products: tuple[Product, ...]
    kernels: tuple[Kernel, ...]
    launch: float


def measure_device(context: RankContext, plan: Plan) -> Measured:
    """Measures the plan on this rank's device, all ranks of the group at the same time."""
    device = context.device
    show = Progress(context.leads, len(plan.products) + len(plan.elements) * 26 + len(plan.attention) * 5)
    # Before anything counts: threads start, clocks rise.
    seconds_of(product(device, "fp32", "nn", 256, 256, 256), device, 5 * plan.seconds)
    products = []
    for precision, layout, m, n, k in plan.products:
        show.step(f"products in {precision}, ranks at once: {context.size}")
        dist.barrier()
        work = turns([product(device, precision, layout, m, n, k) for _ in range(SETS)])
        products.append(Product(precision, layout, m, n, k, seconds_of(work, device, plan.seconds)))
    kernels = []
    for same in zip(*(_operations(device, plan) for _ in range(SETS)), strict=True):
        name, func, args, kwargs = same[0]
        show.step(f"other operations, ranks at once: {context.size}")
        dist.barrier()
        with torch.no_grad():
            out = func(*args, **kwargs)
            moved, done = sum(traffic(func, args, kwargs, out)), flops(func, args, kwargs, out)
            seconds = seconds_of(turns([partial(func, *a, **k) for _, func, a, k in same]), device, plan.seconds)
        kernels.append(Kernel(name, plan.precision, moved, done, seconds))
    dist.barrier()
    found = Measured(tuple(products), tuple(kernels), launch_overhead(device))
    show.end()
    return found


def mean(found: list[Measured]) -> Measured:
    """The mean over ranks that measured the same things at once."""
    def over(rows: tuple) -> tuple:
        return tuple(replace(same[0], seconds=statistics.mean(item.seconds for item in same)) for same in rows)

    return Measured(over(tuple(zip(*(f.products for f in found), strict=True))),
                    over(tuple(zip(*(f.kernels for f in found), strict=True))),
                    statistics.mean(f.launch for f in found))


def turns(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One call of these after the other, over and over."""
    going = itertools.cycle(calls)
    return lambda: next(going)()


def seconds_of(work: Callable[[], Any], device: Device, seconds: float) -> float:
    """Seconds of one call: the lower quartile of at least five samples, each of a millisecond of calls or more."""
    work()
    device.synchronize()
    once = min(_batch(work, device, 1) for _ in range(3))  # the first calls of a shape may also choose a kernel
    calls = max(1, math.ceil(SAMPLE / max(once, 1e-9)))
    samples: list[float] = []
    begin = time.perf_counter()
    while len(samples) < 5 or time.perf_counter() - begin < seconds:
        samples.append(_batch(work, device, calls) / calls)
    return lower_quartile(samples)


def lower_quartile(samples: list[float]) -> float:
    return sorted(samples)[(len(samples) - 1) // 4]


def _batch(work: Callable[[], Any], device: Device, calls: int) -> float:
    """Seconds of `calls` calls; on a GPU by its own clock, which still counts its waits for a host that is slower."""
    if device.kind == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - begin


def product(device: Device, precision: str, layout: str, m: int, n: int, k: int) -> Callable[[], Tensor]:
    """A call of the matrix product (m, k) x (k, n) with operands stored as `layout` says; fp8 takes nt alone.

    Of tn, which is a weight gradient, the result is added to what is there.
    """
    at = device.torch_device
    if precision == "fp8":
        a, b = (torch.randn(size, k, device=at).to(torch.float8_e4m3fn) for size in (m, n))
        one = torch.ones((), device=at)
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    left, right = operands(at, DTYPES[precision], layout, m, n, k)
    out = torch.zeros(m, n, device=at, dtype=left.dtype)
    if layout == "tn":
        return lambda: out.addmm_(left, right)
    return lambda: torch.mm(left, right, out=out)


def operands(at: torch.device, dtype: torch.dtype, layout: str, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Random (m, k) and (k, n); t in `layout` marks the one that is stored transposed."""
    def stored(rows: int, columns: int, transposed: bool) -> Tensor:
        if transposed:
            return torch.randn(columns, rows, device=at).to(dtype).t()
        return torch.randn(rows, columns, device=at).to(dtype)

    return stored(m, k, layout[0] == "t"), stored(k, n, layout[1] == "t")


def launch_overhead(device: Device) -> float:
    """Seconds from one kernel to the next where there is nothing to do: on a GPU in a graph, without the host."""
    x = torch.zeros(1, device=device.torch_device)
    if device.kind == "cpu":
        with torch.no_grad():
            return seconds_of(lambda: aten.add.Tensor(x, x), device, 0.1)
    kernels = 200
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            x.add_(1)
    return seconds_of(graph.replay, device, 0.2) / kernels


def _operations(device: Device, plan: Plan) -> Iterator[tuple[str, Any, tuple, dict]]:
    """(name in traces, operation, arguments, keywords) of everything but plain products."""
    dtype = DTYPES[plan.precision]
    for elements in plan.elements:
        yield from _named(_row_wise(device.torch_device, dtype, elements // WIDTH))
        yield from _named(_of_parameters(device.torch_device, elements))
    for shape in plan.attention:
        yield from _named(_attention(device, dtype, *shape))


def _named(calls: Iterator[tuple]) -> Iterator[tuple[str, Any, tuple, dict]]:
    for func, args, *rest in calls:
        keywords = rest[0] if rest else {}
        yield rest[1] if len(rest) > 1 else f"{func.namespace}.{func.overloadpacket.__name__}", func, args, keywords


def _row_wise(at: torch.device, dtype: torch.dtype, rows: int) -> Iterator[tuple]:
    """Calls on (rows, WIDTH), as in the layers and the loss."""
    x, y, z = (torch.randn(rows, WIDTH, device=at).to(dtype) for _ in range(3))
    weight, bias = torch.ones(WIDTH, device=at, dtype=dtype), torch.zeros(WIDTH, device=at, dtype=dtype)
    keep = torch.rand(rows, WIDTH, device=at) > 0.1
    yield aten.copy_.default, (y.clone(), x)
    yield aten.add.Tensor, (x, y)
    yield aten.add_.Tensor, (x.clone(), torch.zeros_like(x))
    yield aten.mul.Tensor, (x, y)
    yield aten.mul_.Scalar, (x.clone(), 1.0)
    yield aten.zero_.default, (x.clone(),)
    yield aten.stack.default, ([x, y],)
    yield aten.clone.default, (x.t(),), {"memory_format": torch.contiguous_format}
    yield aten.addcmul.default, (x, y, z)
    yield aten.sub.Tensor, (x, y[:, :1])
    yield aten.exp.out, (x,), {"out": y.clone()}, "aten.exp_"  # in place it would leave the finite numbers
    yield aten.sum.dim_IntList, (x, [0])
    yield aten.amax.default, (x, [-1])
    yield aten.gelu.default, (x,), {"approximate": "tanh"}
    yield aten.gelu_backward.default, (y, x), {"approximate": "tanh"}
    yield aten.native_layer_norm.default, (x, [WIDTH], weight, bias, 1e-5)
    _, average, scale = aten.native_layer_norm(x, [WIDTH], weight, bias, 1e-5)
    yield (aten.native_layer_norm_backward.default,
           (y, x, [WIDTH], average, scale, weight, bias, [True, True, True]))
    yield aten._softmax.default, (x, -1, False)
    yield aten._softmax_backward_data.default, (y, aten._softmax(x, -1, False), -1, dtype)
    yield aten._to_copy.default, (keep.view(torch.uint8),), {"dtype": dtype}
    yield aten.masked_fill_.Scalar, (x.clone(), keep, 0.0)
    yield torch.ops.common.dropout_mask.default, (1, 1, [0], 0, "", [], 0, rows, rows, WIDTH, 26, at)
    table, tokens = x, torch.randint(0, rows, (rows,), device=at)
    yield aten.embedding.default, (table, tokens)
    yield aten.embedding_dense_backward.default, (y, tokens, rows, -1, False)


def _of_parameters(at: torch.device, elements: int) -> Iterator[tuple]:
    """The update and the norm, in fp32 whatever the model has."""
    weights, gradients, first, second = ([torch.randn(elements, device=at).abs()] for _ in range(4))
    steps = [torch.ones((), device=at)]
    yield (aten._fused_adamw_.default, (weights, gradients, first, second, [], steps),
           {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False,
            "maximize": False})
    yield aten._foreach_norm.Scalar, (gradients,)


def _attention(device: Device, dtype: torch.dtype, b: int, n: int, s: int, d: int) -> Iterator[tuple]:
    """Fused attention, whole square counted, and the two batched products of the unfused one."""
    q, k, v, g = (torch.randn(b, n, s, d, device=device.torch_device).to(dtype) for _ in range(4))
    if device.kind == "cpu":
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        yield aten._scaled_dot_product_flash_attention_for_cpu.default, (q, k, v, 0.0, True)
        yield (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
               (g, q, k, v, out, sums, 0.0, True))
    else:
        out, sums, starts_q, starts_k, most_q, most_k, seed, offset, _ = (
            aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True))
        yield aten._scaled_dot_product_flash_attention.default, (q, k, v, 0.0, True)
        yield (aten._scaled_dot_product_flash_attention_backward.default,
               (g, q, k, v, out, sums, starts_q, starts_k, most_q, most_k, 0.0, True, seed, offset))
    heads = [x.reshape(b * n, s, d) for x in (q, k, v)]
    scores = torch.randn(b * n, s, s, device=device.torch_device).to(dtype)
    yield aten.baddbmm.default, (scores[:1].expand_as(scores), heads[0], heads[1].transpose(1, 2)), {"alpha": 0.1}
    yield aten.bmm.default, (scores, heads[2])
    yield aten.bmm.default, (heads[0].transpose(1, 2), scores)


class Progress:
    """Says what is measured: a line that moves on a terminal, a line for each kind of item elsewhere."""

    def __init__(self, leads: bool, total: int) -> None:
        self.leads, self.total, self.done = leads, total, 0
        self.moves, self.shown, self.at = sys.stdout.isatty(), "", 0.0

    def step(self, what: str) -> None:
        self.done += 1
        if not self.leads:
            return
        if self.moves and time.monotonic() - self.at > 0.3:
            self.at = time.monotonic()
            print(f"\r  {what}: {min(self.done / self.total, 1):.0%}".ljust(50), end="", flush=True)
        elif not self.moves and what != self.shown:
            print(f"  {what}", flush=True)
        self.shown = what

    def end(self) -> None:
        if self.leads and self.moves:
            print("\r" + " " * 50 + "\r", end="", flush=True)
