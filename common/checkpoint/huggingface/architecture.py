"""What a family of checkpoints is: its config.json and its tensors, in terms of this project's model."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.checkpoint.huggingface.fields import Fields
from common.checkpoint.huggingface.piece import Piece
from common.models.config import LanguageModelConfig

_LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True)
class Architecture:
    """One class of language model as `transformers` names it.

    read: config.json -> config, ValueError for what it cannot say. lacks: config -> why this architecture
    cannot hold it, empty if it can. write: config -> config.json without `architectures` and `model_type`.
    table: parameter name, {} for the layer, -> its pieces. prefix: of all tensors but the output's, left out
    in files of the model without an output. ignored: tensors that hold no weights (masks, tables).
    """

    name: str
    model_type: str
    prefix: str
    table: dict[str, tuple[Piece, ...]]
    read: Callable[[Fields], LanguageModelConfig]
    lacks: Callable[[LanguageModelConfig], list[str]]
    write: Callable[[LanguageModelConfig], dict[str, Any]]
    ignored: re.Pattern = re.compile(r"(?!)")

    def pieces(self, parameter: str) -> tuple[Piece, ...]:
        """Where the parameter of this name (as `common.parameters.named` gives it) stands."""
        found = _LAYER.match(parameter)
        layer = found[1] if found else ""
        generic = parameter.replace(found[0], "layers.{}.", 1) if found else parameter
        return tuple(Piece(p.name.format(layer), p.inputs, p.part, p.transposed, p.place, p.of)
                     for p in self.table[generic])


def depth(config: LanguageModelConfig) -> int:
    return len(config.layers.units)


def common_lacks(
    config: LanguageModelConfig, norm: str, positions: str, activations: dict[str, str]
) -> list[str]:
    """What no architecture of one norm, kind of positions and set of activations can hold."""
    unit = next((u for u in config.layers.units if u != "*-"), None)
    found = [] if unit is None else [f"pattern={config.pattern!r} has a layer [{unit}], needs [*-] alone"]
    if config.norm != norm:
        found.append(f"norm={config.norm!r}, needs {norm!r}")
    if config.positions != positions:
        found.append(f"positions={config.positions!r}, needs {positions!r}")
    if config.activation not in activations:
        found.append(f"activation={config.activation!r}, needs {' or '.join(activations)}")
    return found
