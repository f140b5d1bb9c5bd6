"""Passes played with round seconds: by hand, against a clock that ticks, and what holds for any program."""

import math
from dataclasses import dataclass, field, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.grid import Grid
from common.predict.hardware import cluster
from common.predict.price import COMPUTING, Costs, group_of, play
from common.predict.spent import Spent, kind
from common.trace.record import ABSORBED, Message, Operation

RANKS = {"tp": (0, 1), "dp": (0, 2)}


def op(
    seconds: float = 1.0,
    name: str = "aten.mm",
    phase: str = "forward",
    module: str = "layers.0.mlp.up",
    flops: int = 1,
    parts=(),
) -> Operation:
    """`read` carries the seconds."""
    return Operation(name, phase, module, (), (), "bfloat16", flops, seconds, 0, parts)


def message(seconds: float, group: str = "tp", phase: str = "forward") -> Message:
    """`bytes` carries the seconds."""
    return Message("all_reduce", group, 2, seconds, "bfloat16", phase, "layers.0.mlp.up", 0)


@dataclass
class RoundCosts:
    dispatch: float = 0.0
    runs_ahead: bool = True
    slows: float = 0.0
    asked: list = field(default_factory=list)

    def operation(self, operation: Operation) -> float:
        return operation.read

    def message(self, name, size, ranks) -> float:
        self.asked.append((name, size, tuple(ranks)))
        return size

    def slowed(self, ranks) -> float:
        return self.slows


def played(operations, sent=(), **costs):
    return play(operations, sent, RoundCosts(**costs), RANKS)


def parts(spent: Spent) -> dict[str, float]:
    return {f.name: getattr(spent, f.name) for f in fields(spent) if getattr(spent, f.name)}


def times(found) -> list[tuple[str, float, float]]:
    return [(item.stream, item.start, item.end) for item in found.items]


def test_a_message_that_is_waited_for_at_once_is_exposed():
    found = played([op(3), op(4)], [(1, 1, message(5))])
    assert times(found) == [(COMPUTING, 0, 3), ("tp", 3, 8), (COMPUTING, 8, 12)]
    assert parts(found.spent) == {"products": 7, "exposed": 5} and found.seconds == 12


def test_a_message_shorter_than_what_runs_beside_it_is_hidden():
    found = played([op(3), op(4), op(2)], [(1, 2, message(4))])
    assert parts(found.spent) == {"products": 9, "hidden": 4} and found.seconds == 9


def test_a_longer_one_is_partly_exposed():
    found = played([op(3), op(4), op(2)], [(1, 2, message(10))])
    assert times(found) == [(COMPUTING, 0, 3), ("tp", 3, 13), (COMPUTING, 3, 7), (COMPUTING, 13, 15)]
    assert parts(found.spent) == {"products": 9, "hidden": 4, "exposed": 6} and found.seconds == 15


def test_messages_of_a_group_go_one_after_the_other():
    """Both issued at 1, waited for after 3 and after 5 more seconds: the second starts when the first has
    arrived."""
    found = played([op(1), op(3), op(2), op(1)], [(1, 2, message(2)), (1, 3, message(6))])
    assert [t for t in times(found) if t[0] == "tp"] == [("tp", 1, 3), ("tp", 3, 9)]
    assert parts(found.spent) == {"products": 7, "hidden": 2 + 3, "exposed": 3} and found.seconds == 10


def test_messages_of_two_groups_go_beside_each_other():
    found = played([op(1), op(3), op(2), op(1)], [(1, 2, message(2)), (1, 3, message(5, "dp"))])
    assert [t for t in times(found) if t[0] != COMPUTING] == [("tp", 1, 3), ("dp", 1, 6)]
    assert parts(found.spent) == {"products": 7, "hidden": 7} and found.seconds == 7


def test_ranks_of_the_group_are_asked_for():
    costs = RoundCosts()
    play([op()], [(0, 1, message(2, "dp")), (1, 1, message(3))], costs, RANKS)
    assert costs.asked == [("all_reduce", 2, (0, 2)), ("all_reduce", 3, (0, 1))]


@pytest.mark.parametrize(
    "takes, ends, hidden, exposed",
    [
        (2, 5.0, 2, 0),  # of 4 s of work 1 is done in the first 2 s; the rest at full speed
        (8, 9.0, 8, 0),  # beside it all the way: 4 s of work at half speed
        (10, 11.0, 8, 2),
    ],
)
def test_computing_slows_while_messages_are_under_way(takes, ends, hidden, exposed):
    found = played([op(1), op(4)], [(1, 2, message(takes))], slows=0.5)
    assert found.seconds == pytest.approx(ends + (takes == 2))  # 1 + 2 + 3, as 2 s did the work of one
    assert found.spent.hidden == pytest.approx(hidden) and found.spent.exposed == pytest.approx(exposed)
    assert found.spent.products == pytest.approx(found.seconds - exposed)


