"""What a checkpoint was trained with, and whether a run may go on from one: all known before any rank starts."""

from pathlib import Path

from common.checkpoint import store
from common.training.config_json import differences, from_json, to_json
from common.training.metrics import read_metrics
from common.training.recipe import Recipe
from common.training.run_directory import RunDirectory
from data.prepare import Prepared

FIXED = ("model", "data", "training.batch", "training.seed")
"""Fields that a run keeps: with others its weights mean another model, or it repeats and skips samples."""


def trained_recipe(folder: Path) -> Recipe | None:
    """The recipe in a checkpoint's manifest; None where it holds none. ValueError for one of another version."""
    written = store.read_manifest(folder).get("recipe")
    try:
        return written and from_json(Recipe, written, "recipe")
    except ValueError as error:
        raise ValueError(f"{folder / store.MANIFEST}: {error}") from error


def check_tokenizer(folder: Path, prepared: Prepared) -> None:
    """ValueError unless the data was cut by the tokenizer that the checkpoint was trained with."""
    ours, theirs = prepared.report["tokenizer"]["sha256"], store.read_manifest(folder).get("tokenizer")
    if theirs not in (None, ours):
        raise ValueError(f"{folder} was trained with another tokenizer ({theirs[:12]}) than the data has ({ours[:12]}): "
                         "prepare the data as it was, from the same text with the same versions of the packages")


def checked_start(directory: RunDirectory, recipe: Recipe, prepared: Prepared) -> Path:
    """The verified checkpoint from which the run goes on.

    Raises ValueError where it has none that is whole, where the recipe or the tokenizer is no longer that of the
    checkpoint, and for a damaged env.json or metrics.jsonl.
    """
    directory.load_environment()
    if directory.metrics.exists():
        read_metrics(directory.metrics)
    folder = store.last_good(directory.checkpoints)
    if folder is None:
        raise ValueError(f"{directory.checkpoints} has no whole checkpoint to resume from: start the run anew")
    theirs, ours = store.read_manifest(folder).get("recipe") or {}, to_json(recipe)
    if changed := [name for name in differences(theirs, ours) if name.startswith(FIXED)]:
        raise ValueError(f"{directory.config}: {changed[0]} differs from that of {folder.name}, which was trained with "
                         f"{_at(theirs, changed[0])!r}, not {_at(ours, changed[0])!r}: put it back, or start a new run")
    check_tokenizer(folder, prepared)
    return folder


def _at(content: dict, name: str):
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content
