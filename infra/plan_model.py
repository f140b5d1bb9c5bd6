"""The recipe that a plan is for: a paper's, a run's, or one for a model of transformers."""

from dataclasses import dataclass
from importlib import import_module
from math import log2
from pathlib import Path
from typing import Any

from common.checkpoint.huggingface.registry import config_from_hf
from common.checkpoint.huggingface.tensors import read_json
from common.models.config import LanguageModelConfig
from common.predict.constants import constants
from common.training.command import find, recipes
from common.training.config_json import from_json
from common.training.recipe import Recipe, TrainingConfig
from common.training.step import Execution
from data.config import DataConfig

PAPERS = Path(__file__).parents[1] / "papers"
LONGEST = 8192
"""Tokens of a sequence that is planned for, where a config.json allows more: longer contexts come late in
training, on a small share of the tokens (arXiv:2407.21783, section 3.4.2)."""
BATCH = 4e6
"""Tokens of a batch (arXiv:2407.21783, section 3.4.1)."""


@dataclass(frozen=True)
class Named:
    """recipe: as named, before single fields are replaced. paper: whose it is, if any, and whose software ran
    it. open: its layout is still to be chosen. notes: what it leaves out or takes for granted, in sentences.
    """

    recipe: Recipe
    paper: str = ""
    open: bool = False
    notes: tuple[str, ...] = ()

    @property
    def software(self) -> float:
        """How many times longer operations take with the paper's software (common/predict/constants.toml)."""
        return constants().software.get(self.paper, 1.0)


def named(word: str) -> Named:
    """Raises ValueError for a word that names nothing, saying what there is."""
    if word.endswith(".json"):
        return _from_file(Path(word))
    paper, _, name = word.partition(":")
    known = sorted(path.parent.name for path in PAPERS.glob("*/recipes.py"))
    if paper not in known:
        raise ValueError(
            f"recipe {word!r} is unknown: use PAPER:NAME with PAPER one of {', '.join(known)}, "
            "or a config.json"
        )
    module = import_module(f"papers.{paper}.recipes")
    if not name:
        raise ValueError(
            f"recipe {word!r} names a paper alone: use one of "
            f"{', '.join(f'{paper}:{recipe}' for recipe in recipes(module))}"
        )
    return Named(find(module, name), paper)


def _from_file(path: Path) -> Named:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    values = read_json(path)
    if {"grid", "execution"} <= values.keys():
        return Named(from_json(Recipe, values))
    values, notes = plannable(values)
    try:
        model = config_from_hf(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    recipe = base(model, path.parent.name if path.name == "config.json" and path.parent.name else path.stem)
    notes.append(
        f"batch of {recipe.training.batch} sequences, about {BATCH / 1e6:.0f} million tokens: "
        "--training.batch takes another"
    )
    return Named(recipe, open=True, notes=tuple(notes))


def base(model: LanguageModelConfig, name: str) -> Recipe:
    """A sensible way to train a model: bf16, fused attention, sharded optimizer; on one rank."""
    return Recipe(
        name=name,
        model=model,
        execution=Execution("sdpa", precision="bf16", sharded_optimizer=True),
        training=TrainingConfig(batch=2 ** round(log2(max(BATCH / model.sequence, 1))), micro_batch=1),
        data=DataConfig(vocab=model.vocab),
    )


def plannable(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A config.json without what neither time nor memory depends on, and what that was.

    Loading its weights into a model of this project is another matter, and refused for the same fields.
    """
    values, notes = dict(values), []
    if "Qwen3ForCausalLM" in (values.get("architectures") or ()) or values.get("model_type") == "qwen3":
        values |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        notes.append(
            "norms of single queries and keys are left out: 2 x head_dim parameters and a pass over both "
            "a layer"
        )
    for name in ("rope_scaling", "rope_parameters"):
        if (rope := values.get(name)) and rope.get("rope_type", rope.get("type", "default")) != "default":
            values[name] = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else None
            notes.append(f"{name} is left out: it changes the angles of positions, not their cost")
    if values.get("use_sliding_window") is False:
        values["sliding_window"] = None
    limit = min(LONGEST, values.get("sliding_window") or LONGEST)
    longest = values.get("max_position_embeddings")
    if isinstance(longest, int) and longest > limit:
        values["max_position_embeddings"] = limit
        notes.append(
            f"sequences of {limit} tokens, of {longest} that it takes: --model.sequence takes others"
        )
    return values, notes