def test_slowing_stops_when_the_message_has_arrived():
    """10 s of work; after 2 s a queued message of another group's begins: 1 of 4 s at half speed each."""
    found = played([op(2), op(10)], [(1, 2, message(4)), (1, 2, message(4))], slows=0.5)
    assert found.seconds == pytest.approx(2 + 8 + 6)  # 8 s at half speed do 4, the other 6 run at full speed


def test_short_kernels_wait_for_the_host():
    """Four kernels of 1 s, each issued 3 s after the one before."""
    found = played([op(1)] * 4, dispatch=3.0)
    assert times(found) == [(COMPUTING, start, start + 1) for start in (3, 6, 9, 12)]
    assert parts(found.spent) == {"products": 4, "host": 3 + 2 + 2 + 2} and found.seconds == 13


def test_the_host_runs_ahead_of_long_kernels():
    found = played([op(10), op(1), op(1), op(1)], dispatch=3.0)
    assert parts(found.spent) == {"products": 13, "host": 3} and found.seconds == 16


def test_messages_are_issued_by_the_host_too():
    found = played([op(1), op(1)], [(1, 1, message(2))], dispatch=3.0)
    assert times(found) == [(COMPUTING, 3, 4), ("tp", 6, 8), (COMPUTING, 9, 10)]
    assert parts(found.spent) == {"products": 2, "host": 3 + 1, "exposed": 4} and found.seconds == 10


def test_absorbed_operations_are_not_issued():
    found = played([op(1), op(0, ABSORBED), op(1)], dispatch=3.0)
    assert found.seconds == 3 + 1 + 2 + 1


def test_absorbed_operations_are_free_on_a_gpu_and_counted_on_a_cpu():
    gpu = cluster("selene")
    absorbed = op(
        0, ABSORBED, flops=0, parts=(op(1 << 20, "aten.add", flops=0), op(1 << 20, "aten.mul", flops=0))
    )
    cpu = Costs(replace(gpu, accelerator=replace(gpu.accelerator, tiles=(), products=(), kernels=())))
    on_gpu = play([absorbed], [], Costs(gpu), RANKS)
    on_cpu = play([absorbed], [], cpu, RANKS)
    assert on_gpu.seconds == 0 and on_cpu.spent.host == 0
    assert (
        on_cpu.seconds == on_cpu.spent.elementwise == pytest.approx(sum(map(cpu.operation, absorbed.parts)))
    )


@pytest.mark.parametrize("ranks, share", [((0, 1), 24 / 108), ((0, 8), 4 / 108), (range(16), 4 / 108)])
def test_messages_take_multiprocessors_of_the_gpu(ranks, share):
    """24 channels of 108 multiprocessors inside a node of DGX A100, as NCCL's log says."""
    assert Costs(cluster("selene")).slowed(ranks) == pytest.approx(share)


def test_software_makes_operations_longer_and_messages_not():
    plain, slow = Costs(cluster("selene")), Costs(cluster("selene"), software=1.5)
    product = replace(op(1 << 20), inputs=((1024, 1024), (1024, 1024)), flops=2 << 30)
    assert slow.operation(product) == pytest.approx(1.5 * plain.operation(product))
    assert slow.message("all_reduce", 1e6, (0, 1)) == plain.message("all_reduce", 1e6, (0, 1))
    assert slow.dispatch == plain.dispatch == 6e-6


@pytest.mark.parametrize(
    "operation, name",
    [
        (op(phase="optimizer", flops=0), "optimizer"),
        (op(phase="recompute"), "recomputation"),
        (op(module="layers.3.attention.mixer"), "attention"),
        (op(module="layers.3.attention.mixer", flops=0, phase="backward"), "attention"),
        (op(module="layers.3.attention.mixer.qkv"), "products"),
        (op(module="layers.3.attention.mixer", name="common.rotary", flops=0), "elementwise"),
        (op(module="layers.3.mlp.mixer", flops=0), "elementwise"),
        (op(module="embedding", flops=0), "elementwise"),
    ],
)
def test_kinds_of_operations(operation, name):
    assert kind(operation) == name
    assert parts(played([operation]).spent) == {name: 1}


def test_messages_of_a_forward_pass_made_again_count_as_recomputation():
    found = played([op(1, phase="recompute")], [(1, 1, message(2, phase="recompute"))])
    assert parts(found.spent) == {"recomputation": 3}


