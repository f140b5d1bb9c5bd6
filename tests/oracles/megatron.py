"""megatron-core's GPTModel on one CPU process, with our weights: an oracle, and one side of the benchmark.

megatron-core asks for the current CUDA device and forks CUDA random states; `single_rank` puts the CPU and
its own random state in their place and takes them away again. Its attention mask is True where a query must
not look.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.models.config import LanguageModelConfig
from common.models.record import Record

POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}


class _HostRandomState:
    """In place of the tracker of CUDA random states: on one rank, torch's own generator serves all."""

    def is_initialized(self) -> bool:
        return True

    def fork(self, name: str = ""):
        return nullcontext()


@contextmanager
def single_rank() -> Iterator[None]:
    """Inside, megatron-core runs on the CPU as the only rank; its models are built and run here. Needs no
    process group to be up, and leaves none."""
    with _quiet():
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import random
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with mock.patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")), \
                mock.patch.multiple(random, _CUDA_RNG_STATE_TRACKER=_HostRandomState(),
                                    _CUDA_RNG_STATE_TRACKER_INITIALIZED=True):
            parallel_state.initialize_model_parallel()
            yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps back the warnings that apex and transformer-engine are missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@_quiet()
def build(config: LanguageModelConfig, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A GPTModel of this shape from plain torch operations (its local spec), no fusion; weights are zero
    until `load`."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    gelu = nn.functional.gelu
    activations = {
        "gelu": gelu,
        "gelu_tanh": partial(gelu, approximate="tanh"),
        "swiglu": nn.functional.silu,
        # megatron-core's own would start the compiler, 30 s.
        "squared_relu": lambda x: nn.functional.relu(x).square(),
    }
    unit = next((u for u in config.layers.units if u != "*-"), None)
    if unit is not None:
        raise ValueError(
            f"pattern={config.pattern!r} has a layer [{unit}]: megatron-core's GPTModel has [*-] alone"
        )
    settings = TransformerConfig(
        num_layers=config.depth,
        hidden_size=config.hidden,
        num_attention_heads=config.heads,
        num_query_groups=config.groups,
        kv_channels=config.dim,
        ffn_hidden_size=config.inner,
        add_bias_linear=config.bias,
        add_qkv_bias=config.qkv_bias,
        normalization={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[config.norm],
        layernorm_epsilon=config.norm_eps,
        activation_func=activations[config.activation],
        gated_linear_unit=config.gated,
        hidden_dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        settings,
        get_gpt_layer_local_spec(normalization=settings.normalization),
        config.vocab,
        config.sequence,
        share_embeddings_and_output_weights=config.tied,
        rotary_base=config.rotary_base,
        position_embedding_type=POSITIONS[config.positions],
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model.to(dtype)


def load(ours: dict[str, Tensor], theirs: nn.Module, config: LanguageModelConfig) -> None:
    """Copies our whole tensors, by their names, into megatron-core's model."""
    given = rename(ours, theirs, config)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(given[name])


def rename(ours: dict[str, Tensor], theirs: nn.Module, config: LanguageModelConfig) -> dict[str, Tensor]:
    """Our whole tensors (weights or their gradients) by the names and in the shapes of megatron-core's model.

    It fuses qkv by group: the group's queries, its key, its value; and gate over value in one matrix.
    """
    plain = {
        "embedding.tokens": "embedding.word_embeddings.weight",
        "embedding.positions": "embedding.position_embeddings.weight",
        "output.norm.weight": "decoder.final_layernorm.weight",
        "output.norm.bias": "decoder.final_layernorm.bias",
        "output.weight": "output_layer.weight",
    }
    found = {new: ours[name] for name, new in plain.items() if name in ours}
    for i in range(config.depth):
        attention, mlp = f"layers.{i}.branches.attention", f"layers.{i}.branches.mlp"
        pairs = {
            f"{attention}.norm.weight": "input_layernorm.weight",
            f"{attention}.norm.bias": "input_layernorm.bias",
            f"{attention}.mixer.output.weight": "self_attention.linear_proj.weight",
            f"{attention}.mixer.output.bias": "self_attention.linear_proj.bias",
            f"{mlp}.norm.weight": "pre_mlp_layernorm.weight",
            f"{mlp}.norm.bias": "pre_mlp_layernorm.bias",
            f"{mlp}.mixer.up.weight": "mlp.linear_fc1.weight",
            f"{mlp}.mixer.up.weight_bias": "mlp.linear_fc1.bias",
            f"{mlp}.mixer.down.weight": "mlp.linear_fc2.weight",
            f"{mlp}.mixer.down.bias": "mlp.linear_fc2.bias",
        }
        layer = {new: ours[name] for name, new in pairs.items() if name in ours}
        for suffix, kind in (("", "weight"), ("_bias", "bias")):
            if f"{attention}.mixer.qkv.q{suffix}" in ours:
                layer[f"self_attention.linear_qkv.{kind}"] = _fused_qkv(
                    ours[f"{attention}.mixer.qkv.q{suffix}"], ours[f"{attention}.mixer.qkv.kv{suffix}"])
        found |= {f"decoder.layers.{i}.{name}": x for name, x in layer.items()}
    held = dict(theirs.named_parameters())
    if held.keys() != found.keys():
        raise ValueError(f"the models differ in {sorted(held.keys() ^ found.keys())}")
    return {name: x.reshape(held[name].shape) for name, x in found.items()}


def _fused_qkv(q: Tensor, kv: Tensor) -> Tensor:
    """(N, D, ...) and (G, 2, D, ...) -> ((N + 2 G) D, ...), group by group."""
    groups = kv.shape[0]
    q = q.reshape(groups, -1, *q.shape[1:])
    return torch.cat([q, kv], dim=1).flatten(0, 2)


def mask(record: Record) -> Tensor:
    """Bool (1 or B, 1, S, S), True where a query must not look: ahead, or into another document."""
    S = record.length
    ahead = torch.ones(S, S, dtype=torch.bool).triu(1)[None, None]
    if record.documents is None:
        return ahead
    return ahead | (record.documents[:, None, :, None] != record.documents[:, None, None, :])


def losses(model: nn.Module, record: Record) -> Tensor:
    """Cross-entropy of each token, (B, S)."""
    return model(record.tokens, record.positions, mask(record), labels=record.labels)
