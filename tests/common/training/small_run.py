"""A run small enough for tests: a few kilobytes of text, a model of two layers."""

import random
from dataclasses import replace
from pathlib import Path

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.training.recipe import Recipe, TrainingConfig
from common.training.run_directory import RunDirectory
from common.training.schedules import LearningRate
from data.config import DataConfig

WORDS = "a layout of ranks cuts every weight along one dimension and sums what remains over all tokens".split()


def write_text(folder: Path) -> Path:
    """Files of different random sentences, so that nothing is dropped as a duplicate."""
    folder.mkdir()
    draw = random.Random(0)
    for n in range(40):
        text = " ".join(draw.choice(WORDS) + str(draw.randrange(50)) for _ in range(120))
        (folder / f"{n:02}.txt").write_text(text)
    return folder


def recipe(text: Path, **changes) -> Recipe:
    """Six steps of eight sequences; `changes` replace fields of the training config."""
    training = TrainingConfig(steps=6, batch=8, micro_batch=4, evaluate_sequences=8, save_every=2, keep=3)
    return Recipe(
        name="small",
        model=LanguageModelConfig(pattern="[*-]*2", hidden=32, heads=4, vocab=300, sequence=16, dropout=0.1,
                                  attention_dropout=0.1),
        training=replace(training, **changes), rate=LearningRate(1e-2, 6, 2, 1e-3),
        data=DataConfig(source=str(text), vocab=300, held_out=0.2, near_threshold=1.0),
    )


def with_grid(base: Recipe, grid: Grid, sequence_parallel: bool = False) -> Recipe:
    return replace(base, grid=grid, execution=replace(base.execution, sequence_parallel=sequence_parallel))


def start(base: Recipe, root: Path, name: str) -> RunDirectory:
    return RunDirectory.create(root, base, recipe=base.name, seed=base.training.seed, id=name)

