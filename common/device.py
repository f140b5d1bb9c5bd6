"""The one file that names a device: which one, its backend and dtype, and what this machine can do."""

import ctypes
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

KINDS = ("cpu", "cuda")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3): what stays at the heap's top, blocks apart from the heap


@dataclass(frozen=True)
class Device:
    """One device of this machine: `kind` is "cpu" or "cuda", `index` the GPU's number on this machine."""

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"device {self.kind!r} is unknown: use one of {', '.join(KINDS)}")
        if self.index < 0:
            raise ValueError(f"device index {self.index} is negative")

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu") if self.kind == "cpu" else torch.device("cuda", self.index)

    @property
    def backend(self) -> str:
        """The torch.distributed backend that moves this device's tensors."""
        return "gloo" if self.kind == "cpu" else "nccl"

    @property
    def has_bf16(self) -> bool:
        """Right on every CPU, slower than fp32 on some; on a GPU from compute capability 8.0."""
        return self.kind == "cpu" or torch.cuda.get_device_capability(self.index) >= (8, 0)

    @property
    def has_fp16(self) -> bool:
        """GPUs only: CPU kernels for fp16 matrix products run about a hundred times slower than fp32."""
        return self.kind == "cuda"

    @property
    def precision(self) -> str:
        """Name of the default precision: fp32 on a CPU; on a GPU bf16, or fp16 where bf16 is missing."""
        if self.kind == "cpu":
            return "fp32"
        return "bf16" if self.has_bf16 else "fp16"

    @property
    def dtype(self) -> torch.dtype:
        """Default dtype of weights and activations, of the precision above."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    def require(self, precision: str) -> None:
        """Raise ValueError when this device does not carry `precision` (fp32, fp64, bf16 or fp16)."""
        missing = {"bf16": not self.has_bf16, "fp16": not self.has_fp16}.get(precision, False)
        if missing:
            raise ValueError(f"precision {precision!r} is not available on device {self.kind!r}: "
                             f"use {self.precision!r}")

    def activate(self) -> None:
        """Make this the current device of the process."""
        if self.kind == "cuda":
            torch.cuda.set_device(self.index)
        else:
            keep_freed_memory()

    def synchronize(self) -> None:
        """Wait until all queued work is done, so that a clock read next is true."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)


def device_count(kind: str) -> int:
    """Number of devices of `kind`; a CPU takes any number of ranks and counts as one."""
    return 1 if kind == "cpu" else torch.cuda.device_count()


def default_kind() -> str:
    """"cuda" where torch sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def keep_freed_memory() -> None:
    """Let this process reuse the memory that its tensors free.

    glibc gives large blocks back to the system and gets new ones page by page, zeroed: of activations that
    come and go every step that took up to 40 % of a step. Other C libraries are left as they are.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)):
            set_option(option, value)


def choose(kind: str | None = None, index: int = 0) -> Device:
    """The device for local rank `index`, of `kind` or of the machine's default kind.

    Raises ValueError when the machine has no such GPU.
    """
    kind = kind or default_kind()
    device = Device(kind, 0 if kind == "cpu" else index)
    if device.kind == "cuda" and device.index >= device_count("cuda"):
        raise ValueError(f"device cuda:{device.index} does not exist: this machine has "
                         f"{device_count('cuda')} GPUs; use fewer ranks per machine or device cpu")
    return device


def measured_peak(device: Device | None = None, dtype: torch.dtype = torch.float32, seconds: float = 1.0,
                  sizes: tuple[int, ...] = (1024, 1536, 2048)) -> float:
    """FLOP/s of square matrix products on the whole device: all cores of the machine, or one GPU.

    A product of size n counts 2n³ operations. Each size is timed for its share of `seconds`, at least
    three times; the figure is the best size's median, so that a disturbed sample does not move it. Used
    as the denominator of model-FLOPs utilisation; it is measured, never taken from a data sheet.
    """
    device = device or choose()
    threads = torch.get_num_threads()
    torch.set_num_threads(physical_cores())
    try:
        return max(_product_rate(device, dtype, size, seconds / len(sizes)) for size in sizes)
    finally:
        torch.set_num_threads(threads)


def _product_rate(device: Device, dtype: torch.dtype, size: int, seconds: float) -> float:
    a = torch.randn(size, size, device=device.torch_device).to(dtype)
    b = torch.randn(size, size, device=device.torch_device).to(dtype)
    out = a @ b
    device.synchronize()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        torch.matmul(a, b, out=out)
        device.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times)


def physical_cores(root: Path = Path("/")) -> int:
    """Cores this process may keep busy: hyper-threads counted once, affinity and CPU quota respected.

    `root` is the folder that holds proc/ and sys/, for tests. Systems without affinity (macOS) report
    os.cpu_count().
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = {_core_of(cpu, root) for cpu in allowed}
    quota = min(_cpu_quotas(root), default=float(len(cores)))
    return max(1, min(len(cores), int(quota)))


def _core_of(cpu: int, root: Path) -> tuple[str, str]:
    """(package, core) of a logical CPU; the CPU itself where the kernel shows no topology."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    if not folder.is_dir():
        return ("cpu", str(cpu))
    return (folder / "physical_package_id").read_text().strip(), (folder / "core_id").read_text().strip()


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that can still be taken: the kernel's MemAvailable, or less under a cgroup limit."""
    if not (root / "proc/meminfo").exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([_meminfo("MemAvailable", root), *(left for _, left in _memory_limits(root))])


def total_memory(root: Path = Path("/")) -> int:
    """Bytes of memory of the machine, or of the cgroup where that is less."""
    if not (root / "proc/meminfo").exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([_meminfo("MemTotal", root), *(limit for limit, _ in _memory_limits(root))])


def cpu_model(root: Path = Path("/")) -> str:
    """Name of the processor as the kernel reports it, else its architecture."""
    path = root / "proc/cpuinfo"
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def _meminfo(field: str, root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} has no line {field}")


def _cgroup_folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """(version, folder) of this process's cgroup and all above it, for one controller."""
    path = root / "proc/self/cgroup"
    for line in path.read_text().splitlines() if path.exists() else []:
        number, names, place = line.split(":", 2)
        version = 2 if number == "0" else 1
        if version == 1 and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if version == 2 else controller)
        folder = mount / place.lstrip("/")
        for candidate in (folder, *folder.parents):
            if candidate.is_dir():
                yield version, candidate
            if candidate == mount:
                break


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time allowed by each cgroup that sets a quota."""
    for version, folder in _cgroup_folders("cpu", root):
        if version == 2 and (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        elif version == 1 and (folder / "cpu.cfs_quota_us").exists():
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        else:
            continue
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes left) of each cgroup that limits memory; file cache that can be dropped is not used."""
    for version, folder in _cgroup_folders("memory", root):
        limit_file = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        if not limit_file.exists() or limit_file.read_text().strip() == "max":
            continue
        limit = int(limit_file.read_text())
        used = int((folder / ("memory.current" if version == 2 else "memory.usage_in_bytes")).read_text())
        cache_name = "inactive_file" if version == 2 else "total_inactive_file"
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield limit, max(0, limit - used + int(stat.get(cache_name, 0)))
