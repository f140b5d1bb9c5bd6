"""Operations one by one: fused attention, kernels bound by memory, fused kernels and their parts, measured
tables."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.predict.compute import Compute, shape_of
from common.predict.hardware import cluster, clusters
from common.predict.machine import Kernel
from common.predict.products import Shape
from common.trace.record import ABSORBED, Operation

GPUS = {
    record.accelerator.name: Compute(record.accelerator) for record in clusters() if record.accelerator.tiles
}
A100 = Compute(cluster("dgx_a100_40gb").accelerator)
BARE = replace(
    cluster("dgx_a100_40gb").accelerator, tiles=(), products=(), kernels=()
)  # nothing measured, like a CPU
FORWARD = "aten._scaled_dot_product_flash_attention"
BACKWARD = f"{FORWARD}_backward"


def op(
    name: str = "aten.mul",
    read: int = 0,
    written: int = 0,
    flops: int = 0,
    inputs=(),
    parts=(),
    dtype="bfloat16",
    phase: str = "forward",
) -> Operation:
    return Operation(name, phase, "layers.0.mlp", inputs, (), dtype, flops, read, written, parts)


def attention(
    length: int, dim: int, heads: int = 64, name: str = FORWARD, dtype: str = "bfloat16"
) -> Operation:
    """Fused, on the whole square as traces count it: 4 s^2 d for each head, and five products of 2 s^2 d
    backward."""
    tensor, query = heads * length * dim * 2, (1, heads, length, dim)
    products = 2 if name == FORWARD else 5
    return op(name, 3 * tensor, tensor, products * 2 * length**2 * dim * heads, (query,) * 3, dtype=dtype)


def mm(m: int, n: int, k: int, dtype: str = "bfloat16", **more) -> Operation:
    return op("aten.mm", 2 * (m * k + k * n), 2 * m * n, 2 * m * n * k, ((m, k), (k, n)), dtype=dtype, **more)


def causal_rate(gpu: Compute, length: int, dim: int, name: str = FORWARD) -> float:
    """Share of the dense peak, of the FLOPs under the causal mask, as the papers of FlashAttention time it:
    16k tokens, hidden size 2,048."""
    operation = attention(length, dim, 2048 // dim * 16384 // length, name)
    return operation.flops / 2 / gpu.seconds(operation) / gpu.accelerator.peak["bf16"]


def test_fused_attention_runs_at_the_rates_that_its_paper_states():
    """arXiv:2307.08691, abstract: 50 to 73 % of the peak of an A100, of the FLOPs that the mask leaves."""
    assert 0.50 < causal_rate(A100, 2048, 128) < 0.73
    assert 0.60 < causal_rate(A100, 16384, 128) < 0.73
    assert causal_rate(A100, 16384, 128, BACKWARD) == pytest.approx(0.63 * 0.9, abs=0.03)


def test_fused_attention_on_h100_runs_as_measured():
    """arXiv:2407.08608, figure 5, FlashAttention-2 with the causal mask, head dim 128: TFLOP/s by length."""
    h100 = GPUS[cluster("dgx_h100").accelerator.name]
    for length, tera in {512: 191, 16384: 335}.items():
        assert causal_rate(h100, length, 128) * 989 == pytest.approx(tera, rel=0.10)


@pytest.mark.parametrize("name", [name for name, gpu in GPUS.items() if "bf16" in gpu.accelerator.peak])
def test_fused_attention_is_slower_backward_and_with_narrow_heads_and_short_sequences(name):
    gpu = GPUS[name]
    wide = causal_rate(gpu, 8192, 128)
    assert wide < 1 and causal_rate(gpu, 8192, 64) < wide and causal_rate(gpu, 512, 128) < wide
    assert causal_rate(gpu, 8192, 128, BACKWARD) < wide
    assert gpu.seconds(attention(8192, 128)) < gpu.seconds(mm(8192, 64 * 128, 4 * 8192))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([64, 512, 2048, 8192]),
    st.sampled_from([64, 80, 128]),
    st.sampled_from([1, 16]),
    st.sampled_from([FORWARD, BACKWARD]),
    st.sampled_from(sorted(GPUS)),
)
def test_fused_attention_is_never_faster_than_half_the_square_at_the_peak(length, dim, heads, name, gpu):
    device = GPUS[gpu].accelerator
    operation = attention(length, dim, heads, name, "float16")
    took = GPUS[gpu].seconds(operation)
    assert took > operation.flops / 2 / device.peak["fp16"]
    assert took > (operation.read + operation.written) / device.memory_bandwidth


@pytest.mark.parametrize("name", GPUS)
def test_element_wise_kernels_move_bytes(name):
    gpu = GPUS[name]
    large, small = gpu.seconds(op(read=2 << 30, written=1 << 30)), gpu.seconds(op(read=4, written=4))
    share = (3 << 30) / large / gpu.accelerator.memory_bandwidth
    assert 0.75 < share < 0.95
    assert (
        1e-6 < small < 10e-6
    )  # a kernel of nothing: NVIDIA's blog on CUDA graphs sees 3.8 us one after the other
    assert gpu.seconds(op(read=4 << 30, written=2 << 30)) / large == pytest.approx(2, rel=1e-2)


def test_norms_read_their_input_twice_backward():
    both = [
        A100.seconds(op(f"aten.{name}", read=2 << 30, written=1 << 30))
        for name in ("native_layer_norm", "native_layer_norm_backward")
    ]
    assert both[1] / both[0] == pytest.approx(5 / 3, rel=0.01)


def test_what_a_gpu_does_not_run_is_free_there_and_costs_its_parts_on_a_cpu():
    parts = (op("aten.copy_", 1 << 20, 1 << 20), op("aten.add", 2 << 20, 1 << 20))
    absorbed = op(ABSORBED, parts=parts)
    assert A100.seconds(absorbed) == 0.0
    cpu = Compute(BARE)
    assert cpu.seconds(absorbed) == pytest.approx(sum(map(cpu.seconds, parts))) and cpu.seconds(absorbed) > 0


def test_parts_of_a_fused_kernel_add_up_on_a_cpu_and_are_one_kernel_on_a_gpu():
    parts = tuple(op(f"aten.{name}", 1 << 24, 1 << 24) for name in ("add", "gelu", "mul"))
    fused = op("common.bias_gelu", 1 << 24, 1 << 24, parts=parts)
    cpu = Compute(BARE)
    assert cpu.seconds(fused) == pytest.approx(sum(map(cpu.seconds, parts)))
    assert A100.seconds(fused) == A100.seconds(parts[0])


def test_products_of_one_kernel_are_priced_as_one():
    """Queries, keys and values: three products of 1,024 columns take as long as one of 3,072 with the same
    bytes."""
    whole = mm(2048, 3072, 1024)
    parts = tuple(mm(2048, 1024, 1024) for _ in range(3))
    fused = op("common.linear", whole.read, whole.written, whole.flops, parts=parts)
    assert A100.seconds(fused) == A100.seconds(whole) < sum(map(A100.seconds, parts))


@pytest.mark.parametrize(
    "cluster_name, dtype, words",
    [
        ("dgx1_v100_32gb", "bfloat16", "precision 'bf16' is not available on NVIDIA V100"),
        ("selene", "float8_e4m3fn", "precision 'fp8' is not available on NVIDIA A100"),
    ],
)
def test_a_precision_that_the_accelerator_lacks_is_refused(cluster_name, dtype, words):
    gpu = Compute(cluster(cluster_name).accelerator)
    for operation in (mm(64, 64, 64, dtype), attention(64, 64, dtype=dtype)):
        with pytest.raises(ValueError, match=words):
            gpu.seconds(operation)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: torch.mm(torch.ones(3, 5), torch.ones(5, 7)), "aten.mm"),
        (lambda: torch.addmm(torch.ones(7), torch.ones(3, 5), torch.ones(5, 7)), "aten.addmm"),
        (lambda: torch.bmm(torch.ones(4, 3, 5), torch.ones(4, 5, 7)), "aten.bmm"),
        (
            lambda: torch.baddbmm(torch.ones(4, 3, 7), torch.ones(4, 3, 5), torch.ones(4, 5, 7)),
            "aten.baddbmm",
        ),
    ],
)
def test_sizes_are_read_off_the_operands_that_torch_gets(call, name):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func, tuple(tuple(x.shape) for x in args if isinstance(x, torch.Tensor))))
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    inputs = next(shapes for func, shapes in seen if f"aten.{func.overloadpacket.__name__}" == name)
    shape = shape_of(op(name, inputs=inputs))
    assert shape == Shape(3, 7, 5, 4 if "b" in name.removeprefix("aten.") else 1)


def test_layouts_are_those_of_linear_layers():
    assert [shape_of(mm(2, 3, 4, phase=phase)).layout for phase in ("forward", "recompute", "backward")] == [
        "nt",
        "nt",
        "nn",
    ]
    assert shape_of(mm(2, 3, 4, phase="backward"), op("common.weight_gradient")).layout == "tn"


def test_a_measured_operation_takes_what_was_measured():
    """A table that follows seconds = 1e-9 bytes^1.1: read off exactly at and between its points, at its last
    rate beyond."""
    law = {size: 1e-9 * size**1.1 for size in (10**4, 10**6, 10**8)}
    device = replace(
        BARE, kernels=tuple(Kernel("aten.exp", "fp32", size, 0, took) for size, took in law.items())
    )
    cpu = Compute(device)
    for size in (10**4, 3 * 10**4, 10**6, 2 * 10**7, 10**8):
        assert cpu.seconds(op("aten.exp", read=size // 2, written=size // 2)) == pytest.approx(
            1e-9 * size**1.1
        )
    assert cpu.seconds(op("aten.exp", read=10**9)) == pytest.approx(10 * law[10**8])
    assert 0.1 * law[10**4] <= cpu.seconds(op("aten.exp", read=1)) < law[10**4]


def test_products_of_one_name_take_the_rate_of_those_as_dense():
    """Two measured thin, at 1 GFLOP/s, two dense, at 50: FLOPs for each byte choose among them."""
    rows = [(10**6, 10**6, 1e9), (4 * 10**6, 4 * 10**6, 1e9), (10**6, 10**8, 5e10), (10**7, 10**9, 5e10)]
    cpu = Compute(
        replace(
            BARE,
            kernels=tuple(
                Kernel("aten.bmm", "fp32", size, flops, flops / rate) for size, flops, rate in rows
            ),
        )
    )
    assert cpu.seconds(op("aten.bmm", read=10**6, flops=2 * 10**6)) == pytest.approx(2e-3)
    assert cpu.seconds(op("aten.bmm", read=10**6, flops=2 * 10**8)) == pytest.approx(4e-3)


def test_a_measured_copy_says_the_bandwidth():
    device = replace(BARE, kernels=(Kernel("aten.copy_", "fp32", 10**9, 0, 0.1),))
    cpu = Compute(device)
    assert cpu.bandwidth == pytest.approx(1e10)
    assert cpu.seconds(op(read=10**10)) == pytest.approx(1.0, rel=1e-4)
