"""Main gradients: where they are kept, how they are summed over ranks, their norm and its clipping.

All of it follows from the parameters' own facts. Gradients are sums over tokens scaled by one global denominator before
backward, so every reduction here is a plain sum.
"""

import torch
from torch import Tensor, nn

from common.collectives import all_gather, all_reduce, start_all_reduce
from common.layout import Layout
from common.parameters import Facts, named


class Gradients:
    """One flat buffer of main gradients per reduction group, and views of it as `main_grad` of each parameter.

    Linear layers add their weight gradients into `main_grad` themselves; what autograd delivers otherwise is added as it
    arrives. dtype: of the buffers; fp32, or fp64 for fp64 parameters.
    """

    def __init__(self, model: nn.Module, layout: Layout, dtype: torch.dtype = torch.float32):
        self.layout = layout
        self.parameters = [(name, p, f) for name, p, f in named(model) if p.requires_grad]
        self.buffers: dict[tuple[str, ...], Tensor] = {}
        for axes in (("dp", "cp"), ("edp",)):
            mine = [p for _, p, f in self.parameters if f.expert == (axes == ("edp",))]
            if mine:
                self.buffers[axes] = self._allocate(mine, dtype)

    @staticmethod
    def _allocate(parameters: list[nn.Parameter], dtype: torch.dtype) -> Tensor:
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=parameters[0].device)
        at = 0
        for p in parameters:
            p.main_grad = flat[at:at + p.numel()].view_as(p)
            at += p.numel()
            if p.dtype == dtype:
                p.grad = p.main_grad  # autograd then accumulates in place by itself
            else:
                p.register_post_accumulate_grad_hook(_move_to_main)
        return flat

    def zero(self) -> None:
        for flat in self.buffers.values():
            flat.zero_()
        for _, p, _ in self.parameters:
            if p.dtype == p.main_grad.dtype:
                p.grad = p.main_grad

    @torch.no_grad()
    def reduce(self) -> None:
        """Sums over data-parallel ranks, over tensor ranks where a replicated parameter saw part of the tokens, and over
        the ranks that hold copies of one part."""
        for axes, flat in self.buffers.items():
            start_all_reduce(flat, self.layout.group(*axes), owned=True).wait()  # in place: flat is contiguous
        for group, members in self._shared().items():
            joined = torch.cat([p.main_grad.reshape(-1) for p in members])
            joined = all_reduce(joined, group)
            for p, total in zip(members, joined.split([p.numel() for p in members]), strict=True):
                p.main_grad.copy_(total.view_as(p))

    def _shared(self) -> dict:
        found: dict = {}
        for _, p, facts in self.parameters:
            if facts.partial:
                group = self.layout.group(*facts.partial)
            elif facts.copies(self.layout) > 1:
                group = self.layout.replicas(facts.axis, facts.parts)
            else:
                continue
            found.setdefault(group, []).append(p)
        return found

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The 2-norm over all logical gradients, each element counted once; the same 0-d fp64 tensor on every rank."""
        counted = [p.main_grad for _, p, facts in self.parameters if facts.first_copy(self.layout)]
        device = next(iter(self.buffers.values())).device
        squares = torch.zeros((), dtype=torch.float64, device=device)
        if counted:
            squares = torch.stack(torch._foreach_norm(counted)).double().square().sum()
        return all_reduce(squares, self.layout.group("tp", "pp")).sqrt()

    @torch.no_grad()
    def scale(self, factor: float | Tensor) -> None:
        """Multiplies every gradient by a number or a 0-d tensor."""
        for flat in self.buffers.values():
            flat.mul_(factor)

    @torch.no_grad()
    def clip(self, limit: float, norm: Tensor | None = None) -> Tensor:
        """Scales all gradients so that their norm is at most `limit`; returns the norm before."""
        norm = self.norm() if norm is None else norm
        self.scale((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm


def _move_to_main(p: nn.Parameter) -> None:
    if p.grad is not None:  # a layer that has accumulated by itself delivers nothing, and autograd calls all the same
        p.main_grad.add_(p.grad)
        p.grad = None


def gather_whole(x: Tensor, facts: Facts, layout: Layout) -> Tensor:
    """The whole logical tensor of which `x` is this rank's part (a parameter, its gradient or its optimizer state)."""
    if facts.axis is None or layout.size(facts.axis) == 1:
        return x.narrow(facts.dim, 0, facts.shape[facts.dim]).clone()
    rows = all_gather(x.movedim(facts.dim, 0).contiguous()[None], layout.group(facts.axis))
    parts = rows[::facts.copies(layout)].flatten(0, 1)
    return parts[: facts.shape[facts.dim]].movedim(0, facts.dim).contiguous()
