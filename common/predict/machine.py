"""What an accelerator, a node and a cluster can do, in SI units: bytes, bytes/s, FLOP/s, s, Hz, W.

Peaks are for dense matrices. Tables of measurements are of single kernels and collectives, never of a training run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from common.predict.hardware_file import Source

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "nvfp4")
LAYOUTS = ("nt", "nn", "tn")
TOPOLOGIES = ("fat tree", "three-level fat tree", "rail-optimised fat tree", "dragonfly", "unknown")


@dataclass(frozen=True)
class Product:
    """One measured matrix product (m, k) x (k, n), which took `seconds`.

    layout: which operand is stored transposed. nt is a linear layer's forward x W^T, nn its input gradient g W,
    tn its weight gradient g^T x.
    """

    precision: str
    layout: str
    m: int
    n: int
    k: int
    seconds: float

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return 2 * self.m * self.n * self.k / self.seconds


@dataclass(frozen=True)
class Kernel:
    """One measured operation: `name` as traces name it, bytes read and written, FLOPs of products in it, seconds."""

    name: str
    precision: str
    bytes: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class Accelerator:
    """One GPU, or the part of a CPU that one rank gets.

    memory: bytes as sold; usable_memory: bytes that processes can allocate, their contexts included.
    memory_bandwidth: bytes/s. peak: FLOP/s by precision, dense, fp32 without tensor cores, products accumulated in
    fp32. clock: Hz at which tensor-core peaks hold, vector_clock the fp32 peak; None where the vendor states none.
    power: limit in W. l2: bytes of the last cache before memory. launch_overhead: seconds that a kernel adds to the
    work of a busy device. dispatch_overhead: seconds that the host takes to issue one eager operation, autograd
    and Python of the layers included; a CPU adds it. tiles: (m, n) of a matrix product that one multiprocessor works on, best first; none on a CPU.
    alignment: bytes of which the rows of fast products are multiples. products, kernels: measured tables.
    """

    name: str
    memory: float
    usable_memory: float
    memory_bandwidth: float
    peak: Mapping[str, float]
    multiprocessors: int
    l2: float
    launch_overhead: float
    dispatch_overhead: float
    tiles: tuple[tuple[int, int], ...]
    alignment: int
    clock: float | None = None
    vector_clock: float | None = None
    power: float | None = None
    products: tuple[Product, ...] = field(default=(), repr=False)
    kernels: tuple[Kernel, ...] = field(default=(), repr=False)

    def peak_of(self, precision: str) -> float:
        """FLOP/s. Raises ValueError for a precision that this accelerator does not have."""
        if precision not in self.peak:
            raise ValueError(f"precision {precision!r} is not available on {self.name}: "
                             f"use one of {', '.join(self.peak)}")
        return self.peak[precision]

    def slowed(self, times: float) -> "Accelerator":
        """The same when it does this work for `times` as many; memory is that of one."""
        return replace(
            self, memory=self.memory / times, usable_memory=self.usable_memory / times,
            memory_bandwidth=self.memory_bandwidth / times,
            peak=MappingProxyType({name: rate / times for name, rate in self.peak.items()}),
            launch_overhead=self.launch_overhead * times, dispatch_overhead=self.dispatch_overhead * times,
            products=tuple(replace(item, seconds=item.seconds * times) for item in self.products),
            kernels=tuple(replace(item, seconds=item.seconds * times) for item in self.kernels))


@dataclass(frozen=True)
class Protocol:
    """One way of a collective library to use a link, of which it takes the fastest for a size.

    A ring or a tree costs `start` seconds once and `step` seconds for each hop one after the other, and moves data
    at `share` of the link's usable bandwidth. No tree: None.
    """

    name: str
    ring_share: float
    ring_start: float
    ring_step: float
    tree_share: float | None = None
    tree_start: float | None = None
    tree_step: float | None = None


@dataclass(frozen=True)
class Link:
    """A link of one accelerator or one network card. bandwidth: bytes/s in one direction on the wire; usable: share
    of it that long messages get; multicast: the switch itself sums what it forwards (NVLink SHARP)."""

    name: str
    bandwidth: float
    usable: float
    multicast: bool
    protocols: tuple[Protocol, ...]

    @property
    def rate(self) -> float:
        """Bytes/s in one direction that long messages get."""
        return self.bandwidth * self.usable

    @property
    def latency(self) -> float:
        """Seconds until a message of a few bytes has arrived: the fastest protocol's start and one hop."""
        return min(p.ring_start + p.ring_step for p in self.protocols)


@dataclass(frozen=True)
class Collective:
    """One measured collective inside a node: trace's name, ranks, bytes of the full tensor on a rank, seconds."""

    name: str
    ranks: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Node:
    """Accelerators that share one fast fabric (a server; for NVL72 the rack).

    ranks: how many ranks jobs run on it. switched: every pair has the full rate at once; if not, rings over wired pairs
    have it. host: the link of one accelerator to CPU memory. host_memory: bytes of the node.
    """

    accelerators: int
    ranks: int
    link: Link
    switched: bool
    host: Link | None
    host_memory: float
    collectives: tuple[Collective, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Network:
    """Between nodes. nics: cards of a node that carry training traffic, `link` one of them. oversubscription: how
    many times more the nodes can send than the core can carry, 1 for a full tree."""

    nics: int
    link: Link
    topology: str
    oversubscription: float

    @property
    def rate(self) -> float:
        """Bytes/s in one direction that long messages of all ranks of a node get together."""
        return self.nics * self.link.rate


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind; `nodes` is how many are known to exist, None where there is no such number.

    shared: the accelerator as each of so many ranks of a node has it while all are busy; empty where ranks do not
    share one. sources: by the value's name in the record, such as "accelerator.memory".
    """

    name: str
    description: str
    accelerator: Accelerator
    node: Node
    network: Network | None
    nodes: int | None
    shared: Mapping[int, Accelerator] = field(repr=False)
    sources: Mapping[str, Source] = field(repr=False)

    @property
    def size(self) -> int | None:
        """Ranks that the whole cluster takes."""
        return None if self.nodes is None else self.nodes * self.node.ranks

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the values that nobody states or measured."""
        return tuple(name for name, source in self.sources.items() if source.assumed)

    def accelerator_for(self, ranks: int) -> Accelerator:
        """The accelerator that each of `ranks` ranks of a node has, all busy."""
        if not self.shared:
            return self.accelerator
        known = max(count for count in self.shared if count <= ranks)
        return self.shared[known].slowed(ranks / known) if ranks > known else self.shared[known]

    def check_size(self, ranks: int) -> None:
        """Raises ValueError when the cluster takes fewer than `ranks`."""
        if self.size is not None and ranks > self.size:
            raise ValueError(f"{ranks} ranks are more than {self.name} takes, {self.nodes} x {self.node.ranks} = "
                             f"{self.size}: use at most {self.size}, or another cluster")
        if self.network is None and ranks > self.node.ranks:
            raise ValueError(f"{ranks} ranks do not fit the one node of {self.name}: use at most {self.node.ranks}")
