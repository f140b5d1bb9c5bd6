"""Streams that remember who waits for whom, and what they tell of the messages that fully_shard sends.

torch's CPU streams do nothing, as a CPU computes in order. What is written for a GPU uses them all the same;
on streams that keep account, its own calls tell how early a message may start and when its result is needed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from common.trace.record import Message, Operation, Recorder


@dataclass(frozen=True)
class Transfer(Message):
    """A message, and when it may travel. module: whose parameters it carries; "" for those outside the
    layers.

    start: how many operations of the computing stream must be complete before it may begin. end: how many run
    before its result is waited for; so operations start .. end - 1 may run beside it, where the host issues
    far enough ahead. Messages of one group take turns in the order of the list: one communicator carries them
    all. issued: operations before it in the order of the program. copies: what runs on the message's own
    stream: before an all-gather, casting and copying this rank's part; after a reduce-scatter, adding to this
    part.
    """

    issued: int = 0
    copies: tuple[Operation, ...] = ()

    @property
    def ahead(self) -> int:
        return self.issued - self.start


class Event:
    """Where a stream stood: the operations of the computing stream and the messages that it had to follow."""

    def __init__(self):
        self.work, self.messages = 0, frozenset()

    def record(self, stream: "Stream | None" = None) -> None:
        (stream or torch.cpu.current_stream()).record_event(self)

    def wait(self, stream: "Stream | None" = None) -> None:
        (stream or torch.cpu.current_stream()).wait_event(self)


class Stream:
    """A stream for messages. work, messages: what the next thing on it has to follow, messages by number."""

    def __init__(self, priority: int = 0):
        self.work = 0
        self.messages: set[int] = set()

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.work, event.messages = self.work, frozenset(self.messages)
        return event

    def wait_event(self, event: Event) -> None:
        self.work = max(self.work, event.work)
        self.messages |= event.messages

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())


class Streams(Stream):
    """The computing stream, with the account of all.

    recorder: whose operations and messages are told apart by stream, from when it is set. blocks: by phase
    and module, how many operations and messages there were once the computing stream had waited for its
    parameters.
    """

    def __init__(self):
        super().__init__()
        self.recorder: Recorder | None = None
        self.blocks: dict[tuple[str, str], tuple[int, int]] = {}
        self._chosen: list[Stream] = [self]
        self._ran_on: list[Stream] = []  # of each recorded operation
        self._sent: dict[int, tuple[Stream, Transfer]] = {}

    def _settle(self) -> None:
        """What has been recorded since the last time ran on the stream that is still the current one."""
        new = len(self.recorder.operations) - len(self._ran_on) if self.recorder else 0
        self._ran_on += [self._chosen[-1]] * new
        if self._chosen[-1] is self:
            self.work += new

    @contextmanager
    def _choose(self, stream: Stream) -> Iterator[None]:
        self._settle()
        self._chosen.append(stream)
        try:
            yield
        finally:
            self._settle()
            self._chosen.pop()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the CPU device's streams keep account, and this one is current where no other is chosen."""
        ours = {"Stream": Stream, "Event": Event, "stream": self._choose,
                "current_stream": lambda device=None: self._chosen[-1]}
        torch_s = {name: getattr(torch.cpu, name) for name in ours}
        for name, value in ours.items():
            setattr(torch.cpu, name, value)
        try:
            yield
        finally:
            for name, value in torch_s.items():
                setattr(torch.cpu, name, value)

    def record_event(self, event: Event | None = None) -> Event:
        self._settle()
        return super().record_event(event)

    def wait_event(self, event: Event) -> None:
        """Messages that this stream waits for now, and has not before, must have arrived."""
        self._settle()
        new = event.messages - self.messages
        self.messages |= new
        for n in sorted(new & self._sent.keys()):
            stream, message = self._sent[n]
            self._sent[n] = stream, replace(message, end=self.work)
            if message.name == "all_gather":
                self.blocks[self.recorder.phase, message.module] = self.work, len(self.recorder.messages)

    @contextmanager
    def sending(self, module: str) -> Iterator[None]:
        """Inside, one message with the parameters of `module` is issued on the current stream."""
        yield
        n, stream = len(self.recorder.messages) - 1, self._chosen[-1]
        if stream is not self:
            message = self.recorder.messages[n]
            self._sent[n] = stream, Transfer(**{**vars(message), "module": module, "start": stream.work},
                                             issued=self.work)
            stream.messages.add(n)

    def told_apart(self) -> tuple[list[Operation], list[Transfer]]:
        """Operations of this stream, and messages with their windows and what runs on their own streams."""
        self._settle()
        before = [0]  # of each recorded operation, how many of this stream stand before it
        for stream in self._ran_on:
            before.append(before[-1] + (stream is self))
        messages, streams = [], []
        for n, m in enumerate(self.recorder.messages):
            at = before[m.start]
            here = Transfer(**{**vars(m), "start": at, "end": at}, issued=at)  # if it was sent on this stream
            stream, message = self._sent.get(n, (self, here))
            messages.append(message)
            streams.append(stream)
        operations = []
        for i, (o, stream) in enumerate(zip(self.recorder.operations, self._ran_on, strict=True)):
            if stream is self:
                operations.append(o)
                continue
            after = sum(m.start <= i for m in self.recorder.messages)  # messages issued before this operation
            n = after - 1 if after and streams[after - 1] is stream else after
            messages[n] = replace(messages[n], copies=(*messages[n].copies, _placed(o, messages[n].module)))
        for m in messages:  # copies in and out run in hooks, which belong to no module
            at = {"all_gather": m.end, "reduce_scatter": m.issued - 1}.get(m.name)
            if at is not None:
                operations[at] = replace(operations[at], module=m.module)
        return operations, messages


def _placed(o: Operation, module: str) -> Operation:
    """An operation on a message's stream, in its module."""
    if o.name != "fsdp.all_gather_copy_in":
        return replace(o, module=module)
    # It returns the whole buffer, its last input, after filling this rank's part of it with the others.
    part = sum(map(math.prod, o.inputs[:-1])) * getattr(torch, o.dtype).itemsize
    return replace(o, module=module, read=part, written=part)
