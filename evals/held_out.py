"""Loss, perplexity and bits per byte on held-out text, beside an n-gram model of the same training text.

Both predict the same tokens, every one of the split but its first, from the same windows of the model's sequence length.
What model and what text are the checkpoint's own; a recipe says only how to run it: layout, kernels, micro-batch.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import tyro

from common.checkpoint import store
from common.layout import Layout
from common.pipeline.execute import Pipeline
from common.training.command import find, guarded
from common.training.loop import load_model
from common.training.recipe import Recipe
from common.training.resume import check_tokenizer, trained_recipe
from common.training.step import mean_loss, model_stages
from data.prepare import prepare, progress_bar
from data.samples import Samples, held_out_batches
from evals import ngram
from infra.launch import Launch
from infra.rank_context import RankContext

SPLITS = ("valid", "test")


@dataclass(frozen=True)
class HeldOut:
    """checkpoint: a run's directory, for its last good checkpoint, or a checkpoint's folder. split: valid or test.
    order: of the n-gram model, 0 for none. launch: local:N; default as many local ranks as the recipe's grid has.
    json: print one JSON object instead of a table."""

    checkpoint: Path
    split: str = "valid"
    order: int = 5
    launch: str = ""
    json: bool = False

    def __post_init__(self):
        if self.split not in SPLITS:
            raise ValueError(f"split={self.split!r}: use one of {', '.join(SPLITS)}")
        if self.order < 0:
            raise ValueError(f"order={self.order}: 1 or more, or 0 for no n-gram model")


def checkpoint_folder(path: Path) -> Path:
    """The verified checkpoint that `path` names, itself or as a run's newest."""
    if (path / store.MANIFEST).is_file():
        store.verify(path)
        return path
    found = store.last_good(path / "checkpoints")
    if found is None:
        raise ValueError(f"checkpoint={str(path)!r} is neither a checkpoint nor a run's directory that has one")
    return found


def ngram_score(recipe: Recipe, split: str, order: int) -> ngram.Score:
    """Trained on all of the training split, scored on the tokens and windows that the model is scored on."""
    data = prepare(recipe.data)
    reader = data.tokens("train")
    model = ngram.train(reader.read(0, len(reader)), reader.vocab, reader.header.eod, order)
    held = data.tokens(split)
    log_probs = model.log_probs(held.read(0, len(held)), recipe.model.sequence)
    return ngram.score(log_probs[1:], data.text_bytes(split))


def model_score(context: RankContext, recipe: Recipe, folder: str, split: str) -> ngram.Score:
    """What one rank of the recipe's layout computes; the same on all."""
    layout = Layout(recipe.grid, context.rank)
    device = context.device.torch_device
    stages = model_stages(recipe.model, recipe.execution, layout, device)
    load_model(stages, Path(folder), layout, verify=False)
    pipeline = Pipeline(stages, layout, device, recipe.execution.scatter_gather)
    data = prepare(recipe.data)
    samples = Samples(data.tokens(split), recipe.model.sequence, recipe.model.vocab)
    records = held_out_batches(samples, micro_batch=recipe.training.micro_batch, dp_rank=layout.index("dp"),
                               dp_size=layout.size("dp"))
    loss, tokens = mean_loss(pipeline, (r.to(device) for r in records))
    return ngram.score_of(loss, tokens, data.text_bytes(split))


def main(module: ModuleType) -> None:
    """The evaluate command of the paper whose recipes are in `module`."""
    program = f"python -m {module.__name__.removesuffix('.recipes')}.evaluate"
    guarded(program, lambda: _main(module, program, sys.argv[1:]))


def _main(module: ModuleType, program: str, words: list[str]) -> None:
    if not words or words[0].startswith("-"):
        raise ValueError("give a recipe and --checkpoint RUN, such as laptop --checkpoint runs/<id>")
    recipe = find(module, words[0])
    asked = tyro.cli(HeldOut, prog=f"{program} {words[0]}", args=words[1:])
    folder = checkpoint_folder(asked.checkpoint)
    recipe = trained(recipe, folder)
    show(recipe, asked, folder_scores(recipe, folder, asked))


def trained(recipe: Recipe, folder: Path) -> Recipe:
    """`recipe` with the name, model and data of the one that the checkpoint in `folder` was trained with."""
    own = trained_recipe(folder)
    if own is None:
        return recipe
    return replace(recipe, name=own.name, model=own.model, data=own.data)


def scores(recipe: Recipe, asked: HeldOut) -> dict[str, ngram.Score]:
    """Of the checkpoint's model and data, whatever the recipe's are, and of the n-gram model."""
    folder = checkpoint_folder(asked.checkpoint)
    return folder_scores(trained(recipe, folder), folder, asked)


def folder_scores(recipe: Recipe, folder: Path, asked: HeldOut) -> dict[str, ngram.Score]:
    """Of a verified checkpoint. Raises ValueError, before any rank starts, for what cannot run or does not fit it."""
    recipe.check()
    launch = Launch.parse(asked.launch, need=recipe.grid.world)
    with progress_bar() as progress:
        data = prepare(recipe.data, progress=progress)
    check_tokenizer(folder, data)
    Samples(data.tokens(asked.split), recipe.model.sequence, recipe.model.vocab)
    found = {"model": launch.run(model_score, recipe, str(folder), asked.split)}
    if asked.order and launch.leads:
        found[f"{asked.order}-gram"] = ngram_score(recipe, asked.split, asked.order)
    return found


def show(recipe: Recipe, asked: HeldOut, found: dict[str, ngram.Score]) -> None:
    if asked.json:
        print(json.dumps({"recipe": recipe.name, "split": asked.split, **{n: asdict(s) for n, s in found.items()}}))
        return
    print(f"{recipe.name}, {asked.split} split, {found['model'].tokens:,} tokens")
    for name, score in found.items():
        print(f"{name:8}  loss {score.loss:.4f}  perplexity {score.perplexity:8.2f}  "
              f"bits per byte {score.bits_per_byte:.4f}")
