"""Records of named hardware: whole, in SI, sourced; peaks against clocks and units; broken records refused."""

import math
import tomllib

import pytest

from common.predict.hardware import FOLDER, cluster, clusters
from common.predict.hardware_file import dumps
from common.predict.machine import Product
from common.predict.units import UNITS, to_si

RECORDS = {record.name: record for record in clusters()}
GPUS = {name: record for name, record in RECORDS.items() if record.network}
# Multiply-adds of one multiprocessor and clock: tensor cores in 16 bits, and the 32-bit units. Architecture
# whitepapers: V100 8 cores of 64, A100 4 of 256, H100 4 of 512.
PER_CLOCK = {"V100": (512, 64), "A100": (1024, 64), "H100": (2048, 128), "H200": (2048, 128)}


def family(name: str) -> str:
    return next(key for key in (*PER_CLOCK, "B200", "B300") if key in name)


def test_the_records_that_the_compared_rows_need_are_there():
    needed = {"selene", "roce_a100_40gb", "roce_a100_80gb", "jean_zay", "dgx_h100", "h100_96gb_500w", "h100_pcie",
              "dgx_h200", "dgx_b200", "gb200_nvl72", "gb300_nvl72", "dgx1_v100_16gb", "dgx2_v100"}
    assert needed <= set(RECORDS)
    assert set(RECORDS) == {path.stem for path in FOLDER.glob("*.toml")}


@pytest.mark.parametrize("name", RECORDS)
def test_every_value_is_sensible_and_has_a_source(name):
    record = RECORDS[name]
    gpu = record.accelerator
    assert record.description and all(len(source.text) > 8 for source in record.sources.values())
    assert 0.9 < gpu.usable_memory / gpu.memory <= 1
    assert list(gpu.peak.values()) == sorted(gpu.peak.values()) and "fp32" in gpu.peak
    assert 0 < gpu.launch_overhead < 1e-4 and 0 < gpu.dispatch_overhead < 1e-3
    assert gpu.memory_bandwidth > 1e9 and gpu.l2 > 2**18
    for item in gpu.products:
        assert item.rate < gpu.peak_of(item.precision) * 1.001
    assert all(k.bytes / k.seconds < 100 * gpu.memory_bandwidth for k in gpu.kernels)


@pytest.mark.parametrize("name", GPUS)
def test_peaks_are_multiprocessors_times_clock_times_operations_per_clock(name):
    gpu = GPUS[name].accelerator
    if gpu.clock is None:  # Blackwell: no clock is published, so two precisions hold each other
        assert family(gpu.name) in ("B200", "B300")
        assert gpu.peak["fp8"] == 2 * gpu.peak["bf16"] == 4 * gpu.peak["tf32"]
        clock = gpu.peak["bf16"] / (gpu.multiprocessors * 2 * 4096)
        assert 1.8e9 < clock < 2.05e9
        return
    tensor, vector = PER_CLOCK[family(gpu.name)]
    assert gpu.peak["fp16"] == pytest.approx(2 * tensor * gpu.multiprocessors * gpu.clock, rel=3e-3)
    assert gpu.peak["fp32"] == pytest.approx(2 * vector * gpu.multiprocessors * gpu.vector_clock, rel=4e-3)
    for precision, times in {"bf16": 1, "tf32": 0.5, "fp8": 2}.items():
        if precision in gpu.peak:
            assert gpu.peak[precision] == pytest.approx(times * gpu.peak["fp16"], rel=1e-3)


def test_only_later_gpus_have_the_later_precisions():
    having = {p: {family(r.accelerator.name) for r in GPUS.values() if p in r.accelerator.peak}
              for p in ("bf16", "tf32", "fp8", "nvfp4")}
    assert having["bf16"] == having["tf32"] == {"A100", "H100", "H200", "B200", "B300"}
    assert having["fp8"] == {"H100", "H200", "B200", "B300"}
    assert having["nvfp4"] == {"B200", "B300"}
    with pytest.raises(ValueError, match="'bf16' is not available on NVIDIA V100-SXM2-32GB: use one of fp32, fp16"):
        RECORDS["dgx2_v100"].accelerator.peak_of("bf16")


