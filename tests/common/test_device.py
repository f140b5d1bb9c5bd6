"""Device policy, and machine facts read from trees of files as kernels lay them out."""

import os
import re
import time
from pathlib import Path

import pytest
import torch

from common import device
from common.device import (
    Device,
    available_memory,
    choose,
    cpu_model,
    measured_peak,
    physical_cores,
    total_memory,
)

GIB = 2**30


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def topology(*cores):
    """Files that put logical CPU i on core cores[i], a (package, core)."""
    return {f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": value
            for cpu, (package, core) in enumerate(cores)
            for name, value in (("physical_package_id", package), ("core_id", core))}


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   8388608 kB"}
V2 = {"proc/self/cgroup": "0::/job/step"}
V1 = {"proc/self/cgroup": "7:memory:/job\n3:cpu,cpuacct:/job\n0::/"}


def test_a_cpu_trains_in_fp32_over_gloo():
    cpu = choose("cpu", index=3)
    assert cpu == Device("cpu", 0)
    assert (cpu.torch_device, cpu.backend, cpu.precision, cpu.dtype) == (
        torch.device("cpu"), "gloo", "fp32", torch.float32)
    assert cpu.has_bf16 and not cpu.has_fp16
    for name in ("fp32", "fp64", "bf16"):
        cpu.require(name)
    with pytest.raises(ValueError, match="precision 'fp16' is not available on device 'cpu': use 'fp32'"):
        cpu.require("fp16")


@pytest.mark.parametrize("capability, precision, dtype", [((9, 0), "bf16", torch.bfloat16),
                                                          ((8, 0), "bf16", torch.bfloat16),
                                                          ((7, 0), "fp16", torch.float16)])
def test_a_gpu_trains_in_bf16_where_it_has_it(monkeypatch, capability, precision, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = choose(index=3)
    assert (gpu.torch_device, gpu.backend) == (torch.device("cuda:3"), "nccl")
    assert (gpu.precision, gpu.dtype, gpu.has_fp16) == (precision, dtype, True)
    with pytest.raises(ValueError, match="cuda:4 does not exist: this machine has 4 GPUs"):
        choose(index=4)


def test_the_default_is_a_gpu_only_where_torch_sees_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose() == Device("cpu")


@pytest.mark.parametrize("kind, index, message", [("tpu", 0, "device 'tpu' is unknown: use one of cpu, cuda"),
                                                  ("cuda", -1, "index -1 is negative")])
def test_devices_that_cannot_be_are_refused(kind, index, message):
    with pytest.raises(ValueError, match=message):
        Device(kind, index)


def test_hyper_threads_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    cores = [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert physical_cores(tree(tmp_path, topology(*cores, *cores))) == 4


def test_affinity_is_respected(tmp_path, monkeypatch):
    cores = [("0", "0"), ("0", "0"), ("0", "1"), ("0", "1"), ("0", "2")]
    root = tree(tmp_path, topology(*cores))
    for allowed, expected in (({0, 1}, 1), ({0, 2, 4}, 3), ({1, 2, 3}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert physical_cores(root) == expected


@pytest.mark.parametrize("files, expected", [
    (V2 | {"sys/fs/cgroup/job/step/cpu.max": "250000 100000"}, 2),
    (V2 | {"sys/fs/cgroup/job/step/cpu.max": "max 100000", "sys/fs/cgroup/job/cpu.max": "300000 100000"}, 3),
    (V2 | {"sys/fs/cgroup/job/step/cpu.max": "50000 100000"}, 1),
    (V2 | {"sys/fs/cgroup/job/step/cpu.max": "6400000 100000"}, 8),
    # in a container the path of the host's tree is not there, and the mount itself is the container's group
    ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
    (V1 | {"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000",
           "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000"}, 2),
    (V1 | {"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
           "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
           "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
])
def test_cpu_quotas_of_cgroups_are_respected(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert physical_cores(tree(tmp_path, files)) == expected


@pytest.mark.parametrize("files, total, available", [
    ({}, 16 * GIB, 8 * GIB),
    (V2 | {"sys/fs/cgroup/job/step/memory.max": "max"}, 16 * GIB, 8 * GIB),
    (V2 | {"sys/fs/cgroup/job/step/memory.max": str(4 * GIB),
           "sys/fs/cgroup/job/step/memory.current": str(3 * GIB),
           "sys/fs/cgroup/job/step/memory.stat": f"anon 1\ninactive_file {GIB}"}, 4 * GIB, 2 * GIB),
    (V2 | {"sys/fs/cgroup/job/memory.max": str(2 * GIB), "sys/fs/cgroup/job/memory.current": str(3 * GIB),
           "sys/fs/cgroup/job/memory.stat": "inactive_file 0",
           "sys/fs/cgroup/job/step/memory.max": "max"}, 2 * GIB, 0),
    (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(6 * GIB),
           "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
           "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 0"},
     6 * GIB, 5 * GIB),
    (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712",
           "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
           "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 0"}, 16 * GIB, 8 * GIB),
])
def test_memory_limits_of_cgroups_are_respected(tmp_path, files, total, available):
    root = tree(tmp_path, MEMINFO | files)
    assert (total_memory(root), available_memory(root)) == (total, available)


def test_this_machine_reports_what_its_kernel_says():
    assert 1 <= physical_cores() <= len(os.sched_getaffinity(0))
    total = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    assert 0 < available_memory() <= total_memory() <= total
    assert cpu_model() and cpu_model() in Path("/proc/cpuinfo").read_text()


def test_a_processor_without_a_name_is_named_by_its_architecture(tmp_path):
    root = tree(tmp_path, {"proc/cpuinfo": "processor : 0\nCPU architecture: 8"})
    assert cpu_model(root) == os.uname().machine


def test_a_real_measurement_fits_its_own_wall_time_and_leaves_the_threads():
    """Half of at least three products, each no shorter than the median, passed in the time it took."""
    threads = torch.get_num_threads()
    start = time.perf_counter()
    peak = measured_peak(Device("cpu"), seconds=0.2, sizes=(256,))
    elapsed = time.perf_counter() - start
    median = 2 * 256**3 / peak
    assert 0 < 2 * median <= elapsed
    assert torch.get_num_threads() == threads


def test_the_peak_is_the_best_sizes_median_in_flops(monkeypatch):
    """By a made clock: products of size 8 take 1 s but for some of 100 s, those of size 16 take 16 s."""
    now = [0.0]
    durations = {8: iter([1.0, 100.0, 1.0, 1.0, 100.0]), 16: iter([16.0] * 5)}

    def product(a, b, out):
        now[0] += next(durations[len(a)])

    monkeypatch.setattr(device.torch, "matmul", product)
    monkeypatch.setattr(device.time, "perf_counter", lambda: now[0])
    assert measured_peak(Device("cpu"), seconds=90.0, sizes=(8, 16)) == 2 * 8**3 / 1.0
