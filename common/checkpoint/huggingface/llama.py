"""Llama and its relatives: RMSNorm, SwiGLU, rotary positions, grouped queries. Mistral is Llama with
attention windows (refused where they matter), Qwen2 has biases on queries, keys and values."""

import re
from functools import partial
from typing import Any

from common.checkpoint.huggingface.architecture import Architecture, common_lacks, depth
from common.checkpoint.huggingface.fields import Fields, full_attention, rotary_base
from common.checkpoint.huggingface.piece import Piece
from common.models.config import LanguageModelConfig

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}
NEEDED = {"hidden_size": int, "intermediate_size": int, "num_hidden_layers": int, "num_attention_heads": int,
          "vocab_size": int, "max_position_embeddings": int, "rms_norm_eps": float, "hidden_act": str}
GROUPS = {"num_key_value_heads": int}  # Llama's default is one per head, its relatives' a number of their own


def _base(fields: Fields, window: int | None, **more: Any) -> LanguageModelConfig:
    sequence = fields.get("max_position_embeddings")
    full_attention(fields, window, sequence)
    return LanguageModelConfig(
        pattern=f"[*-]*{fields.get('num_hidden_layers')}",
        hidden=fields.get("hidden_size"),
        heads=fields.get("num_attention_heads"),
        kv_heads=fields.get("num_key_value_heads"),
        head_dim=fields.get("head_dim"),
        ffn=fields.get("intermediate_size"),
        vocab=fields.get("vocab_size"),
        sequence=sequence,
        norm="rmsnorm",
        norm_eps=fields.get("rms_norm_eps"),
        activation=fields.choice("hidden_act", ACTIVATIONS),
        positions="rotary",
        rotary_base=rotary_base(fields),
        tied=fields.get("tie_word_embeddings", False),
        attention_dropout=fields.get("attention_dropout", 0.0),
        init_std=fields.get("initializer_range", 0.02),
        **more,
    )


def _read_llama(fields: Fields) -> LanguageModelConfig:
    fields.require(NEEDED)
    bias = fields.get("attention_bias", False)
    if fields.get("mlp_bias", False) != bias:
        raise fields.refusal(
            "attention_bias",
            bias,
            f"mlp_bias={not bias} differs: biases are on every linear layer or on none",
        )
    fields.only("sliding_window", None, "Llama has no attention windows")
    return _base(fields, None, bias=bias)


def _read_mistral(fields: Fields) -> LanguageModelConfig:
    fields.require(NEEDED, GROUPS)
    fields.only("attention_bias", False, "Mistral has no biases")
    return _base(fields, fields.get("sliding_window"), bias=False)


def _read_qwen2(fields: Fields) -> LanguageModelConfig:
    fields.require(NEEDED, GROUPS)
    window = fields.get("sliding_window") if fields.get("use_sliding_window", False) else None
    return _base(fields, window, bias=False, qkv_bias=True)


def _lacks(config: LanguageModelConfig, biases: dict[str, bool | tuple[bool, ...]]) -> list[str]:
    found = common_lacks(config, "rmsnorm", "rotary", {"swiglu": "silu"})
    for name, works in biases.items():
        if (value := getattr(config, name)) != works:
            found.append(f"{name}={value}, needs {works}")
    if config.dropout:
        found.append(f"dropout={config.dropout}, needs 0")
    return found


def _lacks_llama(config: LanguageModelConfig) -> list[str]:
    return _lacks(config, {} if config.bias else {"qkv_bias": False})


def _write(config: LanguageModelConfig, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden,
        "intermediate_size": config.inner,
        "num_hidden_layers": depth(config),
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.sequence,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "rope_theta": config.rotary_base,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
        "bos_token_id": None,
        "eos_token_id": None,
        **more,
    }


def _write_llama(config: LanguageModelConfig) -> dict[str, Any]:
    return _write(config, attention_bias=config.bias, mlp_bias=config.bias)


def _linear(name: str, inputs: int = 1, part: tuple[int, int] | None = None) -> Piece:
    return Piece(f"model.layers.{{}}.{name}.weight", inputs, part)


def _vector(name: str, part: tuple[int, int] | None = None) -> Piece:
    return Piece(f"model.layers.{{}}.{name}", 0, part)


_ATTENTION, _MLP = "layers.{}.branches.attention", "layers.{}.branches.mlp"
TABLE = {
    "embedding.tokens": (Piece("model.embed_tokens.weight"),),
    f"{_ATTENTION}.norm.weight": (_vector("input_layernorm.weight"),),
    f"{_ATTENTION}.mixer.qkv.q": (_linear("self_attn.q_proj"),),
    f"{_ATTENTION}.mixer.qkv.q_bias": (_vector("self_attn.q_proj.bias"),),
    f"{_ATTENTION}.mixer.qkv.kv": (
        _linear("self_attn.k_proj", part=(1, 0)),
        _linear("self_attn.v_proj", part=(1, 1)),
    ),
    f"{_ATTENTION}.mixer.qkv.kv_bias": (
        _vector("self_attn.k_proj.bias", (1, 0)),
        _vector("self_attn.v_proj.bias", (1, 1)),
    ),
    f"{_ATTENTION}.mixer.output.weight": (_linear("self_attn.o_proj", inputs=2),),
    f"{_ATTENTION}.mixer.output.bias": (_vector("self_attn.o_proj.bias"),),
    f"{_MLP}.norm.weight": (_vector("post_attention_layernorm.weight"),),
    f"{_MLP}.mixer.up.weight": (_linear("mlp.gate_proj", part=(0, 0)), _linear("mlp.up_proj", part=(0, 1))),
    f"{_MLP}.mixer.up.weight_bias": (
        _vector("mlp.gate_proj.bias", (0, 0)),
        _vector("mlp.up_proj.bias", (0, 1)),
    ),
    f"{_MLP}.mixer.down.weight": (_linear("mlp.down_proj"),),
    f"{_MLP}.mixer.down.bias": (_vector("mlp.down_proj.bias"),),
    "output.norm.weight": (Piece("model.norm.weight", inputs=0),),
    "output.weight": (Piece("lm_head.weight"),),
}

_IGNORED = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
LLAMA = Architecture(
    "LlamaForCausalLM", "llama", "model.", TABLE, _read_llama, _lacks_llama, _write_llama, _IGNORED
)
MISTRAL = Architecture("MistralForCausalLM", "mistral", "model.", TABLE, _read_mistral,
                       partial(_lacks, biases={"bias": False, "qkv_bias": False}),
                       partial(_write, sliding_window=None), _IGNORED)
QWEN2 = Architecture("Qwen2ForCausalLM", "qwen2", "model.", TABLE, _read_qwen2,
                     partial(_lacks, biases={"bias": False, "qkv_bias": True}),
                     partial(_write, use_sliding_window=False), _IGNORED)
