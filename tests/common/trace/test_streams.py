"""Streams that keep account, on sequences short enough to work out by hand, as a GPU's streams order them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from common.trace.record import Message, Operation
from common.trace.streams import Event, Stream, Streams


def operation(name: str) -> Operation:
    return Operation(f"aten.{name}", "forward", "", ((2, 3), (4,), (60,)), ((2, 3),), "bfloat16", 0, 1, 1)


class Script:
    """A recorder that records what it is told."""

    def __init__(self):
        self.phase, self.operations, self.messages = "forward", [], []

    def run(self, *names: str) -> None:
        self.operations += map(operation, names)

    def send(self, name: str) -> None:
        self.messages.append(Message(name, "dp", 2, 8, "bfloat16", self.phase, "", len(self.operations)))


@pytest.fixture
def world():
    streams = Streams()
    with streams.in_place():
        streams.recorder = Script()
        yield SimpleNamespace(streams=streams, record=streams.recorder, comm=torch.cpu.Stream(priority=-1))


def send(world, name: str, module: str, *around: str) -> Event:
    with torch.cpu.stream(world.comm):
        with world.streams.sending(module):
            world.record.send(name)
        world.record.run(*around)
        return world.comm.record_event()


def test_a_message_may_start_after_what_its_stream_waited_for_and_is_needed_where_it_is_waited_for(world):
    world.record.run("a", "b")
    early = torch.cpu.current_stream().record_event()
    world.record.run("c", "d", "e")
    world.comm.wait_event(early)
    arrived = send(world, "all_gather", "one")
    world.record.run("f", "g")
    arrived.wait()
    world.record.run("h", "i")
    arrived.wait()  # nothing new
    operations, (message,) = world.streams.told_apart()
    assert [o.name for o in operations] == [f"aten.{x}" for x in "abcdefghi"]
    assert (message.start, message.issued, message.end, message.module) == (2, 5, 7, "one")
    assert world.streams.blocks == {("forward", "one"): (7, 1)}
    assert operations[7].module == "one" and {o.module for o in operations[:7]} == {""}


def test_an_event_holds_only_what_was_there_when_it_was_recorded(world):
    world.comm.wait_stream(torch.cpu.current_stream())
    first = send(world, "all_gather", "one")
    send(world, "all_gather", "two")
    world.record.run("a")
    first.wait()
    world.record.run("b")
    torch.cpu.current_stream().wait_stream(world.comm)
    world.record.run("c")
    assert [(m.start, m.end) for m in world.streams.told_apart()[1]] == [(0, 1), (0, 2)]


def test_waiting_reaches_through_a_stream_in_between(world):
    between = Stream()
    world.record.run("a")
    send(world, "all_gather", "one")
    between.wait_stream(world.comm)
    world.record.run("b", "c")
    torch.cpu.current_stream().wait_stream(between)
    world.record.run("d")
    (message,) = world.streams.told_apart()[1]
    assert (message.start, message.end) == (0, 3)


def test_operations_of_other_streams_go_with_the_message_that_they_serve(world):
    """Before a gather on a stream of their own; after a scatter on its own. Neither counts as computing."""
    inward = Stream()
    world.record.run("a", "fill")
    world.comm.wait_stream(torch.cpu.current_stream())
    send(world, "reduce_scatter", "one", "add", "add")
    with torch.cpu.stream(inward):
        world.record.run("cast")
        world.record.operations.append(replace(operation("x"), name="fsdp.all_gather_copy_in"))
    send(world, "all_gather", "two").wait()
    world.record.run("b")
    world.record.send("all_reduce")
    operations, (scattered, gathered, reduced) = world.streams.told_apart()
    assert [o.name for o in operations] == ["aten.a", "aten.fill", "aten.b"]
    assert [o.module for o in operations] == ["", "one", "two"]
    assert [(o.name, o.module) for o in scattered.copies] == [("aten.add", "one")] * 2
    assert [o.name for o in gathered.copies] == ["aten.cast", "fsdp.all_gather_copy_in"]
    assert {o.module for o in gathered.copies} == {"two"}
    assert (gathered.copies[1].read, gathered.copies[1].written) == (20, 20)  # 6 + 4 elements of two bytes
    assert (scattered.start, scattered.issued, scattered.end) == (2, 2, 2)  # the gather came after it
    assert (reduced.start, reduced.issued, reduced.end, reduced.copies) == (3, 3, 3, ())


def test_torch_sees_them_inside_and_its_own_after_an_error():
    names = ("Stream", "Event", "stream", "current_stream")
    before = [getattr(torch.cpu, name) for name in names]
    streams = Streams()
    with pytest.raises(ZeroDivisionError), streams.in_place():
        other = torch.cpu.Stream(priority=-1)
        assert torch.cpu.current_stream() is streams
        with torch.cpu.stream(other):
            assert torch.cpu.current_stream() is other
            with pytest.raises(KeyError), torch.cpu.stream(streams):
                raise KeyError
            assert torch.cpu.current_stream() is other
        raise ZeroDivisionError
    assert [getattr(torch.cpu, name) for name in names] == before
