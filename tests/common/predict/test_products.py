"""Matrix products against measurements that no constant was fitted to, and what holds for all of them."""

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.predict import products
from common.predict.compute import Compute
from common.predict.hardware import cluster, clusters
from common.predict.machine import Product
from common.predict.products import Shape, joined, sustained

A100, H100, V100 = (
    Compute(cluster(name).accelerator) for name in ("dgx_a100_40gb", "dgx_h100", "dgx1_v100_32gb")
)
GPUS = {
    record.accelerator.name: Compute(record.accelerator) for record in clusters() if record.accelerator.tiles
}
# TFLOP/s of cuBLAS in fp16 for square products of 1024, 1152, ... rows, as users of the matrix-multiplication
# tutorial of Triton report them: triton-lang/triton, issues 3672 (H100) and 1648 (V100). Its clock counts
# more than the kernel, and it empties the cache.
SQUARES = {
    "H100": "121.1 164.5 218.1 245.7 255.9 307.0 369.3 401.1 511.3 466.3 521.4 518.5 533.4 433.4 616.5 "
    "573.9 584.7",
    "V100": "52.4 47.4 53.9 67.3 76.1 59.6 67.3 64.9 75.6 81.8 67.7 71.3 77.5 78.4 76.7 77.9 79.6 79.2 81.3 "
    "79.3 84.3 82.7 82.0 83.0 84.1",
}
AROUND = 10e-6  # seconds that such a clock counts besides the kernel's
# (m, n, k): TFLOP/s. H100: triton-lang/triton, issue 2339; A100: NVIDIA CUTLASS, media/docs/profiler.md.
LONG = [(H100, 2048, 4096, 4096, 613.7), (H100, 2048, 8192, 8192, 721.6), (A100, 3456, 4096, 8192, 235.1)]

shapes = st.builds(
    Shape,
    *[st.sampled_from([1, 8, 64, 100, 256, 300, 1024, 2048, 5120])] * 3,
    st.sampled_from([1, 3, 16, 96]),
)


def squares(name: str) -> dict[int, float]:
    """By size."""
    return {1024 + 128 * i: float(tera) for i, tera in enumerate(SQUARES[name].split())}


def moved(shape: Shape) -> int:
    """Bytes in 16 bits of both factors and the result."""
    return 2 * shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)


def seconds(gpu: Compute, shape: Shape, precision: str = "fp16") -> float:
    return gpu.product(shape, precision, moved(shape))


def rate(gpu: Compute, shape: Shape) -> float:
    """TFLOP/s."""
    return 2e-12 * shape.batch * shape.m * shape.n * shape.k / seconds(gpu, shape)


@pytest.mark.parametrize("name", SQUARES)
def test_square_products_that_others_timed(name):
    gpu = {"H100": H100, "V100": V100}[name]
    within, errors = [], []
    for size, tera in squares(name).items():
        took, ours = 2e-12 * size**3 / tera, seconds(gpu, Shape(size, size, size))
        within.append(abs(took - ours) < AROUND + 0.12 * took)
        if took > 5 * AROUND:
            errors.append(abs(ours / took - 1))
    assert sum(within) >= 0.75 * len(within)
    assert median(errors) < 0.12


@pytest.mark.parametrize("gpu, m, n, k, tera", LONG)
def test_long_products_that_others_timed(gpu, m, n, k, tera):
    assert rate(gpu, Shape(m, n, k)) == pytest.approx(tera, rel=0.10)


def test_one_tile_more_than_a_full_wave_costs_a_step():
    """The example of NVIDIA's Matrix Multiplication Background User's Guide, section 3.2: tiles of (256, 128)
    on an A100 with 108 multiprocessors, full with 9 x 12 of them; the next column needs a second wave, of
    which cuts of k save some."""
    gpu = Compute(replace(cluster("selene").accelerator, tiles=((256, 128),)))
    sizes = [seconds(gpu, Shape(9 * 256, columns * 128, 4096)) for columns in range(11, 26)]
    full, more = sizes[1], sizes[2]
    assert 1.5 < more / full < 2
    assert sizes[0] > 0.97 * full  # a wave that is nearly full takes as long
    assert sizes[13] < 2 * full and sizes[14] > 1.2 * sizes[13]  # 24 columns fill two waves, 25 do not


def test_rate_falls_where_it_was_seen_to_fall():
    """On an H100 with 132 multiprocessors 2048 squared is 128 tiles of (256, 128), 2176 squared 153."""
    measured = squares("H100")
    assert measured[2176] < measured[2048]
    assert rate(H100, Shape(2176, 2176, 2176)) < rate(H100, Shape(2048, 2048, 2048))


