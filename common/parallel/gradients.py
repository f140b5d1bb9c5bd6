"""Main gradients: where they are kept, how they are summed over ranks, their norm and its clipping.

All of it follows from the parameters' own facts. Gradients are sums over tokens scaled by one global denominator before
backward, so every reduction here is a plain sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

import torch
from torch import Tensor, nn

from common.collectives import (
    Pending,
    all_gather,
    all_reduce,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)
from common.layout import Group, Layout
from common.parameters import Facts, named

BUCKET = 25 * 2**20  # elements of a bucket; large enough for full bandwidth, small enough to start early


@dataclass(frozen=True)
class Piece:
    """What this rank updates of one parameter: a run of its stored part, from element `start` of it flattened.

    value: that run of the parameter itself; gradient: of its main gradient, valid after `reduce`. Both 1-D.
    """

    name: str
    facts: Facts
    start: int
    value: Tensor
    gradient: Tensor


class Bucket:
    """Parameters whose main gradients lie in one buffer and are reduced over data ranks in one message.

    reduce_in: dtype of that message, where it is not the buffer's.
    flat: all their main gradients, of which every parameter's `main_grad` is a view. sharded: this rank then keeps the sum
    of only its part of the buffer, `shard`, and the parameters too lie in one buffer, `values`, to be gathered in place.
    """

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter, Facts]], group: Group, dtype: torch.dtype,
                 sharded: bool, reduce_in: torch.dtype):
        self.parameters, self.group, self.reduce_in = list(parameters), group, reduce_in
        self.sharded = sharded and group.size > 1
        self._pending: Pending | None = None
        self.waiting: set[str] = set()
        ps = [p for _, p, _ in self.parameters]
        used = sum(p.numel() for p in ps)
        whole = used + (-used % group.size if self.sharded else 0)
        self.flat = torch.zeros(whole, dtype=dtype, device=ps[0].device)
        self.values = torch.zeros(whole, dtype=ps[0].dtype, device=ps[0].device) if self.sharded else None
        each = whole // group.size if self.sharded else whole
        self.first = each * group.index if self.sharded else 0
        self.shard = torch.zeros(each, dtype=dtype, device=ps[0].device) if self.sharded else self.flat
        at = 0
        for p in ps:
            end = at + p.numel()
            p.main_grad = self.flat[at:end].view_as(p)
            if self.values is not None:
                self.values[at:end].copy_(p.data.reshape(-1))
                p.data = self.values[at:end].view_as(p)
            at = end

    @cached_property
    def pieces(self) -> list[Piece]:
        found, at = [], 0
        last = self.first + self.shard.numel()
        for name, p, facts in self.parameters:
            low, high = max(at, self.first), min(at + p.numel(), last)
            if low < high:
                found.append(Piece(name, facts, low - at, p.detach().view(-1)[low - at:high - at],
                                   self.shard[low - self.first:high - self.first]))
            at += p.numel()
        return found

    def start(self) -> None:
        """Begins the sum over data ranks."""
        sent = self.flat.to(self.reduce_in) if self.group.size > 1 else self.flat
        if self.sharded:
            self._pending = start_reduce_scatter(sent, self.group, self.shard if sent is self.flat else None)
        else:
            self._pending = start_all_reduce(sent, self.group, owned=True)  # in place: sent is contiguous

    def finish(self) -> None:
        if self._pending is None:
            self.start()
        total = self._pending.wait()
        if total.dtype != self.shard.dtype:
            self.shard.copy_(total)
        self._pending = None

    @property
    def started(self) -> bool:
        return self._pending is not None

    def start_gather(self) -> Pending:
        """Begins to collect every rank's part of the parameters, once it has been updated."""
        own = self.values[self.first:self.first + self.shard.numel()].clone()
        return start_all_gather(own, self.group, self.values)


