"""Messages between neighbouring stages: asynchronous, first in first out, one process group per direction and purpose.

A tensor that every tensor rank holds whole crosses as one slice per rank and is gathered on arrival (the scatter/gather
optimisation of arXiv:2104.04473, section 4.1). A channel keeps at most `buffers` messages under way; a receiver posts
the next receive as soon as it has taken the one before, so messages travel while both ends compute.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from common.collectives import all_gather
from common.layout import Group
from common.models.language_model import CarryShape

Shapes = dict[str, CarryShape]
Carry = dict[str, Tensor]


@dataclass(frozen=True)
class Cut:
    """How tensors cross. tp: the ranks that may share the sending of one tensor; active: whether they do."""

    tp: Group
    active: bool = True

    def sliced(self, shape: CarryShape) -> bool:
        return self.active and shape.replicated and self.tp.size > 1 and math.prod(shape.shape) % self.tp.size == 0

    def count(self, shape: CarryShape) -> int:
        """Elements of one tensor that this rank sends or receives."""
        return math.prod(shape.shape) // (self.tp.size if self.sliced(shape) else 1)

    def take(self, x: Tensor, shape: CarryShape) -> Tensor:
        """What this rank sends of x, 1-D."""
        flat = x.detach().contiguous().view(-1)
        return flat.chunk(self.tp.size)[self.tp.index] if self.sliced(shape) else flat

    def join(self, part: Tensor, shape: CarryShape) -> Tensor:
        """The whole tensor from what this rank received."""
        return (all_gather(part, self.tp) if self.sliced(shape) else part).view(shape.shape)


class Outbox:
    """The sending end of a channel. bytes: what this rank has put on the wire so far."""

    def __init__(self, group: Group, peer: int, cut: Cut):
        self.group, self.peer, self.cut = group, peer, cut
        self.bytes = 0
        self._under_way: deque[list[tuple[dist.Work, Tensor]]] = deque()

    def send(self, tensors: Carry, shapes: Shapes, buffers: int) -> None:
        """Begins to send; waits first while `buffers` earlier messages have not left."""
        while len(self._under_way) >= buffers:
            self._wait()
        message = []
        for name, shape in shapes.items():
            part = self.cut.take(tensors[name], shape)
            self.bytes += part.nbytes
            message.append((dist.isend(part, self.peer, group=self.group.handle), part))
        self._under_way.append(message)

    def _wait(self) -> None:
        for work, _ in self._under_way.popleft():
            work.wait()

    def finish(self) -> None:
        """Waits for everything."""
        while self._under_way:
            self._wait()


class Inbox:
    """The receiving end of a channel, for the messages of one run: `coming` gives their shapes, in order."""

    def __init__(self, group: Group, peer: int, cut: Cut, device: torch.device, coming: Iterator[Shapes], buffers: int):
        self.group, self.peer, self.cut, self.device, self.coming = group, peer, cut, device, coming
        self._posted: deque[tuple[Shapes, list[tuple[dist.Work, Tensor]]]] = deque()
        for _ in range(buffers):
            self._post()

    def _post(self) -> None:
        shapes = next(self.coming, None)
        if shapes is None:
            return
        message = []
        for shape in shapes.values():
            part = torch.empty(self.cut.count(shape), dtype=shape.dtype, device=self.device)
            message.append((dist.irecv(part, self.peer, group=self.group.handle), part))
        self._posted.append((shapes, message))

    def take(self) -> Carry:
        """The next message, once it is there."""
        shapes, message = self._posted.popleft()
        for work, _ in message:
            work.wait()
        self._post()
        return {name: self.cut.join(part, shape)
                for (name, shape), (_, part) in zip(shapes.items(), message, strict=True)}