@pytest.mark.parametrize("name, links, each, used", [
    ("selene", 12, 25e9, 20.0e9), ("dgx_h100", 18, 25e9, 20.6e9), ("h800", 8, 25e9, 20.6e9), ("a800", 8, 25e9, 20e9),
    ("dgx1_v100_32gb", 6, 25e9, 20e9), ("gb200_nvl72", 18, 50e9, 40.1e9)])
def test_nvlink_is_its_links_in_one_direction(name, links, each, used):
    link = RECORDS[name].node.link
    assert link.bandwidth == links * each
    assert link.rate == pytest.approx(links * used, rel=1e-3)


@pytest.mark.parametrize("name, cards, bits", [
    ("selene", 8, 200e9), ("dgx_h100", 8, 400e9), ("jean_zay", 4, 100e9), ("gb300_nvl72", 72, 800e9)])
def test_network_cards(name, cards, bits):
    network = RECORDS[name].network
    assert network.nics == cards and network.link.bandwidth == bits / 8
    assert network.rate == pytest.approx(0.96 * cards * bits / 8)
    assert 2e-6 < network.link.latency < 2e-5


def test_memory_bandwidth_is_the_bus_times_its_rate():
    """Bits of the interface times transfers a second: A100 5120 at 2.43 and 3.186 GT/s, V100 4096 at 1.752."""
    for name, bits, rate in (("dgx_a100_40gb", 5120, 2.43e9), ("selene", 5120, 3.186e9), ("dgx2_v100", 4096, 1.752e9)):
        assert RECORDS[name].accelerator.memory_bandwidth == pytest.approx(bits / 8 * rate, rel=4e-3)


def test_measured_all_reduces_stay_near_what_the_link_and_library_give():
    """231 of 240 GB/s on A100; on H100 the switches sum, so that the tests' bus bandwidth exceeds the link."""
    for name, least, most in (("selene", 0.9, 1.0), ("dgx_h100", 1.2, 1.5), ("gb200_nvl72", 0.9, 1.0)):
        node = RECORDS[name].node
        longest = max(node.collectives, key=lambda item: item.bytes)
        bus = 2 * (longest.ranks - 1) / longest.ranks * longest.bytes / longest.seconds
        assert least < bus / node.link.rate < most


def test_selene_holds_the_runs_of_its_papers():
    selene = RECORDS["selene"]
    assert selene.size == 4480
    selene.check_size(3072)
    with pytest.raises(ValueError, match="4481 ranks are more than selene takes, 560 x 8 = 4480: use at most 4480"):
        selene.check_size(4481)
    RECORDS["dgx_b200"].check_size(100_000)


def test_unknown_hardware_lists_what_there_is_and_how_to_measure_more():
    with pytest.raises(ValueError, match=r"'dgx_z9' is unknown: use one of .*selene.*python -m infra.measure"):
        cluster("dgx_z9")


def test_assumed_values_are_marked():
    assert "accelerator.launch_overhead" in RECORDS["selene"].assumed
    assert "accelerator.peak.bf16" not in RECORDS["selene"].assumed
    assert RECORDS["selene"].sources["node.link.protocols.ll.ring_step"].text.startswith("NCCL")


@pytest.mark.parametrize("value, unit, dimension, si", [
    (80, "GB", "memory", 80e9), (80, "GiB", "memory", 80 * 1073741824), (200, "Gbit/s", "bandwidth", 25e9),
    (2.039, "TB/s", "bandwidth", 2.039e12), (312, "TFLOP/s", "computing", 3.12e14), (2.5, "us", "time", 2.5e-6),
    (1410, "MHz", "frequency", 1.41e9), (40, "%", "share", 0.4)])
def test_units(value, unit, dimension, si):
    assert to_si(value, unit, dimension) == pytest.approx(si, rel=1e-15)


def test_no_unit_has_two_meanings():
    known: dict[str, float] = {}
    for units in UNITS.values():
        for unit, size in units.items():
            assert known.setdefault(unit, size) == size


def broken(tmp_path, text: str, old: str, new: str) -> str:
    assert text.count(old) >= 1
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    return str(path)


