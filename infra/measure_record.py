"""What was measured, as the tables of a hardware record (see common/predict/hardware_file.py)."""

import time
from pathlib import Path
from typing import Any

import torch

from common.device import choose, cpu_model, device_count, physical_cores, total_memory
from common.predict.machine import Collective, Kernel, Product
from infra.local_ranks import RANKS_PER_CORE
from infra.measure_device import Measured

GUIDE = "NVIDIA Matrix Multiplication Background User's Guide"
TILES = [[256, 128], [128, 256], [128, 128], [256, 64], [64, 256], [128, 64], [64, 128], [64, 64]]


def value(number: Any, unit: str, source: str, assumed: bool = False) -> dict[str, Any]:
    return {"value": number, "unit": unit, "source": source} | ({"assumed": True} if assumed else {})


def accelerator(kind: str, found: Measured, ranks: int, source: str) -> dict[str, Any]:
    """The table of what one of `ranks` ranks has."""
    peak: dict[str, float] = {}
    for item in found.products:
        peak[item.precision] = max(peak.get(item.precision, 0.0), item.rate)
    copies = [k for k in found.kernels if k.name == "aten.copy_"]
    largest = max(copies, key=lambda item: item.bytes)
    return _identity(kind, ranks, source) | {
        "memory_bandwidth": value(rounded(largest.bytes / largest.seconds / 1e9), "GB/s", source),
        "launch_overhead": value(rounded(found.launch * 1e6), "us", source),
        "dispatch_overhead": value(0, "us", source),
        "peak": {name: value(rounded(peak[name] / 1e9), "GFLOP/s", f"best of its products, {source}")
                 for name in sorted(peak, key=lambda name: peak[name])},
        "products": product_tables(found.products, source),
        "kernels": kernel_tables(found.kernels, source),
    }


def _identity(kind: str, ranks: int, source: str) -> dict[str, Any]:
    """What the system says of the device."""
    if kind == "cpu":
        memory = total_memory() // ranks
        return {
            "name": cpu_model(),
            "memory": value(memory, "B", source), "usable_memory": value(memory, "B", source),
            "multiprocessors": value(max(1, physical_cores() // ranks), "1", source),
            "l2": value(last_cache(), "B", source),
            "tiles": value([], "1", "a CPU has no multiprocessors that share out a product"),
            "alignment": value(64, "B", "cache line of the processor", assumed=True),
        }
    gpu = torch.cuda.get_device_properties(choose(kind).index)
    free, total = torch.cuda.mem_get_info()
    return {
        "name": gpu.name,
        "memory": value(total, "B", source), "usable_memory": value(total, "B", source),
        "multiprocessors": value(gpu.multi_processor_count, "1", source), "l2": value(gpu.L2_cache_size, "B", source),
        "tiles": value(TILES, "1", f"{GUIDE}, section 2.3, whatever this GPU's library has", assumed=True),
        "alignment": value(128, "B", f"{GUIDE}, section 2.2"),
    }


def last_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the last cache of the first core, as the kernel reports it; 1 MiB where it does not."""
    sizes = [path.read_text().strip() for path in folder.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=2**20)


def product_tables(found: tuple[Product, ...], source: str) -> list[dict[str, Any]]:
    """One table for each precision and layout, its sizes in columns."""
    tables = []
    for precision, layout in dict.fromkeys((item.precision, item.layout) for item in found):
        rows = [item for item in found if (item.precision, item.layout) == (precision, layout)]
        tables.append({"precision": precision, "layout": layout, "source": source,
                       **{key: [getattr(item, key) for item in rows] for key in "mnk"},
                       "time": {"unit": "us", "values": [rounded(item.seconds * 1e6) for item in rows]}})
    return tables


def kernel_tables(found: tuple[Kernel, ...], source: str) -> list[dict[str, Any]]:
    """One table for each operation."""
    tables = []
    for name in dict.fromkeys(item.name for item in found):
        rows = [item for item in found if item.name == name]
        tables.append({"name": name, "precision": rows[0].precision, "source": source,
                       "bytes": [item.bytes for item in rows], "flops": [item.flops for item in rows],
                       "time": {"unit": "us", "values": [rounded(item.seconds * 1e6) for item in rows]}})
    return tables


def node(kind: str, links: dict[int, list[Collective]], source: str) -> dict[str, Any]:
    """The table of the node; a machine with one GPU has no link, and gets that of its memory copies to the host."""
    host = host_link(source) if kind == "cuda" else None
    between = link(kind, links[2], source) if links else host
    cores = physical_cores()
    ranks = value(RANKS_PER_CORE * cores, "1", "infra.local_ranks, most ranks of a core") if kind == "cpu" else None
    return {
        "accelerators": value(cores if kind == "cpu" else device_count(kind), "1", source),
        **({"ranks": ranks} if ranks else {}),
        "switched": value(True, "yes or no", "every pair of ranks reaches every other", assumed=kind == "cuda"),
        "host_memory": value(total_memory(), "B", source),
        "link": between,
        **({"host": host} if host else {}),
        "collectives": [table for found in links.values() for table in collective_tables(found, source)],
    }


def link(kind: str, pair: list[Collective], source: str) -> dict[str, Any]:
    """The link of two ranks: rate of the longest message, hop of the shortest, from what the pair measured."""
    sends = sorted((item for item in pair if item.name == "send"), key=lambda item: item.bytes)
    sums = sorted((item for item in pair if item.name == "all_reduce"), key=lambda item: item.bytes)
    rate = sends[-1].bytes / sends[-1].seconds
    backend = choose(kind).backend
    return {
        "name": f"{backend} between ranks of this machine",
        "bandwidth": value(rounded(rate / 1e9), "GB/s", f"longest message, {source}"),
        "usable": value(1, "1", "the bandwidth is that of messages"),
        "multicast": value(False, "yes or no", "not looked for", assumed=kind == "cuda"),
        # Two ranks send each byte of an all-reduce once in each direction.
        "protocols": {backend: protocol(min(1.0, sums[-1].bytes / sums[-1].seconds / rate), sums[0].seconds / 2,
                                        source)},
    }


def protocol(share: float, step: float, source: str) -> dict[str, Any]:
    return {"ring_share": value(rounded(share), "1", f"longest all-reduce beside the longest message, {source}"),
            "ring_start": value(0, "us", "contained in the steps"),
            "ring_step": value(rounded(step * 1e6), "us", f"shortest all-reduce, half of it, {source}")}


def host_link(source: str) -> dict[str, Any]:
    """Copies between pinned memory of the host and the GPU."""
    times = {}
    for size in (2**10, 2**28):
        here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()
        times[size] = (time.perf_counter() - begin) / 10
    rate = 2**28 / times[2**28]
    return {"name": "copies from pinned memory of the host",
            "bandwidth": value(rounded(rate / 1e9), "GB/s", f"copy of 256 MiB, {source}"),
            "usable": value(1, "1", "the bandwidth is that of copies"),
            "multicast": value(False, "yes or no", "it has no switch"),
            "protocols": {"copy": protocol(1.0, times[2**10], source)}}


def collective_tables(found: list[Collective], source: str) -> list[dict[str, Any]]:
    tables = []
    for name in dict.fromkeys(item.name for item in found):
        rows = [item for item in found if item.name == name]
        tables.append({"name": name, "ranks": rows[0].ranks, "source": source, "bytes": [item.bytes for item in rows],
                       "time": {"unit": "us", "values": [rounded(item.seconds * 1e6) for item in rows]}})
    return tables


def rounded(number: float) -> float:
    """To four digits, which is more than a measurement has."""
    return float(f"{number:.4g}")
