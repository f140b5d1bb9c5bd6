"""Runs a schedule over one rank's stages: the very object that is validated, simulated and drawn.

Every stage takes its micro-batch from the same list of records, whatever the order of actions. A stage's output is let
go once it is sent: what backward needs of it is its place in the graph, not its data (arXiv:2205.05198, appendix B).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from common.layers.linear import deferred_weight_gradients
from common.layout import Layout
from common.models.language_model import LossTerm
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.pipeline.schedule import KEEP, KINDS, Action, Schedule
from common.pipeline.wire import Carry, Cut, Inbox, Outbox, Shapes
from common.recompute.policy import keeping


@dataclass
class Alive:
    """What stays of a micro-batch in a stage between its forward and its backward.

    inputs: the received carry, which collects its gradient. roots: where backward starts, and names: which part of the
    carry each root is. later: weight gradients not computed yet.
    """

    inputs: Carry
    roots: list
    names: list[str]
    later: list[Callable[[], None]] = field(default_factory=list)


class Pipeline:
    """This rank's stages, chunk by chunk, with the channels to its neighbours.

    stages: callables (record, carry) -> (carry, loss terms) with a method carry(record) -> shapes. timeline: set it to a
    list to collect (action, start, end) in seconds of time.perf_counter. overlap: the next action begins while messages
    are under way, not when they have left.
    """

    def __init__(self, stages: Sequence[nn.Module], layout: Layout, device: torch.device | str | None = None,
                 scatter_gather: bool = True, overlap: bool = True):
        self.stages, self.layout, self.device = list(stages), layout, torch.device(device or "cpu")
        self.cut, self.overlap = Cut(layout.group("tp"), scatter_gather), overlap
        self.timeline: list[tuple[Action, float, float]] | None = None
        ring, line, here = len(self.stages) > 1, layout.grid.group(layout.rank, "pp"), layout.index("pp")
        self._before, self._after = line[here - 1], line[(here + 1) % len(line)]
        self._activations, self._gradients = (layout.neighbours(p, ring) for p in ("activations", "gradients"))
        self._activations_out = self._outbox(self._activations[1], self._after)
        self._gradients_out = self._outbox(self._gradients[0], self._before)

    def _outbox(self, group, peer: int) -> Outbox | None:
        return Outbox(group, peer, self.cut) if group else None

    def _inbox(self, group, peer: int, coming: list[Shapes], buffers: int) -> Inbox | None:
        return Inbox(group, peer, self.cut, self.device, iter(coming), buffers) if group else None

    @property
    def sent_by_direction(self) -> tuple[int, int]:
        """Bytes of activations and of gradients that this rank has put on the wire so far."""
        activations, gradients = (box.bytes if box else 0 for box in (self._activations_out, self._gradients_out))
        return activations, gradients

    @property
    def bytes_sent(self) -> int:
        return sum(self.sent_by_direction)

    def run(self, schedule: Schedule, records: Sequence[Record], loss: Callable[[dict[str, LossTerm]], Tensor] | None = None,
            gradients: Gradients | None = None) -> dict[str, Tensor]:
        """Executes this rank's actions. loss: from the last stage's terms to the number that backward starts from.

        Returns for each loss term its (sum, count) over the records, fp64, empty where the last stage is elsewhere. With
        `gradients`, each chunk's reduction over data ranks begins as its last gradients arrive.
        """
        rank = self.layout.index("pp")
        if (schedule.ranks, schedule.chunks) != (self.layout.size("pp"), len(self.stages)) \
                or schedule.micro_batches != len(records):
            raise ValueError(f"schedule {schedule.name} is for pp={schedule.ranks}, {schedule.chunks} chunks and "
                             f"{schedule.micro_batches} micro-batches; here are pp={self.layout.size('pp')}, "
                             f"{len(self.stages)} and {len(records)}")
        run = _Run(self, schedule, rank, records, loss, gradients)
        for position, action in enumerate(run.actions):
            start = time.perf_counter()
            run.act(position, action)
            if self.timeline is not None:
                self.timeline.append((action, start, time.perf_counter()))
        for box in (self._activations_out, self._gradients_out):
            if box:
                box.finish()
        return run.totals


class _Run:
    """One pass over a schedule."""

    def __init__(self, pipeline: Pipeline, schedule: Schedule, rank: int, records: Sequence[Record], loss, gradients):
        self.pipeline, self.schedule, self.rank, self.records = pipeline, schedule, rank, records
        self.loss, self.gradients = loss, gradients
        self.actions = list(schedule.of(rank))
        self.totals: dict[str, Tensor] = {}
        self.alive: dict[tuple[int, int], Alive] = {}
        # The last action of each chunk that completes weight gradients.
        self.final = {a.chunk: i for i, a in enumerate(self.actions) if "weight gradient" in KINDS[a.kind].serves}
        arriving = {-1: [], +1: []}
        for a in self.actions:
            side = KINDS[a.kind].message
            if side and 0 <= self._stage(a) + side < schedule.stages:
                arriving[side].append(self._shapes(a, floats=side > 0))
        p = pipeline
        self.activations_in = p._inbox(p._activations[0], p._before, arriving[-1], schedule.buffers)
        self.gradients_in = p._inbox(p._gradients[1], p._after, arriving[+1], schedule.buffers)

    def _stage(self, action: Action) -> int:
        return self.schedule.stage(self.rank, action.chunk)

    def _shapes(self, action: Action, floats: bool = False) -> Shapes:
        shapes = self.pipeline.stages[action.chunk].carry(self.records[action.micro_batch])
        return {n: s for n, s in shapes.items() if s.dtype.is_floating_point or not floats}

    def _send(self, box: Outbox, tensors: Carry, shapes: Shapes) -> None:
        box.send(tensors, shapes, self.schedule.buffers)
        if not self.pipeline.overlap:
            box.finish()

    def act(self, position: int, action: Action) -> None:
        match action.kind:
            case "forward":
                self._forward(action)
            case "weight_gradient":
                for add in self.alive.pop((action.chunk, action.micro_batch)).later:
                    add()
            case _:
                self._backward(action, final=self.final[action.chunk] == position)
        if self.gradients and self.final.get(action.chunk) == position:
            self.gradients.complete(action.chunk)

    def _forward(self, action: Action) -> None:
        stage, record = self.pipeline.stages[action.chunk], self.records[action.micro_batch]
        first, last = self._stage(action) == 0, self._stage(action) == self.schedule.stages - 1
        inputs = {} if first else self.activations_in.take()
        if torch.is_grad_enabled():
            for x in inputs.values():
                x.requires_grad_(x.dtype.is_floating_point)
        with keeping() if action.flags & KEEP else nullcontext():
            carry, terms = stage(record, dict(inputs))
        roots, names = [], []
        if last:
            self._count(terms)
            roots, names = ([self.loss(terms)], [""]) if self.loss else ([], [])
        else:
            self._send(self.pipeline._activations_out, carry, self._shapes(action))
            names = [n for n, x in carry.items() if x.requires_grad]
            roots = [get_gradient_edge(carry[n]) for n in names]
        if roots:
            self.alive[action.chunk, action.micro_batch] = Alive(inputs, roots, names)

    def _backward(self, action: Action, final: bool) -> None:
        split = action.kind == "input_gradient"
        key = action.chunk, action.micro_batch
        alive = self.alive.pop(key)
        last = self._stage(action) == self.schedule.stages - 1
        grads = {} if last else self.gradients_in.take()
        if final and self.gradients and not split:
            self.gradients.expect(action.chunk)
        deferring: AbstractContextManager = deferred_weight_gradients() if split else nullcontext([])
        with deferring as later:
            torch.autograd.backward(alive.roots, [grads.get(n) for n in alive.names])
        if self._stage(action) > 0:
            shapes = self._shapes(action, floats=True)
            back = {n: torch.zeros_like(alive.inputs[n]) if alive.inputs[n].grad is None else alive.inputs[n].grad
                    for n in shapes}
            self._send(self.pipeline._gradients_out, back, shapes)
        if split:
            self.alive[key] = Alive({}, [], [], later)

    def _count(self, terms: dict[str, LossTerm]) -> None:
        for name, term in terms.items():
            pair = torch.stack([term.sum.detach().double(), term.count.double()])
            self.totals[name] = self.totals[name] + pair if name in self.totals else pair
