"""Records of one's own machine: what is timed, what is counted, and a record that reads back."""

import math
import socket
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from common.device import Device, physical_cores
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.predict.hardware import cluster
from common.predict.hardware_file import dumps
from common.predict.iteration import predict
from common.predict.machine import Collective, Kernel, Product
from common.trace.work import free, traffic
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, build, train_step
from infra import measure as command
from infra.measure import Measure, main, plan, target
from infra.measure_device import (
    WIDTH,
    Measured,
    Plan,
    lower_quartile,
    mean,
    measure_device,
    operands,
    product,
    seconds_of,
)
from infra.measure_dispatch import meet, on, overhead_on, tiny
from infra.measure_links import measure_links, slowest
from infra.measure_record import accelerator, last_cache, node, rounded, value
from infra.timed_steps import on_rank
from tests.distributed import ranks

CPU = Device("cpu")
SMALL = Plan((("fp32", "nt", 64, 32, 16), ("fp32", "tn", 64, 32, 16), ("bf16", "nt", 64, 32, 16)), (2**14, 2**18),
             ((2, 3, 64, 32),), "fp32", 0.001)


@pytest.fixture(scope="module")
def pair() -> list[Measured]:
    return ranks(2, measure_device, SMALL)


def test_a_call_takes_as_long_as_it_takes():
    seconds = seconds_of(lambda: time.sleep(0.004), CPU, 0.01)
    assert 0.004 <= seconds < 0.008


def test_disturbed_samples_do_not_count():
    assert lower_quartile([5.0, 1.0, 1.1, 90.0, 1.2]) == 1.1
    assert lower_quartile([2.0]) == 2.0


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_operands_are_stored_as_the_layout_says(layout):
    left, right = operands(torch.device("cpu"), torch.float64, layout, 5, 7, 3)
    assert left.shape == (5, 3) and right.shape == (3, 7)
    for x, letter in ((left, layout[0]), (right, layout[1])):
        assert x.is_contiguous() == (letter == "n") and x.t().is_contiguous() == (letter == "t")
    assert product(CPU, "bf16", layout, 5, 7, 3)().shape == (5, 7)
    assert product(CPU, "bf16", layout, 5, 7, 3)().dtype == torch.bfloat16


def test_ranks_measure_the_same_at_once(pair):
    assert len(pair) == 2
    for found in pair:
        assert [(p.precision, p.layout, p.m, p.n, p.k) for p in found.products] == list(SMALL.products)
        assert all(0 < item.seconds < 1 for item in (*found.products, *found.kernels))
        assert 1e-8 < found.launch < 1e-3
        # No core makes more than two 512-bit multiply-adds at 6 GHz.
        assert all(item.rate < physical_cores() * 64 * 6e9 for item in found.products)
    assert [k.name for k in pair[0].kernels] == [k.name for k in pair[1].kernels]


def test_operations_count_their_bytes_and_flops_as_traces_do(pair):
    elements, kernels = 2**18, pair[0].kernels
    large = {k.name: k for k in kernels if k.name != "aten.bmm"}
    for name, arrays in {"aten.add": 3, "aten.copy_": 2, "aten.gelu_backward": 3, "aten.exp_": 2,
                         "aten._softmax": 2}.items():
        assert large[name].bytes == arrays * 4 * elements, name
    # AdamW reads weights, gradients and two moments and writes three of them back, and the step once each way.
    assert large["aten._fused_adamw_"].bytes == pytest.approx(7 * 4 * elements, rel=0.3)
    b, n, s, d = SMALL.attention[0]
    assert large["aten._scaled_dot_product_flash_attention_for_cpu"].flops == 4 * b * n * s * s * d
    assert [k.flops for k in kernels if k.name == "aten.bmm"] == [2 * b * n * s * s * d] * 2
    assert large["common.dropout_mask"].bytes == elements


class Moved(TorchDispatchMode):
    """Bytes that each operation of torch's moves while it is active."""

    def __init__(self):
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not free(func):
            name = f"{func.namespace}.{func.overloadpacket.__name__}"
            self.bytes[name] += sum(traffic(func, args, kwargs or {}, out))
        return out


