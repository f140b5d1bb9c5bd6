"""Checkpoints of transformers, in and out: config.json and safetensors, without importing transformers."""

from common.checkpoint.huggingface.export import export_hf
from common.checkpoint.huggingface.load import check_hf, load_hf
from common.checkpoint.huggingface.registry import ARCHITECTURES, config_from_hf, config_to_hf

__all__ = ["ARCHITECTURES", "check_hf", "config_from_hf", "config_to_hf", "export_hf", "load_hf"]