class Gradients:
    """The main gradients of one rank's stages, in buckets in the order in which backward completes them.

    Linear layers add their weight gradients into `main_grad` themselves; what autograd delivers otherwise is added as it
    arrives. dtype: of the buffers; fp32, or fp64 for fp64 parameters. sharded: each data rank keeps the sums, main
    parameters and moments of its part of every bucket alone (ZeRO stage 1, arXiv:1910.02054). bucket: elements. reduce_in:
    dtype in which data ranks send them, None for their own.

    Gradients that other ranks of the model add to (tied embeddings, norms under sequence parallelism, shared key-value
    heads) have buckets of their own, reduced over data ranks only after that sum.
    """

    def __init__(self, stages: Sequence[nn.Module], layout: Layout, dtype: torch.dtype = torch.float32,
                 sharded: bool = False, bucket: int = BUCKET, reduce_in: torch.dtype | None = None):
        self.layout, self.reduce_in = layout, reduce_in or dtype
        self.parameters: list[tuple[str, nn.Parameter, Facts]] = []
        self.chunks: list[list[Bucket]] = []  # per chunk, those that can be reduced as soon as backward is done
        self.late: list[Bucket] = []
        self._expecting = False
        shared = []
        for chunk, stage in enumerate(stages):
            mine = [(n, p, f) for n, p, f in named(stage) if p.requires_grad]
            self.parameters += mine
            alone = [x for x in reversed(mine) if self._shared_with(x[2]) is None]
            shared += [x for x in mine if self._shared_with(x[2]) is not None]
            self.chunks.append(self._buckets(alone, dtype, sharded, bucket))
            for b in self.chunks[chunk]:
                for name, p, _ in b.parameters:
                    p.register_post_accumulate_grad_hook(partial(self._arrived, b, chunk, name))
        self.late = self._buckets(shared, dtype, sharded, bucket)
        for _, p, _ in shared:
            p.register_post_accumulate_grad_hook(_move_to_main)
        self.zero()

    def _buckets(self, parameters, dtype: torch.dtype, sharded: bool, size: int) -> list[Bucket]:
        """Those that both ends of the pipeline hold have buckets of their own, so that data ranks cut both copies alike:
        an update rounds an element in the middle of its run and one at the end of it differently."""
        found = []
        for expert, both in product((False, True), repeat=2):
            group = self.layout.group("edp") if expert else self.layout.group("dp", "cp")
            waiting, elements = [], 0
            mine = [x for x in parameters if (x[2].expert, bool(x[2].copied or x[2].copy_of)) == (expert, both)]
            for i, x in enumerate(mine):
                waiting.append(x)
                elements += x[1].numel()
                if elements >= size or i == len(mine) - 1:
                    found.append(Bucket(waiting, group, dtype, sharded, self.reduce_in))
                    waiting, elements = [], 0
        return found

    def _shared_with(self, facts: Facts) -> Group | None:
        """The ranks of the model, beyond data ranks, whose gradients of this parameter must be added up."""
        if facts.partial:
            return self.layout.group(*facts.partial)
        if facts.copied or facts.copy_of:
            return self.layout.ends()
        if facts.copies(self.layout) > 1:
            return self.layout.replicas(facts.axis, facts.parts)
        return None

    @property
    def buckets(self) -> list[Bucket]:
        return [*(b for chunk in self.chunks for b in chunk), *self.late]

    def pieces(self) -> list[Piece]:
        """What this rank updates; the buckets' order."""
        return [piece for b in self.buckets for piece in b.pieces]

    def zero(self) -> None:
        for b in self.buckets:
            b.flat.zero_()
        for _, p, _ in self.parameters:
            if p.dtype == p.main_grad.dtype:
                p.grad = p.main_grad  # autograd then accumulates in place by itself

    def expect(self, chunk: int) -> None:
        """The backward pass that begins is the chunk's last: its buckets are reduced as they fill."""
        for b in self.chunks[chunk]:
            b.waiting = {name for name, _, _ in b.parameters}
        self._expecting = True

    def _arrived(self, bucket: Bucket, chunk: int, name: str, p: nn.Parameter) -> None:
        _move_to_main(p)
        if self._expecting:
            bucket.waiting.discard(name)
            self._start(chunk)

    def _start(self, chunk: int) -> None:
        """Starts the chunk's buckets that are full, in order, so that all data ranks start the same ones alike."""
        for b in self.chunks[chunk]:
            if b.waiting:
                return
            if not b.started:
                b.start()

    def complete(self, chunk: int) -> None:
        """The chunk's gradients are all there: whatever has not been started yet is."""
        self._expecting = False
        for b in self.chunks[chunk]:
            b.waiting = set()
        self._start(chunk)

    @torch.no_grad()
    def reduce(self) -> None:
        """Sums over data-parallel ranks, over tensor ranks where a replicated parameter saw part of the tokens, over the
        ranks that hold copies of one part, and over both ends of the pipeline that hold the embedding."""
        shared: dict[Group, list[nn.Parameter]] = {}
        for b in self.late:
            for _, p, facts in b.parameters:
                shared.setdefault(self._shared_with(facts), []).append(p)
        for group, members in shared.items():
            joined = torch.cat([p.main_grad.reshape(-1) for p in members])
            joined = start_all_reduce(joined, group, owned=True).wait()
            for p, total in zip(members, joined.split([p.numel() for p in members]), strict=True):
                p.main_grad.copy_(total.view_as(p))
        for b in self.buckets:
            if not b.started:
                b.start()
        for b in self.buckets:
            b.finish()

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The 2-norm over all logical gradients, each element counted once; the same 0-d fp64 tensor on every rank."""
        counted = [piece.gradient for b in self.buckets if b.sharded or b.group.index == 0
                   for piece in b.pieces if piece.facts.first_copy(self.layout)]
        squares = torch.zeros((), dtype=torch.float64, device=self.buckets[0].flat.device)
        if counted:
            squares = torch.stack(torch._foreach_norm(counted)).double().square().sum()
        return all_reduce(squares, self.layout.group("tp", "cp", "dp", "pp")).sqrt()

    @torch.no_grad()
    def scale(self, factor: float | Tensor) -> None:
        """Multiplies every reduced gradient by a number or a 0-d tensor."""
        for b in self.buckets:
            b.shard.mul_(factor)

    @torch.no_grad()
    def clip(self, limit: float, norm: Tensor | None = None) -> Tensor:
        """Scales all gradients so that their norm is at most `limit`; returns the norm before."""
        norm = self.norm() if norm is None else norm
        self.scale((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def gather_values(self) -> None:
        """After an update: every data rank gets the parts of the parameters that the others have updated."""
        for pending in [b.start_gather() for b in self.buckets if b.sharded]:
            pending.wait()


def _move_to_main(p: nn.Parameter) -> None:
    # A layer that has accumulated by itself delivers nothing, and autograd calls all the same.
    if p.grad is not None and p.dtype != p.main_grad.dtype:
        p.main_grad.add_(p.grad)
        p.grad = None


def gather_whole(x: Tensor, facts: Facts, layout: Layout) -> Tensor:
    """The whole logical tensor of which `x` is this rank's part (a parameter, its gradient or its optimizer state)."""
    if facts.axis is None or layout.size(facts.axis) == 1:
        return x.narrow(facts.dim, 0, facts.shape[facts.dim]).clone()
    rows = all_gather(x.movedim(facts.dim, 0).contiguous()[None], layout.group(facts.axis))
    parts = rows[::facts.copies(layout)].flatten(0, 1)
    return parts[: facts.shape[facts.dim]].movedim(0, facts.dim).contiguous()