@pytest.mark.parametrize("kernels, dropout", [("paper", 0.1), ("sdpa", 0.0)])
def test_a_laptop_models_operations_are_among_the_measured(pair, kernels, dropout):
    """All but a twentieth of the bytes that a training step moves belong to operations in the record."""
    model = LanguageModelConfig(pattern="[*-]*2", hidden=192, heads=6, vocab=4096, sequence=256, dropout=dropout,
                                attention_dropout=dropout)
    training = build(model, Execution(kernels), AdamWConfig(), SERIAL, seed=0)
    tokens = torch.randint(0, model.vocab, (2, model.sequence + 1))
    positions = torch.arange(model.sequence).expand(2, -1)
    batch = Record(tokens[:, :-1], tokens[:, 1:], torch.ones(2, model.sequence, dtype=torch.bool), positions, None,
                   (0, 1), 0, 0)
    train_step(training, [batch], 1e-3, clip=1.0)  # the first also makes the optimizer's state
    with Moved() as moved:
        train_step(training, [batch], 1e-3, clip=1.0)
    known = {k.name for k in pair[0].kernels} | {"aten.mm", "aten.addmm", "aten.addmm_"}
    missing = {name: size for name, size in moved.bytes.items() if name not in known}
    assert sum(missing.values()) < 0.05 * moved.bytes.total(), missing


def test_larger_operations_take_longer(pair):
    for name in ("aten.copy_", "aten.gelu", "aten._softmax", "aten._fused_adamw_"):
        small, large = (min(found.kernels[i].seconds for found in pair)
                        for i, k in enumerate(pair[0].kernels) if k.name == name)
        assert large > small, name


def test_messages_by_size():
    found = slowest(ranks(2, measure_links, (1000, 2**25), 0.001))
    assert {c.name for c in found} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
    for name in {c.name for c in found}:
        small, large = [c for c in found if c.name == name]
        assert (small.bytes, large.bytes, small.ranks) == (1000, 2**25, 2)
        assert 1e-7 < small.seconds < large.seconds < 1


def test_the_slowest_rank_ends_a_collective_and_the_mean_rank_a_kernel():
    fast, slow = (Collective("send", 2, 8, seconds) for seconds in (1.0, 3.0))
    assert slowest([[fast], [slow]]) == [slow]
    one, three = (Measured((Product("fp32", "nt", 1, 1, 1, s),), (Kernel("aten.add", "fp32", 4, 0, s),), s)
                  for s in (1.0, 3.0))
    both = mean([one, three])
    assert (both.products[0].seconds, both.kernels[0].seconds, both.launch) == (2, 2, 2)


MEASURED = Measured(
    (Product("fp32", "nt", 100, 50, 20, 1e-5), Product("fp32", "tn", 100, 50, 20, 4e-5),
     Product("bf16", "nt", 100, 50, 20, 1e-4)),
    (Kernel("aten.copy_", "fp32", 10**6, 0, 1e-4), Kernel("aten.copy_", "fp32", 10**8, 0, 2e-2),
     Kernel("aten.bmm", "fp32", 10**6, 10**9, 0.0123456)), 2e-6)
PAIR = [Collective(name, 2, size, size / 1e9 + 1e-5) for size in (8, 10**7) for name in ("all_reduce", "send")]


@pytest.fixture
def written(tmp_path):
    part = [{"ranks": 2, "accelerator": accelerator("cpu", MEASURED, 2, "a test")}]
    document = {"description": "d", "nodes": value(1, "1", "this machine"),
                "accelerator": accelerator("cpu", MEASURED, 1, "a test"),
                "node": node("cpu", {2: PAIR}, "a test"), "shared": part}
    path = tmp_path / "mine.toml"
    path.write_text(dumps(document))
    return cluster(str(path))


