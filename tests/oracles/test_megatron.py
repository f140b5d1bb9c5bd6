"""Our model against megatron-core's GPTModel with the same weights: loss and every gradient."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parameters import initialise
from tests.oracles import megatron
from tests.oracles.parity import assert_close, deviations

GPT = LanguageModelConfig(hidden=32, heads=4, vocab=101, sequence=24)
LLAMA = LanguageModelConfig(
    hidden=32,
    heads=4,
    kv_heads=2,
    ffn=48,
    vocab=101,
    sequence=24,
    norm="rmsnorm",
    activation="swiglu",
    positions="rotary",
    rotary_base=500.0,
    tied=False,
    bias=False,
)
pytestmark = pytest.mark.filterwarnings("ignore:Warning. tp_group is None")
CONFIGS = {
    "gpt": GPT,
    "llama": LLAMA,
    "qwen": replace(LLAMA, kv_heads=1, qkv_bias=True, tied=True, head_dim=12),
    "nemotron": replace(GPT, activation="squared_relu", positions="rotary", tied=False, norm_eps=1e-3),
    "erf": replace(GPT, activation="gelu", kv_heads=2, pattern="[*-]*3"),
}


@pytest.fixture(scope="module", autouse=True)
def rank():
    before = torch.cuda.current_device
    with megatron.single_rank():
        yield
    assert torch.cuda.current_device is before
    assert not dist.is_initialized()


def make(config: LanguageModelConfig, kernels: str = "sdpa") -> LanguageModel:
    """Every weight random, norms and biases too."""
    model = LanguageModel(config, Context(kernels=kernels))
    initialise(model, SERIAL, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.2)
    return model


def record(documents: bool) -> Record:
    B, S = 3, 24
    tokens = torch.randint(101, (B, S + 1), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(S).expand(B, S)
    ids = (positions // torch.tensor([[7], [24], [10]])) if documents else None
    mask = torch.ones(B, S, dtype=torch.bool)
    mask[1, 5:] = False
    return Record(tokens[:, :-1], tokens[:, 1:], mask, positions, ids, (0, 1, 2))


def both(config: LanguageModelConfig, kernels: str, documents: bool):
    """(loss, gradients) of ours and of theirs, gradients by their names."""
    ours, batch = make(config, kernels), record(documents)
    theirs = megatron.build(config)
    megatron.load(dict(ours.named_parameters()), theirs, config)
    _, terms = ours(batch, {})
    mine = terms["language"].sum / terms["language"].count
    mine.backward()
    loss = megatron.losses(theirs, batch)[batch.loss_mask].mean()
    loss.backward()
    gradients = megatron.rename({n: p.grad for n, p in ours.named_parameters()}, theirs, config)
    return (mine, gradients), (loss, {n: p.grad for n, p in theirs.named_parameters()})


@pytest.mark.parametrize(
    "kernels, documents", [("sdpa", False), ("sdpa", True), ("paper", True), ("reference", False)]
)
@pytest.mark.parametrize("name", CONFIGS)
def test_same_loss_and_gradients(name, kernels, documents):
    (ours, gradients), (theirs, expected) = both(CONFIGS[name], kernels, documents)
    assert abs(ours - theirs) <= 1e-6 * theirs
    assert_close(gradients, expected, 1e-5)


def test_the_comparison_sees_a_small_change():
    """Another eps in the norms moves every gradient beyond the tolerance."""
    (_, gradients), _ = both(LLAMA, "sdpa", False)
    (_, changed), _ = both(replace(LLAMA, norm_eps=2e-4), "sdpa", False)
    assert min(deviations(gradients, changed).values()) > 1e-5


def test_models_that_differ_are_not_compared():
    with pytest.raises(ValueError, match="output_layer.weight"):
        megatron.load(dict(make(replace(GPT, tied=False)).named_parameters()), megatron.build(GPT), GPT)
    with pytest.raises(ValueError, match=r"has a layer \[-\]"):
        megatron.build(replace(GPT, pattern="[*-] [-]"))
