"""Named hardware, from the records of infra/hardware/ and of `python -m infra.measure`."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

from common.predict.hardware_file import Source, Table, read
from common.predict.machine import (
    LAYOUTS,
    PRECISIONS,
    TOPOLOGIES,
    Accelerator,
    Cluster,
    Collective,
    Kernel,
    Link,
    Network,
    Node,
    Product,
    Protocol,
)

FOLDER = Path(__file__).parents[2] / "infra" / "hardware"


def cluster(name: str, folder: Path = FOLDER) -> Cluster:
    """The record of that name, or the file if `name` ends in .toml.

    Raises ValueError for an unknown name, listing those there are, and for a record that is not whole.
    """
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in folder.glob("*.toml")))
        raise ValueError(f"hardware {name!r} is unknown: use one of {known}; or measure your own with "
                         "`python -m infra.measure -o mine.toml` and name that file")
    return cluster_of(read(path, FOLDER / "parts"), path.stem, path.name)


def cluster_of(document: dict[str, Any], name: str = "measured", place: str = "measured") -> Cluster:
    """The record that this document holds, all parts filled in. place: what errors call it."""
    sources: dict[str, Source] = {}
    return _cluster(Table(document, f"{place}:", sources), name, sources)


def clusters(folder: Path = FOLDER) -> list[Cluster]:
    """All records, by name."""
    return [cluster(path.stem, folder) for path in sorted(folder.glob("*.toml"))]


def _cluster(table: Table, name: str, sources: dict[str, Source]) -> Cluster:
    accelerator = _accelerator(table.table("accelerator"))
    node = _node(table.table("node"))
    network = _network(table.table("network")) if "network" in table else None
    shared = {part.plain("ranks", int): _accelerator(part.table("accelerator")) for part in table.tables("shared")}
    if shared:
        shared[1] = accelerator
    found = Cluster(name, table.plain("description", str), accelerator, node, network,
                    table.whole("nodes") if "nodes" in table else None,
                    MappingProxyType(shared), MappingProxyType(sources))
    table.done()
    return found


def _accelerator(table: Table) -> Accelerator:
    peaks = table.table("peak")
    names = peaks.keys()
    if unknown := [name for name in names if name not in PRECISIONS]:
        raise ValueError(f"{peaks.place} has {', '.join(unknown)}: use {', '.join(PRECISIONS)}")
    found = Accelerator(
        name=table.plain("name", str), memory=table.number("memory", "memory"),
        usable_memory=table.number("usable_memory", "memory"),
        memory_bandwidth=table.number("memory_bandwidth", "bandwidth"),
        peak=MappingProxyType({name: peaks.number(name, "computing") for name in names}),
        multiprocessors=table.whole("multiprocessors"), l2=table.number("l2", "memory"),
        launch_overhead=table.number("launch_overhead", "time"),
        dispatch_overhead=table.number("dispatch_overhead", "time"),
        tiles=table.pairs("tiles"), alignment=int(table.number("alignment", "memory")),
        clock=table.optional("clock", "frequency"), vector_clock=table.optional("vector_clock", "frequency"),
        power=table.optional("power", "power"),
        products=tuple(item for part in table.tables("products") for item in _products(part)),
        kernels=tuple(item for part in table.tables("kernels") for item in _kernels(part)))
    table.done()
    return found


def _products(table: Table) -> list[Product]:
    precision = _one_of(table, "precision", PRECISIONS)
    layout = _one_of(table, "layout", LAYOUTS)
    table.plain("source", str)
    sizes = [table.plain(key, list) for key in "mnk"]
    count = len(sizes[0])
    if "rate" in table:
        rates = table.column("rate", "computing", count)
        times = [2 * m * n * k / rate for m, n, k, rate in zip(*sizes, rates, strict=True)]
    else:
        times = list(table.column("time", "time", count))
    table.done()
    return [Product(precision, layout, m, n, k, time) for m, n, k, time in zip(*sizes, times, strict=True)]


def _kernels(table: Table) -> list[Kernel]:
    name = table.plain("name", str)
    precision = _one_of(table, "precision", PRECISIONS)
    table.plain("source", str)
    moved = table.plain("bytes", list)
    flops = table.plain("flops", list, [0] * len(moved))
    if "rate" in table:
        rates = table.column("rate", "bandwidth", len(moved))
        times = [size / rate for size, rate in zip(moved, rates, strict=True)]
    else:
        times = list(table.column("time", "time", len(moved)))
    table.done()
    return [Kernel(name, precision, *row) for row in zip(moved, flops, times, strict=True)]


def _node(table: Table) -> Node:
    accelerators = table.whole("accelerators")
    found = Node(
        accelerators, table.whole("ranks") if "ranks" in table else accelerators, _link(table.table("link")),
        table.flag("switched"), _link(table.table("host")) if "host" in table else None,
        table.number("host_memory", "memory"),
        tuple(item for part in table.tables("collectives") for item in _collectives(part)))
    table.done()
    return found


def _collectives(table: Table) -> list[Collective]:
    name, ranks = table.plain("name", str), table.plain("ranks", int)
    table.plain("source", str)
    sizes = table.plain("bytes", list)
    if "bus_bandwidth" in table:
        # An all-reduce moves 2 (n - 1) / n of its bytes over each rank's link: NCCL's tests, "bus bandwidth".
        rates = table.column("bus_bandwidth", "bandwidth", len(sizes))
        times = [2 * (ranks - 1) / ranks * size / rate for size, rate in zip(sizes, rates, strict=True)]
    else:
        times = list(table.column("time", "time", len(sizes)))
    table.done()
    return [Collective(name, ranks, size, time) for size, time in zip(sizes, times, strict=True)]


def _network(table: Table) -> Network:
    topology = table.text("topology")
    if topology not in TOPOLOGIES:
        raise ValueError(f"{table.place}.topology is {topology!r}: use one of {', '.join(TOPOLOGIES)}")
    found = Network(table.whole("nics"), _link(table.table("link")), topology,
                    table.number("oversubscription", "count"))
    table.done()
    return found


def _link(table: Table) -> Link:
    protocols = table.table("protocols")
    found = Link(table.plain("name", str), table.number("bandwidth", "bandwidth"), table.number("usable", "share"),
                 table.flag("multicast"), tuple(_protocol(protocols.table(name), name) for name in protocols.keys()))
    if not 0 < found.usable <= 1 or not found.protocols:
        raise ValueError(f"{table.place} needs a usable share above 0 and at most 1, and at least one protocol")
    table.done()
    return found


def _protocol(table: Table, name: str) -> Protocol:
    ring = (table.number("ring_share", "share"), table.number("ring_start", "time"), table.number("ring_step", "time"))
    tree = (table.optional("tree_share", "share"), table.optional("tree_start", "time"),
            table.optional("tree_step", "time"))
    table.done()
    return Protocol(name, *ring, *tree)


def _one_of(table: Table, key: str, known: tuple[str, ...]) -> str:
    found = table.plain(key, str)
    if found not in known:
        raise ValueError(f"{table.place}.{key} is {found!r}: use one of {', '.join(known)}")
    return found