def test_a_written_record_reads_back_as_measured(written):
    gpu = written.accelerator
    for got, wrote in zip(gpu.products + gpu.kernels[:2], MEASURED.products + MEASURED.kernels[:2], strict=True):
        assert replace(got, seconds=wrote.seconds) == wrote and got.seconds == pytest.approx(wrote.seconds)
    assert gpu.kernels[2].seconds == pytest.approx(0.01235)
    assert gpu.peak == {"bf16": 2e9, "fp32": 2e10}
    assert gpu.memory_bandwidth == 5e9  # of the largest copy
    assert (gpu.launch_overhead, gpu.dispatch_overhead) == (pytest.approx(2e-6), 0)
    assert gpu.multiprocessors == physical_cores() and gpu.tiles == ()
    assert [(c.name, c.bytes) for c in written.node.collectives] == [(n, b) for n in ("all_reduce", "send")
                                                                       for b in (8, 10**7)]
    assert [c.seconds for c in written.node.collectives] == pytest.approx([1.0008e-5, 1.001e-2] * 2, rel=1e-3)


def test_the_link_has_the_rate_of_long_messages_and_the_hop_of_short_ones(written):
    link = written.node.link
    assert link.rate == pytest.approx(10**7 / 1.001e-2, rel=1e-3)
    assert link.latency == pytest.approx(0.5e-5, rel=1e-2)
    assert [(p.name, p.tree_step) for p in link.protocols] == [("gloo", None)]


def test_ranks_of_one_machine_have_what_was_measured_of_so_many_or_wait_their_turn(written):
    assert written.accelerator_for(1) == written.accelerator
    two = written.accelerator_for(2)
    assert two.memory == written.accelerator.memory // 2 and two.peak == written.accelerator.peak
    four = written.accelerator_for(4)
    assert four.peak["fp32"] == two.peak["fp32"] / 2
    assert four.kernels[0].seconds == pytest.approx(2 * two.kernels[0].seconds)
    assert written.node.ranks == 8 * physical_cores() == written.size
    with pytest.raises(ValueError, match=r"ranks are more than mine takes"):
        written.check_size(written.size + 1)


def test_the_overhead_of_an_operation_is_what_makes_a_tiny_step_as_long_as_it_is(written):
    """On a record whose kernels cost nothing, the step's operations times the overhead are the step."""
    where = replace(written, accelerator=(free := replace(written.accelerator, launch_overhead=0.0, products=(), kernels=(),
                                                          peak={"fp32": 1e30}, memory_bandwidth=1e30)), shared={1: free})
    seconds = overhead_on(where, "cpu", 1)
    recipe = tiny(1)
    operations = predict(recipe, *on(where, 1.0)).seconds  # of a second each
    (timed,) = ranks(1, on_rank, recipe, 9)
    assert seconds * operations == pytest.approx(sorted(e - s for s, e in timed.spans)[4], rel=0.5)
    assert 1e-6 < seconds < 1e-3


def test_where_a_rising_function_meets_its_target():
    assert meet(lambda x: 3 * x, 6e-4) == pytest.approx(2e-4)
    assert meet(lambda x: x, 1.0) == pytest.approx(1e-3) and meet(lambda x: 1 + x, 0.5) == pytest.approx(0, abs=1e-9)


def test_the_command_writes_a_record_without_the_name_of_the_host(tmp_path, capfd):
    path = tmp_path / "new" / "mine.toml"
    main(["--quick", "--device", "cpu", "-o", str(path)])
    record = cluster(str(path))
    assert 1e-7 < record.accelerator.dispatch_overhead < 1e-3
    assert record.accelerator.peak["fp32"] > 1e6 and record.node.link.rate > 1e5
    assert set(record.shared) == {1, 2}
    assert {c.name for c in record.node.collectives} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                         "send"}
    text = path.read_text()
    assert socket.gethostname() not in text and f"torch {torch.__version__}" in text
    assert time.strftime("%Y-") in text and str(tmp_path) not in text
    out = capfd.readouterr().out
    assert str(path) in out and "GFLOP/s" in out and "products in fp32" in out


@pytest.mark.parametrize("options, message", [
    ({"name": "My machine"}, r"--name 'My machine' must be small letters, digits and _, such as cpu_\d+core"),
    ({"output": "here.json"}, r"here.json: end the name in .toml"),
    ({"output": __file__ + "/here.toml"}, r"test_measure.py is a file and no folder"),
    ({"device": "tpu"}, r"--device 'tpu' is unknown: use one of cpu, cuda"),
])
def test_options_that_cannot_work_are_refused_before_measuring(options, message):
    if "output" in options:
        options = options | {"output": Path(options["output"])}
    with pytest.raises(ValueError, match=message):
        target(Measure(**({"device": "cpu"} | options)))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(command, "device_count", lambda kind: 0)
    with pytest.raises(ValueError, match="--device 'cuda', but this machine has no such device: use cpu"):
        target(Measure(device="cuda"))


