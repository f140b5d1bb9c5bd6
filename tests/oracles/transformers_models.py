"""Tiny random language models of `transformers`, eager attention, as oracles. Imports transformers on
first use: 5 s."""

from pathlib import Path

import torch
from torch import Tensor

VOCAB, SEQUENCE = 101, 24
_SIZES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    vocab_size=VOCAB,
    max_position_embeddings=SEQUENCE,
    initializer_range=0.3,
    bos_token_id=None,
    eos_token_id=None,
)
_ROPE = {"rope_theta": 500.0, "rope_type": "default"}
# name -> (class, settings). Two key-value heads are fewer than four tensor ranks; 101 divides by no tensor
# size.
MODELS = {
    "gpt2": (
        "GPT2",
        dict(
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=SEQUENCE,
            vocab_size=VOCAB,
            bos_token_id=None,
            eos_token_id=None,
            initializer_range=0.3,
        ),
    ),
    "gpt2_untied": (
        "GPT2",
        dict(
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=SEQUENCE,
            vocab_size=VOCAB,
            n_inner=48,
            activation_function="gelu",
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            initializer_range=0.3,
        ),
    ),
    "llama": (
        "Llama",
        dict(
            **_SIZES,
            num_key_value_heads=2,
            tie_word_embeddings=False,
            rope_parameters=_ROPE,
            rms_norm_eps=1e-5,
        ),
    ),
    "llama_bias": (
        "Llama",
        dict(
            **_SIZES,
            num_key_value_heads=1,
            head_dim=6,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "mistral": (
        "Mistral",
        dict(**_SIZES, num_key_value_heads=4, sliding_window=SEQUENCE, rope_parameters=_ROPE),
    ),
    "qwen2": (
        "Qwen2",
        dict(**_SIZES, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=_ROPE),
    ),
}


def build(name: str, dtype: torch.dtype = torch.float32):
    """A model in evaluation mode whose every parameter, norms and biases too, is random."""
    import transformers

    family, settings = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**settings, attn_implementation="eager")
    class_name = f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, class_name)(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + centre)
    return model.to(dtype).eval()


def save(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: torch.dtype = torch.float32):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=dtype
    ).eval()


def tokens(batch: int = 3, length: int = SEQUENCE) -> Tensor:
    return torch.randint(VOCAB, (batch, length + 1), generator=torch.Generator().manual_seed(3))


def loss_and_gradients(model, tokens_BS: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean cross-entropy of the next tokens and its gradients, by the model's own names."""
    model.zero_grad()
    logits = model(tokens_BS[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens_BS[:, 1:].flatten())
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}