@pytest.mark.parametrize(
    "rank, name, ranks",
    [
        (0, "tp", (0, 1)),
        (3, "dp", (1, 3)),
        (0, "dp+tp", (0, 1, 2, 3)),
        (1, "pp", (1, 5, 9)),
        (5, "pp 0", (5, 9)),
        (9, "pp 1", (9, 1)),
        (1, "pp ends", (1, 9)),
        (5, "pp ends", (5,)),
    ],
)
def test_groups_by_the_name_in_messages(rank, name, ranks):
    """tp 2, dp 2, pp 3: stages are four ranks apart."""
    assert sorted(group_of(Grid(tp=2, dp=2, pp=3), rank, name)) == sorted(ranks)


def ticking(program, dispatch: int) -> int:
    """Ticks until a program has run: a device, a host and one wire for each group, all looked at once a tick.

    program: ("op", seconds), ("start", number, group, seconds), ("wait", number); the host issues ops and
    starts in order.
    """
    issued, count = [], 0
    for step in program:
        count += step[0] != "wait"
        issued.append(count * dispatch)
    wires: dict[str, list] = {}
    left = {step[1]: step[3] for step in program if step[0] == "start"}
    at, tick, running = 0, 0, 0
    while True:
        while at < len(program) and not running:
            step = program[at]
            if step[0] == "start":
                wires.setdefault(step[2], []).append((issued[at], step[1]))
            elif step[0] == "op":
                if issued[at] > tick:
                    break
                running = step[1]
            elif left[step[1]]:
                break
            at += 1
        if at == len(program) and not running:
            return tick
        for queue in wires.values():
            while queue and not left[queue[0][1]]:
                queue.pop(0)
            if queue and queue[0][0] <= tick:
                left[queue[0][1]] -= 1
        running -= running > 0
        tick += 1


@st.composite
def passes(draw):
    """Operations of whole seconds, and messages with where they start and where they are waited for."""
    seconds = draw(st.lists(st.integers(1, 5), max_size=8))
    number = draw(st.integers(0, 5))
    starts = sorted(draw(st.lists(st.integers(0, len(seconds)), min_size=number, max_size=number)))
    sent = []
    for start in starts:
        wait = draw(st.integers(start, len(seconds)))
        sent.append((start, wait, message(draw(st.integers(1, 9)), draw(st.sampled_from(["tp", "dp"])))))
    return [op(s) for s in seconds], sent


def program_of(operations, sent):
    for i in range(len(operations) + 1):
        yield from (("start", n, m.group, m.bytes) for n, (start, _, m) in enumerate(sent) if start == i)
        yield from (("wait", n) for n, (_, wait, _) in enumerate(sent) if wait == i)
        if i < len(operations):
            yield "op", operations[i].read


@settings(max_examples=300, deadline=None)
@given(passes(), st.sampled_from([0, 1, 2, 4]))
def test_a_clock_that_ticks_agrees(made, dispatch):
    found = played(*made, dispatch=float(dispatch))
    assert found.seconds == ticking(list(program_of(*made)), dispatch)


@settings(max_examples=200, deadline=None)
@given(passes(), st.floats(0, 3), st.floats(0, 0.9))
def test_parts_add_up_to_the_end_of_the_last(made, dispatch, slows):
    operations, sent = made
    found = played(operations, sent, dispatch=dispatch, slows=slows)
    assert found.seconds == pytest.approx(max((item.end for item in found.items), default=0.0))
    assert all(value >= 0 for value in parts(found.spent).values())
    work, wire = sum(o.read for o in operations), sum(m.bytes for _, _, m in sent)
    assert work * (1 - 1e-9) <= found.spent.products <= work / (1 - slows) * (1 + 1e-9)
    assert found.spent.hidden <= wire * (1 + 1e-9)
    assert found.spent.exposed <= wire * (1 + 1e-9) + dispatch * (len(operations) + len(sent))
    computing = [item for item in found.items if item.stream == COMPUTING]
    assert all(a.end <= b.start + 1e-9 for a, b in zip(computing, computing[1:], strict=False))
    assert math.isclose(sum(item.seconds for item in computing), found.spent.products, abs_tol=1e-9)


def test_spent_adds_and_scales_field_by_field():
    one, two = Spent(1, 2, 3, 4, 5, 6, 7, 8), Spent(products=10, hidden=1)
    assert one + two == Spent(11, 2, 3, 4, 5, 6, 7, 9)
    assert one * 2 == Spent(2, 4, 6, 8, 10, 12, 14, 16)
    assert one.total == 1 + 2 + 3 + 4 + 5 + 6 + 7
