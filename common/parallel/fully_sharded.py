"""ZeRO stage 3 (arXiv:1910.02054) through torch's `fully_shard`, over data ranks alone.

This is what table 2 of arXiv:2104.04473 compares its own composition with, here on the same model. It is that
comparison and no second trainer: the model, the loss, the loop over micro-batches and the optimizer are those
of common/training/step.py. Each layer is a group of parameters that are gathered together; embedding and
output form the root's group, so a tied table is gathered and reduced once. Layers hand their weight gradients
to autograd, as parameters have no `main_grad` here. Each micro-batch's are summed over data ranks and added
to the part that this rank keeps, so whole gradients exist for one group at a time.

Parameters are stored flat and seen by their layers in their own shapes. fully_shard cuts, and pads, the first
dim, which is often shorter than the data ranks: 96 heads over 1,536 ranks would make the messages of a weight
sixteen times as long.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize

from common.collectives import all_reduce
from common.grid import Grid
from common.layers.context import Context
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.parallel.gradients import Gradients, Piece
from common.parameters import Facts, initialise
from common.pipeline.execute import Pipeline
from common.precision.policy import precision
from common.training.optimizer import AdamWConfig, Optimizer
from common.training.step import Execution, Training


def check(model: LanguageModelConfig, execution: Execution, grid: Grid) -> None:
    """Raises ValueError for a grid or a way of running that this comparison does not cover."""
    for axis in ("tp", "cp", "pp", "ep"):
        if (size := grid.size(axis)) > 1:
            raise ValueError(f"{axis}={size}: fully sharded training cuts over data ranks alone, "
                             f"use dp={grid.world}")
    if grid.dp < 2:
        raise ValueError("dp=1: fully sharded training needs at least 2 data ranks to cut over")
    wanted = {"schedule": "1f1b", "overlap": Execution.overlap, "sharded_optimizer": False, "compile": False,
              "reduce_in": "main"}
    for name, value in wanted.items():
        if (found := getattr(execution, name)) != value:
            raise ValueError(f"{name}={found!r}: fully sharded training needs {name}={value!r}")
    if execution.precision == "fp16":
        raise ValueError("precision='fp16': fully sharded training has no loss scale; use bf16, fp32 or fp64")
    execution.check(model, grid)


class Shaped(nn.Module):
    """A flat parameter as its layer sees it."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.shape = shape

    def forward(self, flat: Tensor) -> Tensor:
        return flat.view(self.shape)


def flatten(model: nn.Module) -> None:
    """Makes every parameter of the whole model 1-D, a tied one in both its places."""
    for module in list(model.modules()):
        for name, p in list(module.named_parameters(recurse=False)):
            p.data = p.data.view(-1)
            parametrize.register_parametrization(module, name, Shaped(p.facts.shape), unsafe=True)


def named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every flat parameter once, with the name that it had before."""
    for name, p in model.named_parameters():
        yield name.replace(".parametrizations.", ".").removesuffix(".original"), p


def mesh(layout: Layout, device: torch.device | str = "cpu") -> DeviceMesh:
    """The data ranks as torch's mesh, over the layout's own process group."""
    return DeviceMesh.from_group(layout.group("dp").handle, torch.device(device).type)


def shard(model: LanguageModel, ranks: DeviceMesh, parameters: torch.dtype,
          gradients: torch.dtype) -> dict[str, Facts]:
    """Cuts every parameter over `ranks`, in equal runs of its elements; returns the facts of each, by name.

    Layers compute with the dtype `parameters`. Gradients are reduced in `gradients`, as plain sums.
    """
    flatten(model)
    facts = {name: p.facts for name, p in named(model)}
    policy = MixedPrecisionPolicy(parameters, gradients, cast_forward_inputs=False)
    for module in (*model.layers.values(), model):
        fully_shard(module, mesh=ranks, mp_policy=policy)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return facts


class FullyShardedGradients:
    """The gradients that this rank keeps, with the operations that a training asks of its gradients.

    flat: all of this rank's parts, 1-D. Each parameter's `grad` is a view of it, to which fully_shard adds in
    place, so nothing is left to reduce after backward.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, facts: dict[str, Facts], layout: Layout, dtype: torch.dtype):
        self.parameters = [(name, p, facts[name]) for name, p in named(model)]
        self.layout = layout
        parts = [p.to_local() for _, p, _ in self.parameters]
        sizes = [x.numel() for x in parts]
        self.flat = torch.zeros(sum(sizes), dtype=dtype, device=parts[0].device)
        self._pieces = []
        for (name, p, f), x, grad in zip(self.parameters, parts, self.flat.split(sizes), strict=True):
            p.grad = DTensor.from_local(grad, p.device_mesh, p.placements, run_check=False, shape=p.shape,
                                        stride=p.stride())
            if x.numel():  # fewer elements than ranks leave the last ones without
                start = layout.index("dp") * math.ceil(p.numel() / layout.size("dp"))
                self._pieces.append(Piece(name, f, start, x, grad))

    def pieces(self) -> list[Piece]:
        """What this rank updates."""
        return self._pieces

    def zero(self) -> None:
        self.flat.zero_()

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The 2-norm over all gradients, each counted once; the same 0-d fp64 tensor on every rank."""
        squares = torch.linalg.vector_norm(self.flat, dtype=torch.float64).square()
        return all_reduce(squares, self.layout.group("dp")).sqrt()

    @torch.no_grad()
    def scale(self, factor: float | Tensor) -> None:
        """Multiplies every gradient by a number or a 0-d tensor."""
        self.flat.mul_(factor)

    clip = Gradients.clip

    def reduce(self) -> None:
        """Nothing: every backward has reduced what it made."""

    def gather_values(self) -> None:
        """Nothing: every forward gathers anew."""


def build(config: LanguageModelConfig, execution: Execution, adamw: AdamWConfig, layout: Layout, seed: int,
          device: torch.device | str = "cpu") -> Training:
    """A freshly initialised training of which each data rank keeps a part of every parameter, gradient and
    moment.

    What common/training/step.py does with a training, it does with this one. Parameters start as they do in
    any layout, drawn whole and rounded to the dtype that layers compute with; each rank then keeps its part
    in the main dtype.
    """
    check(config, execution, layout.grid)
    types = precision(execution.precision)
    context = Context(layout, execution.kernels, dtype=types.main, device=device)
    model = LanguageModel(config, context, execution.recompute)
    initialise(model, layout, seed)
    for p in model.parameters():
        p.data.copy_(p.data.to(types.parameters))
    facts = shard(model, mesh(layout, device), types.parameters, types.gradients)
    gradients = FullyShardedGradients(model, facts, layout, types.gradients)
    return Training(layout, [model], Pipeline([model], layout, device), execution.schedule,
                    overlap=False,  # for the pipeline to start reductions: fully_shard does by itself
                    gradients=gradients, optimizer=Optimizer(gradients, adamw), loss_scale=None)
