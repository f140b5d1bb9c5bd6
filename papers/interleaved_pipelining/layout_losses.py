"""The laptop model trained under layouts of recipes.py, on real ranks, step by step as the training loop does it."""

from collections.abc import Sequence
from pathlib import Path

from common.layout import Layout
from common.training.loop import Loop
from common.training.run_directory import RunDirectory
from common.training.step import train_step
from data.prepare import prepare
from infra.launch import run_local
from infra.rank_context import RankContext
from papers.interleaved_pipelining.recipes import LAYOUTS


def losses_on_rank(context: RankContext, names: Sequence[str], steps: int) -> list[list[float]]:
    """Loss of each step under each layout, on a rank of layouts that need all ranks. Nothing is written."""
    found = []
    for name in names:
        recipe = LAYOUTS[name](steps=steps)
        layout, nowhere = Layout(recipe.grid, context.rank), RunDirectory(Path())
        loop = Loop(recipe, prepare(recipe.data), nowhere, layout, context.device)
        found.append([train_step(loop.training, loop.records(step), recipe.rate.at(step), recipe.optimizer.clip).loss
                      for step in range(steps)])
        layout.close()
    return found


def curves(names: Sequence[str], steps: int) -> dict[str, list[float]]:
    """Layout -> loss of each step, nats per token; each on as many ranks as it has."""
    recipes = {name: LAYOUTS[name](steps=steps) for name in names}
    for recipe in recipes.values():
        recipe.check()
        prepare(recipe.data)
    found: dict[str, list[float]] = {}
    for world in sorted({recipe.grid.world for recipe in recipes.values()}):
        mine = [name for name, recipe in recipes.items() if recipe.grid.world == world]
        found |= dict(zip(mine, run_local(losses_on_rank, world, mine, steps, timeout=3600)[0], strict=True))
    return {name: found[name] for name in names}