MINE = '''description = "one machine"
accelerator = "a100_80gb"
node = "dgx_a100"

[network]
link = "infiniband_hdr"
nics = { value = 8, unit = "1", source = "its data sheet" }
topology = { value = "fat tree", unit = "name", source = "its owner" }
oversubscription = { value = 2, unit = "1", source = "its owner" }
'''


def test_a_record_outside_the_folder_is_read_by_its_path(tmp_path):
    record = cluster(broken(tmp_path, MINE, "one machine", "my machine"))
    assert (record.name, record.description, record.network.oversubscription) == ("mine", "my machine", 2)
    assert record.accelerator == RECORDS["selene"].accelerator


@pytest.mark.parametrize("old, new, message", [
    ('unit = "1", source = "its data sheet"', 'unit = "GB/s", source = "its data sheet"',
     r"mine.toml: network.nics has unit 'GB/s', which is none of count: use one of 1"),
    (', source = "its data sheet"', "", r"network.nics has no source: say in words where the value comes from"),
    ("value = 8", "value = 8.5", r"network.nics is 8.5: it must be a whole number"),
    ("value = 8", "value = -8", r"network.nics is -8: give a number of 1 that is not negative"),
    ("value = 8", "value = true", r"network.nics is True: give a number"),
    ("value = 8", "value = nan", r"network.nics is nan: give a number"),
    ('"fat tree"', '"bush"', r"network.topology is 'bush': use one of fat tree"),
    ('"a100_80gb"', '"a100_90gb"', r"mine.toml names the part 'a100_90gb', which does not exist: use one of a100_40gb"),
    ("oversubscription", "over", r"network.oversubscription is missing"),
    ("[network]", "[network]\ncolour = 3", r"network has unknown keys: colour"),
    ('node = "dgx_a100"', "", r"mine.toml: node is None: it must be a table"),
    ("[network]", "[network", r"is not TOML"),
    ('node = "dgx_a100"', 'node = { like = "dgx_a100", accelerators = { value = 8, unit = "1" } }',
     r"node.accelerators has no source"),
])
def test_a_broken_record_is_refused_with_its_place(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message):
        cluster(broken(tmp_path, MINE, old, new))


def test_parts_that_name_each_other_are_refused(tmp_path, monkeypatch):
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "one.toml").write_text('like = "two"')
    (parts / "two.toml").write_text('like = "one"')
    (tmp_path / "mine.toml").write_text('accelerator = "one"')
    monkeypatch.setattr("common.predict.hardware.FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"mine.toml -> parts/one.toml -> parts/two.toml -> parts/one.toml"):
        cluster("mine", tmp_path)


def test_what_follows_like_replaces_single_values():
    bigger, smaller = RECORDS["selene"].accelerator, RECORDS["dgx_a100_40gb"].accelerator
    assert bigger.peak == smaller.peak and bigger.products == smaller.products
    assert bigger.memory == 2 * smaller.memory


def test_written_documents_read_back_the_same():
    document = {
        "description": 'quotes " and \\ and µ',
        "accelerator": {"name": "x", "tiles": {"value": [[1, 2], [3, 4]], "unit": "1", "source": "s"},
                        "peak": {"fp32": {"value": 1.5e12, "unit": "FLOP/s", "source": "s", "assumed": True}},
                        "products": [{"m": list(range(100)), "time": {"values": [i / 7 for i in range(100)], "unit": "s"}},
                                     {"m": [1], "inner": {"flag": {"value": False, "unit": "yes or no", "source": "s"}}}]},
    }
    text = dumps(document)
    assert tomllib.loads(text) == document
    assert max(map(len, text.splitlines())) <= 120


def test_ranks_that_share_a_machine_have_their_part_of_it():
    one = RECORDS["selene"].accelerator
    half = one.slowed(2)
    assert half.peak["bf16"] == one.peak["bf16"] / 2 and half.memory == one.memory / 2
    assert half.launch_overhead == 2 * one.launch_overhead
    assert [p.rate for p in half.products] == pytest.approx([p.rate / 2 for p in one.products])
    assert RECORDS["selene"].accelerator_for(8) is one  # GPUs are not shared


def test_the_rate_of_a_product_counts_a_multiply_add_as_two():
    assert math.isclose(Product("fp32", "nt", 100, 10, 50, 1e-3).rate, 1e8)
