"""GPT-2: LayerNorm, GELU, learned positions, biases; weights stored (inputs, outputs), qkv in one tensor."""

import re
from typing import Any

from common.checkpoint.huggingface.architecture import Architecture, common_lacks, depth
from common.checkpoint.huggingface.fields import Fields
from common.checkpoint.huggingface.piece import Piece
from common.models.config import LanguageModelConfig

# gelu_new, gelu_pytorch_tanh and gelu_fast compute one function, the tanh approximation, in three ways.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu2": "squared_relu",
}
NAMES = {"gelu_tanh": "gelu_new", "gelu": "gelu", "squared_relu": "relu2"}

NEEDED = {"n_embd": int, "n_layer": int, "n_head": int, "n_positions": int, "vocab_size": int,
          "activation_function": str, "layer_norm_epsilon": float}


def _read(fields: Fields) -> LanguageModelConfig:
    fields.require(NEEDED)
    fields.only("scale_attn_weights", True, "scores are divided by sqrt(head dim)")
    fields.only("scale_attn_by_inverse_layer_idx", False, "scores are not divided by the layer's number")
    fields.only("add_cross_attention", False, "there is no encoder to attend to")
    fields.only("resid_pdrop", fields.get("embd_pdrop", 0.1), "one dropout serves embd_pdrop and resid_pdrop")
    return LanguageModelConfig(
        pattern=f"[*-]*{fields.get('n_layer')}", hidden=fields.get("n_embd"), heads=fields.get("n_head"),
        ffn=fields.get("n_inner"), vocab=fields.get("vocab_size"), sequence=fields.get("n_positions"),
        norm="layernorm", norm_eps=fields.get("layer_norm_epsilon"),
        activation=fields.choice("activation_function", ACTIVATIONS), positions="learned",
        tied=fields.get("tie_word_embeddings", True), bias=True, dropout=fields.get("embd_pdrop", 0.1),
        attention_dropout=fields.get("attn_pdrop", 0.1), init_std=fields.get("initializer_range", 0.02))


def _lacks(config: LanguageModelConfig) -> list[str]:
    found = common_lacks(config, "layernorm", "learned", NAMES)
    if not config.bias:
        found.append("bias=False, needs True")
    if config.groups != config.heads:
        found.append(f"kv_heads={config.groups}, needs one per head ({config.heads})")
    if config.dim * config.heads != config.hidden:
        found.append(f"head_dim={config.dim}, needs hidden / heads")
    return found


def _write(config: LanguageModelConfig) -> dict[str, Any]:
    return {
        "n_embd": config.hidden,
        "n_layer": depth(config),
        "n_head": config.heads,
        "n_positions": config.sequence,
        "n_inner": config.inner,
        "vocab_size": config.vocab,
        "activation_function": NAMES[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _linear(name: str) -> Piece:
    return Piece(f"transformer.h.{{}}.{name}.weight", transposed=True)


def _vector(name: str) -> Piece:
    return Piece(f"transformer.h.{{}}.{name}", inputs=0)


def _qkv(place: int, part: tuple[int, int] | None = None) -> Piece:
    return Piece("transformer.h.{}.attn.c_attn.weight", part=part, transposed=True, place=place, of=3)


def _qkv_bias(place: int, part: tuple[int, int] | None = None) -> Piece:
    return Piece("transformer.h.{}.attn.c_attn.bias", inputs=0, part=part, place=place, of=3)


_ATTENTION, _MLP = "layers.{}.branches.attention", "layers.{}.branches.mlp"
TABLE = {
    "embedding.tokens": (Piece("transformer.wte.weight"),),
    "embedding.positions": (Piece("transformer.wpe.weight"),),
    f"{_ATTENTION}.norm.weight": (_vector("ln_1.weight"),),
    f"{_ATTENTION}.norm.bias": (_vector("ln_1.bias"),),
    f"{_ATTENTION}.mixer.qkv.q": (_qkv(0),),
    f"{_ATTENTION}.mixer.qkv.q_bias": (_qkv_bias(0),),
    f"{_ATTENTION}.mixer.qkv.kv": (_qkv(1, (1, 0)), _qkv(2, (1, 1))),
    f"{_ATTENTION}.mixer.qkv.kv_bias": (_qkv_bias(1, (1, 0)), _qkv_bias(2, (1, 1))),
    f"{_ATTENTION}.mixer.output.weight": (
        Piece("transformer.h.{}.attn.c_proj.weight", inputs=2, transposed=True),
    ),
    f"{_ATTENTION}.mixer.output.bias": (_vector("attn.c_proj.bias"),),
    f"{_MLP}.norm.weight": (_vector("ln_2.weight"),),
    f"{_MLP}.norm.bias": (_vector("ln_2.bias"),),
    f"{_MLP}.mixer.up.weight": (_linear("mlp.c_fc"),),
    f"{_MLP}.mixer.up.weight_bias": (_vector("mlp.c_fc.bias"),),
    f"{_MLP}.mixer.down.weight": (_linear("mlp.c_proj"),),
    f"{_MLP}.mixer.down.bias": (_vector("mlp.c_proj.bias"),),
    "output.norm.weight": (Piece("transformer.ln_f.weight", inputs=0),),
    "output.norm.bias": (Piece("transformer.ln_f.bias", inputs=0),),
    "output.weight": (Piece("lm_head.weight"),),
}

GPT2 = Architecture("GPT2LMHeadModel", "gpt2", "transformer.", TABLE, _read, _lacks, _write,
                    ignored=re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"))