def test_a_file_is_replaced_only_when_asked(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("precious")
    with pytest.raises(SystemExit) as stop:
        main(["-o", str(path), "--device", "cpu"])
    assert stop.value.code == 2 and path.read_text() == "precious"
    assert capsys.readouterr().err.strip().endswith("or give --force to replace it")
    assert target(Measure(output=path, device="cpu", force=True)) == path


def test_the_plan_for_a_cpu_fits_a_minute_and_has_every_layout():
    whole = plan("cpu", 1, quick=False)
    assert {layout for _, layout, *_ in whole.products} == {"nt", "nn", "tn"}
    assert all(product(CPU, precision, "nt", 4, 4, 4)().shape == (4, 4) for precision, *_ in whole.products)
    assert max(2 * m * n * k for *_, m, n, k in whole.products) <= 2.2e9
    assert len(whole.products) + 24 * len(whole.elements) < 200
    assert all(elements % WIDTH == 0 for elements in whole.elements)


def test_the_plan_for_a_gpu_asks_only_for_precisions_it_has(monkeypatch):
    for capability, wanted in {(7, 0): {"fp16", "fp32"}, (8, 0): {"bf16", "fp16", "tf32", "fp32"},
                               (9, 0): {"bf16", "fp16", "tf32", "fp8", "fp32"}}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        chosen = plan("cuda", 1, quick=False)
        assert {precision for precision, *_ in chosen.products} == wanted
        assert chosen.precision == ("bf16" if "bf16" in wanted else "fp16")
        assert all(layout == "nt" for precision, layout, *_ in chosen.products if precision == "fp8")


def test_the_last_cache_is_the_largest_that_the_kernel_names(tmp_path):
    for index, size in enumerate(("32K", "512K", "32M")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(size + "\n")
    assert last_cache(tmp_path) == 32 * 2**20
    assert last_cache(tmp_path / "none") == 2**20


def test_names_of_gpu_records(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(command, "device_count", lambda kind: 8)
    assert command.default_name("cuda") == "8x_h100_80gb_hbm3"


def test_the_gpu_tables_are_whole(monkeypatch, tmp_path):
    """With a stand-in for what the driver says: the tables of a GPU record read back."""
    properties = SimpleNamespace(name="NVIDIA X", multi_processor_count=108, L2_cache_size=40 * 2**20)
    monkeypatch.setattr("infra.measure_record.choose", lambda kind: SimpleNamespace(index=0, backend="nccl"))
    monkeypatch.setattr("infra.measure_record.device_count", lambda kind: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * 2**30, 79 * 2**30))
    host = value(20, "GB/s", "a test")
    monkeypatch.setattr("infra.measure_record.host_link", lambda source: {
        "name": "host", "bandwidth": host, "usable": value(1, "1", "t"), "multicast": value(False, "yes or no", "t"),
        "protocols": {"copy": {key: value(1, unit, "t") for key, unit in
                               (("ring_share", "1"), ("ring_start", "us"), ("ring_step", "us"))}}})
    path = tmp_path / "gpu.toml"
    path.write_text(dumps({"description": "d", "nodes": value(1, "1", "t"),
                           "accelerator": accelerator("cuda", MEASURED, 1, "a test"),
                           "node": node("cuda", {2: PAIR}, "a test")}))
    record = cluster(str(path))
    assert (record.accelerator.memory, record.accelerator.multiprocessors) == (79 * 2**30, 108)
    assert record.accelerator.tiles[0] == (256, 128) and record.node.host.rate == 2e10
    assert record.node.link.protocols[0].name == "nccl" and record.size == 2
    assert "accelerator.tiles" in record.assumed


def test_four_digits_are_kept():
    assert [rounded(x) for x in (123456.0, 0.00012345678, 0.0)] == [123500.0, 0.0001235, 0.0]
    assert math.isfinite(rounded(1e300))
