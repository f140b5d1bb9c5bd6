"""What config.json of models of transformers say, and how many parameters they have."""

import json
from pathlib import Path

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}
GPT_2 = {
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
QWEN_2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_scaling": None,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
QWEN_3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "head_dim": 128,
    "vocab_size": 151936,
    "rope_scaling": None,
    "use_sliding_window": False,
}
# As the models' own cards and files give them; Qwen3's less its norms of queries and keys, 2 x 128 a layer.
PUBLISHED = [
    (LLAMA, 8_030_261_248),
    (GPT_2, 124_439_808),
    (QWEN_2, 7_615_616_512),
    (QWEN_3, 8_190_735_360 - 36 * 256),
]


def written(folder: Path, values: dict) -> str:
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder / "config.json")