@settings(max_examples=150, deadline=None)
@given(shapes, st.sampled_from("mnk"), st.sampled_from([A100, H100, V100]))
def test_time_does_not_fall_with_a_whole_tile_more(shape, size, gpu):
    """But for cuts of k, which the library has for some numbers of parts and not for others."""
    larger = replace(shape, **{size: 256 * (getattr(shape, size) // 256 + 1)})
    assert seconds(gpu, larger) >= seconds(gpu, shape) * (0.9 if size == "k" else 1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(shapes, st.sampled_from([A100, H100, V100]))
def test_a_batch_takes_no_longer_than_its_products_one_by_one(shape, gpu):
    one = replace(shape, batch=1)
    assert seconds(gpu, one) <= seconds(gpu, shape) <= shape.batch * seconds(gpu, one) * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(shapes, st.sampled_from(sorted(GPUS)))
def test_nothing_is_faster_than_the_peak_or_the_memory(shape, name):
    gpu = GPUS[name]
    device = gpu.accelerator
    flops = 2 * shape.batch * shape.m * shape.n * shape.k
    for precision in {"fp32", "fp16", "bf16", "fp8"} & set(device.peak):
        took = gpu.product(shape, precision, moved(shape))
        assert took > flops / device.peak[precision]
        assert took > moved(shape) / device.memory_bandwidth


def test_thin_products_are_bound_by_memory():
    """A vector times a matrix reads the matrix once: 1 GiB."""
    shape = Shape(1, 32768, 16384)
    assert seconds(A100, shape) == pytest.approx(2**30 / (0.83 * 1555e9), rel=0.05)


@pytest.mark.parametrize("gpu, precision", [(V100, "bf16"), (A100, "fp8"), (H100, "nvfp4")])
def test_a_precision_that_the_gpu_lacks_is_refused(gpu, precision):
    with pytest.raises(
        ValueError, match=f"precision '{precision}' is not available on {gpu.accelerator.name}: use one of fp"
    ):
        seconds(gpu, Shape(256, 256, 256), precision)


def test_products_with_two_sizes_in_common_are_one():
    """Queries, keys and values from the same input; and gradients that share their rows."""
    qkv = joined([Shape(512, n, 1024) for n in (1024, 256, 256)])
    assert qkv == (Shape(512, 1536, 1024),)
    assert joined([Shape(512, 64, k) for k in (100, 28)]) == (Shape(512, 64, 128),)
    assert joined([Shape(96, 64, 32)] * 3) == (Shape(96, 192, 32),)
    for apart in (
        [Shape(1, 2, 3), Shape(1, 4, 5)],
        [Shape(8, 8, 8), Shape(8, 8, 8, batch=2)],
        [Shape(8, 8, 8), Shape(8, 8, 8, layout="nn")],
    ):
        assert joined(apart) == tuple(apart)


@settings(deadline=None)
@given(st.lists(st.builds(Shape, *[st.sampled_from([8, 64])] * 3), min_size=1, max_size=4))
def test_joining_keeps_the_work(parts):
    def work(items):
        return sum(2 * s.batch * s.m * s.n * s.k for s in items)

    assert work(joined(parts)) == work(parts)


def test_long_products_run_at_what_the_power_limit_leaves():
    """16384 cubed on an A100 reached 256.5 of 312 TFLOP/s; the same GPU at 330 W less; a made-up one its
    peak."""
    device = cluster("selene").accelerator
    assert sustained(device, "bf16", A100.constants) == pytest.approx(256.5e12)
    bare = replace(device, products=())
    full = sustained(bare, "bf16", A100.constants)
    assert full == pytest.approx(256.5e12, rel=0.01)
    less = sustained(replace(bare, power=330.0), "bf16", A100.constants)
    assert 0.9 * full < less < 0.99 * full
    assert sustained(replace(bare, power=900.0), "bf16", A100.constants) <= device.peak["bf16"]
    assert sustained(replace(bare, name="Abacus"), "bf16", A100.constants) == device.peak["bf16"]
    short = replace(device, products=(Product("bf16", "nn", 1024, 1024, 1024, 2 * 1024**3 / 200e12),))
    assert 180e12 < sustained(short, "bf16", A100.constants) < 200e12


def test_without_tiles_measured_products_say_it():
    """A CPU: 40 GFLOP/s measured long and wide, 5 thin, in the layout of the forward pass; 20 in that of the
    backward."""
    rows = [("nt", 1024, 1024, 1024, 40e9), ("nt", 8, 8, 1024, 5e9), ("nn", 1024, 1024, 1024, 20e9)]
    device = replace(
        cluster("selene").accelerator,
        tiles=(),
        launch_overhead=1e-6,
        products=tuple(Product("fp32", layout, m, n, k, 2 * m * n * k / r) for layout, m, n, k, r in rows),
    )

    def gflops(*sizes, layout="nt"):
        shape = Shape(*sizes, layout=layout)
        return (
            2e-9
            * shape.m
            * shape.n
            * shape.k
            / (products.seconds(shape, "fp32", 0, device, A100.constants, 1e12) - 1e-6)
        )

    assert gflops(1024, 1024, 1024) == pytest.approx(40, rel=0.01)
    assert gflops(8, 8, 1024) == pytest.approx(5, rel=0.01)
    assert 5 < gflops(64, 64, 1024) < 40
    assert gflops(500, 7, 9, layout="nn") == pytest.approx(20)
    assert gflops(500, 7, 9, layout="tn") < 40  # not measured: all that was
    slow = products.seconds(Shape(8, 8, 8), "fp32", 10**9, device, A100.constants, 1e9)
    assert slow == pytest.approx(1.0, rel=1e-5)
