"""`python -m infra.measure`: a hardware record of the machine that it runs on.

    python -m infra.measure                      infra/hardware/cpu_2core.toml on two cores; --cluster cpu_2core
    python -m infra.measure -o mine.toml         a file; --cluster mine.toml

Takes about a minute on a CPU. Close other programs first: what they take is missing in the record. On a CPU the
accelerator is what one rank with all cores gets, and further tables hold what each of several ranks gets while all
are busy. The part for GPUs has not run on a GPU yet.
"""

import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from common.checkpoint.files import write_text
from common.claims.origin import machine
from common.claims.target import check_target
from common.device import KINDS, default_kind, device_count, physical_cores
from common.predict.hardware import FOLDER, cluster, cluster_of
from common.predict.hardware_file import dumps
from infra.launch import run_local
from infra.measure_device import Plan, mean, measure_device
from infra.measure_dispatch import overhead_on
from infra.measure_links import measure_links, slowest
from infra.measure_record import accelerator, node, rounded, value

PROGRAM = "python -m infra.measure"
CPU_LIMIT, GPU_LIMIT = 2.2e9, 1.2e13  # FLOPs of the largest product


@dataclass(frozen=True)
class Measure:
    """Measure this machine and write its hardware record."""

    name: str | None = None
    """Of the record, in small letters, digits and "_"; by default the kind of machine, such as cpu_2core."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """File to write, ending in .toml; by default infra/hardware/NAME.toml."""
    device: str | None = None
    """cpu or cuda; by default cuda where there is a GPU."""
    quick: bool = False
    """A few sizes only, in seconds: to see that it works."""
    force: bool = False
    """Replace a file that exists."""


def plan(kind: str, ranks: int, quick: bool) -> Plan:
    """What each of `ranks` ranks of a node measures."""
    if quick:
        products = tuple(("fp32", layout, 128, 128, 128) for layout in ("nt", "nn", "tn"))
        return Plan(products, (2**16,), ((1, 2, 64, 32),), "fp32", 0.002)
    if kind == "cpu":
        return Plan(_products(("fp32",), (64, 512, 2048), (64, 192, 768, 2048) if ranks == 1 else (64, 192, 768),
                              CPU_LIMIT) + ((("bf16", "nt", 512, 768, 768), ("fp64", "nt", 512, 768, 768))
                                            if ranks == 1 else ()),
                    (2**12, 2**16, 2**19, 2**22), ((8, 16, 256, 12), (8, 6, 256, 32), (4, 8, 512, 64)), "fp32", 0.04)
    capability = torch.cuda.get_device_capability()
    half = ("bf16", "fp16") if capability >= (8, 0) else ("fp16",)
    rest = (("tf32",) if capability >= (8, 0) else ()) + (("fp8",) if capability >= (8, 9) else ()) + ("fp32",)
    return Plan(_products(half[:1], (512, 2048, 8192, 16384), (512, 1024, 2048, 4096, 8192, 12288), GPU_LIMIT)
                + _products((*half[1:], *rest), (2048, 8192), (2048, 8192), GPU_LIMIT),
                (2**20, 2**24, 2**27), ((4, 16, 2048, 64), (4, 16, 2048, 128), (1, 16, 8192, 128)), half[0], 0.1)


def _products(precisions: tuple[str, ...], rows: tuple[int, ...], columns: tuple[int, ...],
              limit: float) -> tuple[tuple[str, str, int, int, int], ...]:
    """Every m of `rows` with every n and k of `columns` as a layer's forward; its two gradients at equal n and k."""
    found = []
    for precision in precisions:
        for m in rows:
            for n in columns:
                for k in columns:
                    layouts = ("nt", "nn", "tn") if n == k and precision != "fp8" else ("nt",)
                    # A weight gradient sums over the rows: its m and k change places.
                    found += [(precision, x, *((k, n, m) if x == "tn" else (m, n, k))) for x in layouts
                              if 2 * m * n * k <= limit]
    return tuple(found)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 2 with one line for a wrong argument."""
    options = tyro.cli(Annotated[Measure, tyro.conf.FlagCreatePairsOff], prog=PROGRAM, args=arguments)
    try:
        path = target(options)
        begin = time.monotonic()
        write_text(path, dumps(measure(options.device or default_kind(), options.quick)))
        record = cluster(str(path))
    except ValueError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        sys.exit(2)
    best = ", ".join(f"{name} {rate / 1e9:.4g} GFLOP/s" for name, rate in record.accelerator.peak.items())
    print(f"{path}: {best}, copies {record.accelerator.memory_bandwidth / 1e9:.3g} GB/s, "
          f"in {time.monotonic() - begin:.0f} s")


def target(options: Measure) -> Path:
    """The file to write. Raises ValueError for options that cannot work, before anything is measured."""
    kind = options.device or default_kind()
    if kind not in KINDS:
        raise ValueError(f"--device {kind!r} is unknown: use one of {', '.join(KINDS)}")
    if not device_count(kind):
        raise ValueError(f"--device {kind!r}, but this machine has no such device: use cpu")
    name = options.name or default_name(kind)
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"--name {name!r} must be small letters, digits and _, such as {default_name(kind)}")
    path = options.output or FOLDER / f"{name}.toml"
    check_target(path, "--output", (".toml",), options.force, new_folders=True)
    return path


def default_name(kind: str) -> str:
    if kind == "cpu":
        return f"cpu_{physical_cores()}core"
    gpu = torch.cuda.get_device_name().lower().removeprefix("nvidia ")
    return re.sub(r"[^a-z0-9]+", "_", f"{device_count(kind)}x {gpu}").strip("_")


def measure(kind: str, quick: bool) -> dict[str, Any]:
    """The document of the record; says on the terminal what it does."""
    cores, load = physical_cores(), os.getloadavg()[0]
    print(f"measuring {machine()}", flush=True)
    if load > 0.5 * cores:
        print(f"note: other work keeps {load:.1f} of {cores} cores busy, so the record will be slower than the "
              "machine", flush=True)
    source = f"measured by infra.measure, {time.strftime('%Y-%m-%d')}, {machine()}, torch {torch.__version__}"
    alone = mean(run_local(measure_device, 1, plan(kind, 1, quick), kind=kind))
    counts = _rank_counts(kind, quick)
    sizes = tuple(4**i for i in range(4, 7 if quick else 13 if kind == "cpu" else 15))
    links = {ranks: slowest(run_local(measure_links, ranks, sizes, 0.02, kind=kind)) for ranks in counts}
    document: dict[str, Any] = {
        "description": f"{machine()}, as measured with a load of {load:.1f} before",
        "nodes": value(1, "1", "this machine"),
        "accelerator": accelerator(kind, alone, 1, source),
        "node": node(kind, links, source),
    }
    if kind == "cpu":
        document["shared"] = [
            {"ranks": ranks, "accelerator": accelerator(
                kind, mean(run_local(measure_device, ranks, plan(kind, ranks, quick), kind=kind)), ranks, source)}
            for ranks in counts]
    for ranks, part in ((1, document), *((part["ranks"], part) for part in document.get("shared", ()))):
        seconds = overhead_on(cluster_of(document), kind, ranks)
        part["accelerator"]["dispatch_overhead"] = value(rounded(seconds * 1e6), "us", source)
    return document


def _rank_counts(kind: str, quick: bool) -> list[int]:
    """Numbers of ranks whose messages are timed: powers of two, on a CPU up to two for each core."""
    most = 2 * physical_cores() if kind == "cpu" else device_count(kind)
    return [2**i for i in range(1, (min(most, 2) if quick else most).bit_length())]


if __name__ == "__main__":
    main()
