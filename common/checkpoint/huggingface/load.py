"""Weights from a checkpoint of transformers into a model under any layout."""

from pathlib import Path
from typing import Any

import torch

from common.checkpoint.huggingface.architecture import Architecture
from common.checkpoint.huggingface.registry import architecture_of, config_from_hf
from common.checkpoint.huggingface.tensors import Tensors, expected_shapes, read_json
from common.layers.context import Context
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.parameters import Facts, named


def read_config(folder: Path) -> tuple[LanguageModelConfig, Architecture]:
    """What the checkpoint in a folder is; ValueError when the folder holds none that is known."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a checkpoint of transformers: it has no config.json")
    values = read_json(path)
    return config_from_hf(values), architecture_of(values)


def check_hf(folder: Path | str) -> LanguageModelConfig:
    """The model in a folder, after all that `load_hf` checks: before any rank starts, and weights unread."""
    config, architecture = read_config(Path(folder))
    with _checked(Path(folder), config, architecture):
        return config


def load_hf(folder: Path | str, model: LanguageModel, layout: Layout) -> None:
    """Fills this rank's part of every parameter from the folder's safetensors, reading nothing else of them.

    The model may be one stage of several. Values are converted to the parameters' dtype; padding rows become
    zero. Raises ValueError, before anything is changed, when config.json describes another model, or tensors
    are missing, unexpected, of another shape or not floating-point.
    """
    folder = Path(folder)
    config, architecture = read_config(folder)
    _same_model(folder, config, model.config)
    with _checked(folder, config, architecture) as tensors, torch.no_grad():
        for name, p, facts in named(model):
            _fill(p, facts, name, tensors, layout, architecture)


def _checked(folder: Path, config: LanguageModelConfig, architecture: Architecture) -> Tensors:
    """The folder's tensors, once they are known to be the model's."""
    tensors = Tensors(folder, architecture)
    tensors.check(expected_shapes(whole_facts(config), architecture), _spare(config, architecture))
    if config.tied:
        _check_spare_output(tensors, architecture)
    return tensors


def whole_facts(config: LanguageModelConfig) -> dict[str, Facts]:
    """Facts of every parameter of the whole model, whatever stage this rank holds; nothing is allocated."""
    return {name: facts for name, _, facts in named(LanguageModel(config, Context(device="meta")))}


def _fill(
    p: torch.Tensor, facts: Facts, name: str, tensors: Tensors, layout: Layout, architecture: Architecture
) -> None:
    first, last = facts.local_range(layout)
    p.zero_()
    if first == last:
        return
    for piece in architecture.pieces(name):
        piece.fill(p, tensors.read(piece.name, piece.stored_part(facts, first, last)), facts, last - first)


def _spare(config: LanguageModelConfig, architecture: Architecture) -> set[str]:
    """Tensors that may be there too: some files hold a tied matrix twice."""
    return {p.name for p in architecture.pieces("output.weight")} if config.tied else set()


def _check_spare_output(tensors: Tensors, architecture: Architecture) -> None:
    (output,), (embedding,) = architecture.pieces("output.weight"), architecture.pieces("embedding.tokens")
    if output.name not in tensors.names:
        return
    whole = (slice(None), slice(None))
    if not torch.equal(tensors.read(output.name, whole), tensors.read(embedding.name, whole)):
        raise ValueError(
            f"{tensors.folder}: config.json says tie_word_embeddings, yet {output.name} differs from "
            f"{embedding.name}; set tie_word_embeddings to false to use both"
        )


def _same_model(folder: Path, held: LanguageModelConfig, wanted: LanguageModelConfig) -> None:
    """ValueError naming every setting by which the two models would compute something else."""
    a, b = _meaning(held), _meaning(wanted)
    differ = [f"{name}={b[name]!r} (checkpoint {a[name]!r})" for name in a if a[name] != b[name]]
    if differ:
        raise ValueError(f"{folder} holds another model: {', '.join(differ)}; "
                         "build the model from config_from_hf of its config.json")


def _meaning(config: LanguageModelConfig) -> dict[str, Any]:
    """The settings that decide what a trained model computes, defaults resolved."""
    meaning = {
        "layers": config.layers.units,
        "kv_heads": config.groups,
        "head_dim": config.dim,
        "ffn": config.inner,
        "qkv_bias": config.bias or config.qkv_bias,
    }
    meaning |= {
        n: getattr(config, n)
        for n in ("hidden", "heads", "vocab", "norm", "norm_eps", "activation", "positions", "tied", "bias")
    }
    if config.positions == "learned":
        meaning["sequence"] = config.sequence
    if config.positions == "rotary":
        meaning["rotary_base"] = config.rotary_base
    return meaning
