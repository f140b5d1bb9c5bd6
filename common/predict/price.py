"""The cost model of one cluster, and a trace played with it: what runs when, and where the time goes.

One stream computes. Messages of a group go one after the other on a stream of their own, each from the operation after
which it was issued to the one that waits for it, so what overlaps in the code overlaps here. A message takes
multiprocessors away from what runs beside it. The host issues operations one after the other and far ahead of a busy
device; where kernels are shorter than that, the device waits for the host. A CPU does both in turn.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from common.grid import Grid
from common.predict.collectives import Communication
from common.predict.compute import Compute
from common.predict.constants import Constants, constants
from common.predict.machine import Cluster
from common.predict.spent import Spent, kind
from common.trace.record import ABSORBED, Message, Operation

COMPUTING = "computing"


class Costs:
    """Seconds of operations and messages on a cluster.

    ranks: of the job, where the cluster's accelerators are shared among ranks of a node and speed depends on how many.
    software: how many times longer operations take than with the software that the records were measured with.
    """

    def __init__(self, cluster: Cluster, ranks: int | None = None, values: Constants | None = None, software: float = 1.0):
        self.cluster, self.constants, self.software = cluster, values or constants(), software
        busy = cluster.node.ranks if ranks is None else min(ranks, cluster.node.ranks)
        self.compute = Compute(cluster.accelerator_for(busy), self.constants)
        self.communication = Communication(cluster)

    def operation(self, operation: Operation) -> float:
        return self.software * self.compute.seconds(operation)

    def message(self, name: str, size: float, ranks: Sequence[int]) -> float:
        return self.communication.seconds(name, size, ranks)

    def transfer(self, size: float, sender: int, receiver: int) -> float:
        return self.communication.transfer(size, sender, receiver)

    @property
    def dispatch(self) -> float:
        """Seconds of the host for each operation and message that it issues."""
        return self.compute.accelerator.dispatch_overhead

    @property
    def runs_ahead(self) -> bool:
        """Whether the host issues operations while earlier ones still run: not where it is the device."""
        return bool(self.compute.accelerator.tiles)

    def slowed(self, ranks: Sequence[int]) -> float:
        """Share of its speed that computing loses while these ranks communicate."""
        if not self.compute.accelerator.tiles:
            return 0.0  # tables of a CPU were measured with all ranks at work
        inside = len({rank // self.cluster.node.ranks for rank in ranks}) == 1
        channels = self.constants.collective_channels if inside else self.constants.network_channels
        return min(channels / self.compute.accelerator.multiprocessors, 0.9)


def group_of(grid: Grid, rank: int, name: str) -> tuple[int, ...]:
    """The ranks of a group by the name that messages give it (common/layout.py); of a pipeline's pair, with the next."""
    if name == "pp ends":
        line = grid.group(rank, "pp")
        return (line[0], line[-1]) if rank in (line[0], line[-1]) else line[1:-1]
    if name.startswith("pp "):
        line = grid.group(rank, "pp")
        here = line.index(rank)
        return rank, line[(here + 1) % len(line)]
    axis, _, parts = name.partition("/")
    return grid.replicas(rank, axis, int(parts)) if parts else grid.group(rank, *axis.split("+"))


@dataclass(frozen=True)
class Item:
    """An operation or a message at its time. stream: COMPUTING or the group's name; start in seconds of its pass."""

    name: str
    phase: str
    module: str
    stream: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Priced:
    """A pass: its operations and messages at their times, in seconds, and where all of them went."""

    items: tuple[Item, ...] = field(repr=False)
    spent: Spent

    @property
    def seconds(self) -> float:
        return self.spent.total


@dataclass
class _UnderWay:
    """A message between its start and its end."""

    start: float
    end: float
    slows: float


def play(operations: Sequence[Operation], sent: Iterable[tuple[int, int, Message]], costs: Costs,
         ranks: dict[str, Sequence[int]]) -> Priced:
    """A pass. sent: for each message, how many operations stand before its start and before the wait for it.

    ranks: those of each group that messages name.
    """
    starting, waiting = defaultdict(list), defaultdict(list)
    for number, (start, end, message) in enumerate(sent):
        starting[start].append((number, message))
        waiting[end].append(number)
    items: list[Item] = []
    spent = dict.fromkeys((f.name for f in fields(Spent)), 0.0)
    now = host = 0.0
    free: dict[str, float] = defaultdict(float)
    flights: dict[int, tuple[_UnderWay, str]] = {}
    for i in range(len(operations) + 1):
        for number, message in starting[i]:
            host += costs.dispatch
            group = ranks[message.group]
            takes = costs.message(message.name, message.bytes, group) + sum(map(costs.operation, message.copies))
            begin = max(now, host + message.ahead * costs.dispatch, free[message.group])
            free[message.group] = begin + takes
            flights[number] = _UnderWay(begin, begin + takes, costs.slowed(group)), message.phase
            items.append(Item(message.name, message.phase, message.module, message.group, begin, takes))
        for number in waiting[i]:
            flight, phase = flights.pop(number)
            waited = max(flight.end - now, 0.0)
            spent["recomputation" if phase == "recompute" else "exposed"] += waited
            spent["hidden"] += max(flight.end - flight.start - waited, 0.0)
            now += waited
        if i < len(operations):
            o = operations[i]
            host = host if costs.runs_ahead else max(host, now)
            host += costs.dispatch if o.name != ABSORBED else 0.0
            spent["host"] += max(host - now, 0.0)
            now = max(now, host)
            end = _beside(now, costs.operation(o), [flight for flight, _ in flights.values()])
            items.append(Item(o.name, o.phase, o.module, COMPUTING, now, end - now))
            spent[kind(o)] += end - now
            now = end
    return Priced(tuple(items), Spent(**spent))


def _beside(now: float, work: float, flights: Iterable[_UnderWay]) -> float:
    """When `work` seconds of computing that start at `now` are done, slower while messages are under way."""
    for flight in sorted(flights, key=lambda f: f.start):
        begin = max(now, flight.start)
        if flight.end <= begin or begin >= now + work:
            continue
        work -= begin - now
        done = (flight.end - begin) * (1 - flight.slows)
        if done >= work:
            return begin + work / (1 - flight.slows)
        work -= done
        now = flight.end
    return now + work
