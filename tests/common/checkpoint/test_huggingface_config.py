"""config.json to our config and back, and everything in one that would give wrong numbers refused by its
name."""

import sys
from dataclasses import replace

import pytest

from common.checkpoint.huggingface import config_from_hf, config_to_hf
from common.models.config import LanguageModelConfig
from infra.rank_context import RankContext
from tests.distributed import ranks

# As published with the models: GPT-2 small, TinyLlama-1.1B, Mistral-7B-v0.3, Qwen2-0.5B.
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32768,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 131072,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def without(values: dict, *names: str) -> dict:
    return {k: v for k, v in values.items() if k not in names}


def test_gpt2():
    assert config_from_hf(GPT2) == LanguageModelConfig(
        pattern="[*-]*12",
        hidden=768,
        heads=12,
        vocab=50257,
        sequence=1024,
        dropout=0.1,
        attention_dropout=0.1,
    )


def test_llama():
    assert config_from_hf(LLAMA) == LanguageModelConfig(
        pattern="[*-]*22",
        hidden=2048,
        heads=32,
        kv_heads=4,
        ffn=5632,
        vocab=32000,
        sequence=2048,
        norm="rmsnorm",
        activation="swiglu",
        positions="rotary",
        tied=False,
        bias=False,
    )


def test_mistral_and_qwen2():
    mistral, qwen2 = config_from_hf(MISTRAL), config_from_hf(QWEN2)
    assert (mistral.rotary_base, mistral.groups, mistral.qkv_bias) == (1e6, 8, False)
    assert (qwen2.rotary_base, qwen2.groups, qwen2.qkv_bias, qwen2.bias, qwen2.tied) == (
        1e6,
        2,
        True,
        False,
        True,
    )


def test_both_ways_of_writing_the_rotary_base():
    newer = without(LLAMA, "rope_theta", "rope_scaling") | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}
    }
    assert config_from_hf(newer).rotary_base == 5e5
    assert config_from_hf(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "default"}}).rotary_base == 5e5
    with pytest.raises(ValueError, match=r"rope_theta=10000.0, rope_parameters.rope_theta=500000.0"):
        config_from_hf(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})


def test_a_window_no_sequence_feels_is_full_attention():
    assert config_from_hf(MISTRAL | {"sliding_window": 32768}) == config_from_hf(MISTRAL)
    windowed = {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
    assert config_from_hf(QWEN2 | windowed) == config_from_hf(QWEN2)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "values, names",
    [
        (LLAMA | {"rope_scaling": LLAMA3}, "rope_scaling=.*'llama3' is not supported"),
        (
            LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling=.*'linear' is not supported",
        ),
        (
            without(LLAMA, "rope_theta")
            | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
            "rope_parameters=.*'yarn' is not supported",
        ),
        (
            LLAMA
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "rope_parameters=.*over the whole head",
        ),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters="),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act='gelu'.*silu"),
        (LLAMA | {"attention_bias": True}, "attention_bias=True.*mlp_bias=False"),
        (LLAMA | {"mlp_bias": True}, "attention_bias=False.*mlp_bias=True"),
        (LLAMA | {"is_causal": False}, "is_causal=False"),
        (LLAMA | {"sliding_window": 1024}, "sliding_window=1024"),
        (LLAMA | {"layer_types": ["chunked_attention"]}, "layer_types=.*chunked_attention"),
        (LLAMA | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config=.*bf16"),
        (LLAMA | {"hidden_size": "2048"}, "hidden_size='2048'.*type int"),
        (LLAMA | {"num_key_value_heads": 5}, "kv_heads=5 does not divide heads=32"),
        (MISTRAL | {"sliding_window": 4096}, "sliding_window=4096.*max_position_embeddings"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 4096}, "sliding_window=4096"),
        (QWEN2 | {"layer_types": ["sliding_attention"]}, "layer_types=.*sliding_attention"),
        (GPT2 | {"activation_function": "relu"}, "activation_function='relu'.*gelu_new"),
        (GPT2 | {"scale_attn_weights": False}, "scale_attn_weights=False"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention=True"),
        (GPT2 | {"resid_pdrop": 0.2}, "resid_pdrop=0.2"),
        (without(GPT2, "n_embd", "n_head"), "GPT2LMHeadModel lacks n_embd, n_head"),
        (without(MISTRAL, "num_key_value_heads"), "lacks num_key_value_heads"),
        (
            LLAMA | {"architectures": ["GemmaForCausalLM"]},
            r"GemmaForCausalLM.*known are GPT2LMHeadModel, LlamaForCausalLM",
        ),
        ({"model_type": "mamba"}, "model_type='mamba'.*known are GPT2LMHeadModel"),
        ({"hidden_size": 64}, "lacks architectures and model_type"),
    ],
)
def test_what_would_give_wrong_numbers_is_refused_by_name(values, names):
    with pytest.raises(ValueError, match=names):
        config_from_hf(values)


def test_model_type_alone_is_enough():
    assert config_from_hf(without(LLAMA, "architectures")) == config_from_hf(LLAMA)


@pytest.mark.parametrize("change, reason", [
    ({"norm": "rmsnorm"}, "norm='rmsnorm', needs 'layernorm'"),
    ({"bias": False}, "bias=False, needs True"),
    ({"kv_heads": 2}, "kv_heads=2, needs one per head"),
    ({"head_dim": 8}, "head_dim=8, needs hidden / heads"),
    ({"activation": "swiglu"}, "activation='swiglu'"),
    ({"pattern": "[*-] [-]"}, r"has a layer \[-\]"),
])
def test_a_model_no_architecture_can_hold(change, reason):
    with pytest.raises(ValueError, match=reason):
        config_to_hf(replace(LanguageModelConfig(), **change))


def test_an_architecture_named_is_checked():
    with pytest.raises(ValueError, match="qkv_bias=False, needs True"):
        config_to_hf(config_from_hf(LLAMA), "Qwen2ForCausalLM")
    with pytest.raises(ValueError, match="architecture='Bloom': known are GPT2LMHeadModel"):
        config_to_hf(config_from_hf(LLAMA), "Bloom")


def _transformers_imported(context: RankContext) -> bool:
    return any(name.split(".")[0] == "transformers" for name in sys.modules)


def test_transformers_is_not_imported():
    """A rank has imported this module, so all that reading and writing needs."""
    assert ranks(2, _transformers_imported) == [False, False]
