"""What of a recipe does not divide evenly, what that costs, and what would."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from common.pipeline.stages import cuts
from common.predict.machine import Cluster
from common.training.recipe import Recipe


class Uneven(NamedTuple):
    what: str
    costs: str
    would: str


def uneven(recipe: Recipe, known: Cluster) -> Iterator[Uneven]:
    """Of a recipe that can run: what cannot is refused before (common/training/recipe.py)."""
    yield from _vocabulary(recipe)
    yield from _stages(recipe)
    yield from _micro_batches(recipe)
    yield from _nodes(recipe, known)
    yield from _products(recipe, known)


def _vocabulary(recipe: Recipe) -> Iterator[Uneven]:
    vocab, tp = recipe.model.vocab, recipe.grid.tp
    if vocab % tp:
        whole = math.ceil(vocab / tp) * tp
        yield Uneven(f"vocabulary {vocab:,} over tp {tp}", f"{whole - vocab} rows of padding", f"{whole:,}")


def _stages(recipe: Recipe) -> Iterator[Uneven]:
    layers, stages = recipe.model.depth, recipe.grid.pp * recipe.execution.chunks
    sizes = [last - first for first, last in cuts(recipe.model.layers, stages)]
    if len(set(sizes)) > 1:
        whole = layers // stages * stages, (layers // stages + 1) * stages
        would = [n for n in range(1, layers + 1) if layers % n == 0 and n % recipe.grid.pp == 0]
        yield Uneven(
            f"{layers} layers over {stages} stages",
            f"stages of {min(sizes)} to {max(sizes)} layers: all wait for the longest",
            f"{' or '.join(str(n) for n in whole if n)} layers"
            + (f", or {' or '.join(map(str, would))} stages" if would else ""),
        )


def _micro_batches(recipe: Recipe) -> Iterator[Uneven]:
    many, pp = recipe.micro_batches, recipe.grid.pp
    if many < pp:
        yield Uneven(
            f"{many} micro-batches over pp {pp}",
            "the pipeline is never full",
            f"a batch of {pp * recipe.grid.dp * recipe.training.micro_batch} or more",
        )


def _nodes(recipe: Recipe, known: Cluster) -> Iterator[Uneven]:
    tp, world, node = recipe.grid.tp, recipe.grid.world, known.node.ranks
    if world > node and world % node:
        yield Uneven(
            f"{world} ranks over nodes of {node}",
            f"{node - world % node} of the last node idle",
            f"{math.ceil(world / node) * node} ranks",
        )
    if world > node and node % tp:
        would = [n for n in range(1, node + 1) if node % n == 0 and recipe.model.heads % n == 0]
        yield Uneven(
            f"tp {tp} over nodes of {node}", "tensor groups cross nodes", f"tp {', '.join(map(str, would))}"
        )


def _products(recipe: Recipe, known: Cluster) -> Iterator[Uneven]:
    """Rows of products that are not multiples of what the fast kernels take."""
    model, tp, bits = (
        recipe.model,
        recipe.grid.tp,
        {"fp32": 32, "fp64": 64}.get(recipe.execution.precision, 16),
    )
    if not known.accelerator.tiles:
        return
    step = max(known.accelerator.alignment * 8 // bits, 1)
    widths = {
        "vocabulary": math.ceil(model.vocab / tp),
        "hidden size": model.hidden,
        "mlp": model.inner // tp,
        "head dim": model.dim,
    }
    for name, width in widths.items():
        if width % step:
            whole = math.ceil(width / step) * step
            yield Uneven(
                f"{name}, {width:,} a rank",
                f"no multiple of {step}, which fast products need",
                f"{whole:,} a rank",
            )
    if model.groups < tp:
        yield Uneven(
            f"{model.groups} key-value heads over tp {tp}",
            f"each is held by {tp // model.groups} ranks",
            f"tp {model.groups}",
        )
