"""The architectures known, and how one is found for a config.json or for a model."""

from typing import Any

from common.checkpoint.huggingface.architecture import Architecture
from common.checkpoint.huggingface.fields import Fields
from common.checkpoint.huggingface.gpt2 import GPT2
from common.checkpoint.huggingface.llama import LLAMA, MISTRAL, QWEN2
from common.models.config import LanguageModelConfig

ARCHITECTURES = {a.name: a for a in (GPT2, LLAMA, MISTRAL, QWEN2)}


def architecture_of(values: dict[str, Any]) -> Architecture:
    """The architecture that a config.json names; ValueError when it names none that is known."""
    names = values.get("architectures") or []
    if names:
        found = [ARCHITECTURES[n] for n in names if n in ARCHITECTURES]
        said = f"architectures={names}"
    elif values.get("model_type"):
        found = [a for a in ARCHITECTURES.values() if a.model_type == values["model_type"]]
        said = f"model_type={values['model_type']!r}"
    else:
        raise ValueError("config.json lacks architectures and model_type: it is not a model of transformers")
    if not found:
        raise ValueError(
            f"config.json has {said}, which is not known here: known are {', '.join(ARCHITECTURES)}"
        )
    return found[0]


def config_from_hf(values: dict[str, Any]) -> LanguageModelConfig:
    """The model that a config.json describes, from its contents alone.

    Raises ValueError naming the fields that are missing, or the field whose value would need what this
    project does not have: it is never left out of account.
    """
    fields = Fields(architecture_of(values).name, values)
    fields.only("is_causal", True, "attention is causal")
    if fields.get("quantization_config") is not None:
        raise fields.refusal("quantization_config", fields.get("quantization_config"),
                             "quantised weights are not read; save the checkpoint in bf16, fp16 or fp32")
    return architecture_of(values).read(fields)


def architecture_for(config: LanguageModelConfig, name: str | None = None) -> Architecture:
    """The first architecture, or the one named, that can hold this model; ValueError with what stands
    against it."""
    if name is not None and name not in ARCHITECTURES:
        raise ValueError(f"architecture={name!r}: known are {', '.join(ARCHITECTURES)}")
    candidates = [ARCHITECTURES[name]] if name else list(ARCHITECTURES.values())
    lacks = {a.name: a.lacks(config) for a in candidates}
    for candidate in candidates:
        if not lacks[candidate.name]:
            return candidate
    reasons = "; ".join(f"{n}: {', '.join(why)}" for n, why in lacks.items())
    raise ValueError(f"no architecture of transformers known here can hold this model. {reasons}")


def config_to_hf(config: LanguageModelConfig, architecture: str | None = None) -> dict[str, Any]:
    """config.json for this model; the inverse of `config_from_hf`."""
    chosen = architecture_for(config, architecture)
    return {"architectures": [chosen.name], "model_type": chosen.model_type, **chosen.write(config)}
