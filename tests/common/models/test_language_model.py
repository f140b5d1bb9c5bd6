"""The decoder: stages against the whole, model FLOPs against torch's counter, settings that cannot work."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig, check
from common.models.flops import model_flops
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parameters import count, initialise

GPT = LanguageModelConfig(pattern="[*-]*4", hidden=32, heads=4, vocab=40, sequence=12, dropout=0.1, attention_dropout=0.1,
                          tied=False)
LLAMA = replace(GPT, kv_heads=2, ffn=24, norm="rmsnorm", activation="swiglu", positions="rotary", bias=False, dropout=0.0,
                attention_dropout=0.0)


def record(config: LanguageModelConfig, batch: int = 2) -> Record:
    tokens = torch.randint(0, config.vocab, (batch, config.sequence + 1), generator=torch.Generator().manual_seed(0))
    shape = tokens[:, 1:].shape
    return Record(tokens[:, :-1], tokens[:, 1:], torch.ones(shape, dtype=torch.bool),
                  torch.arange(config.sequence).expand(shape), None, tuple(range(batch)), 3, 4)


def build(config, first=0, last=None, kernels="paper", dtype=torch.float64) -> LanguageModel:
    model = LanguageModel(config, Context(kernels=kernels, dtype=dtype), "none", first, last)
    initialise(model, SERIAL, 5)
    return model


@pytest.mark.parametrize("config", [GPT, LLAMA])
def test_stages_one_after_the_other_are_the_whole(config):
    """Same names, same weights, same dropout masks, same loss and gradients."""
    batch, whole = record(config), build(config)
    stages = [build(config, 0, 1), build(config, 1, 3), build(config, 3)]
    names = [n for stage in stages for n, _ in stage.named_parameters()]
    assert sorted(names) == sorted(n for n, _ in whole.named_parameters())
    carry = {}
    for stage in stages:
        carry, terms = stage(batch, carry)
    expected = whole(batch, {})[1]["language"]
    assert torch.equal(terms["language"].sum, expected.sum) and terms["language"].count == expected.count
    terms["language"].sum.backward(), expected.sum.backward()
    wanted = dict(whole.named_parameters())
    for stage in stages:
        for name, p in stage.named_parameters():
            assert torch.equal(p, wanted[name]) and torch.equal(p.grad, wanted[name].grad), name


def addmm_flops(_, a, b, *, out_shape=None, **scales) -> int:
    return 2 * a[0] * a[1] * b[1]


@pytest.mark.parametrize("config", [replace(GPT, dropout=0.0, attention_dropout=0.0), LLAMA])
def test_model_flops_are_what_torch_counts(config):
    """Of the unfused products; its counter knows addmm, not its in-place form. The first layer's input gradient counts
    too, since the embedding is trained."""
    model, batch = build(config, kernels="reference"), record(config, 3)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_flops}) as counter:
        model(batch, {})[1]["language"].sum.backward()
    assert model_flops(config, 3) == counter.get_total_flops()


def test_parameter_count_is_the_paper_s_formula():
    """P = 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh) (arXiv:2104.04473, section 5.1) plus the last norm's 2h."""
    config = replace(GPT, tied=True)
    l, h, v, s = 4, 32, 40, 12
    assert count(build(config)) == 12 * l * h * h + 13 * l * h + (v + s) * h + 2 * h


@pytest.mark.parametrize(("wrong", "said"), [
    ({"heads": 5}, "heads=5 does not divide hidden=32"), ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
    ({"norm": "batchnorm"}, "norm='batchnorm'"), ({"activation": "relu"}, "activation='relu'"),
    ({"positions": "alibi"}, "positions='alibi'"), ({"dropout": 1.0}, "dropout=1.0"), ({"vocab": 0}, "vocab=0"),
    ({"hidden": 36, "heads": 12, "positions": "rotary"}, "head_dim=3"), ({"pattern": "[*x]"}, "unknown letter 'x'"),
])
def test_configs_that_cannot_be(wrong, said):
    with pytest.raises(ValueError, match=said):
        replace(GPT, **wrong)


@pytest.mark.parametrize(("settings", "said"), [
    ({"tp": 3}, "heads=4 does not divide by tp=3"), ({"tp": 4, "config": replace(LLAMA, ffn=26)}, "ffn=26"),
    ({"tp": 4, "sequence_parallel": True, "config": replace(GPT, sequence=14)}, "sequence=14 does not divide by tp=4"),
    ({"kernels": "fast"}, "kernels='fast'"), ({"recompute": "some"}, "unknown name 'some'"),
    ({"recompute": "full:9", "kernels": "paper"}, "names 9 layers, the model has 4"),
    ({"recompute": "selective", "config": LLAMA}, "frees nothing"), ({"recompute": "full:x"}, "a number of layers"),
    ({"tp": 6, "config": replace(GPT, heads=12, hidden=48, kv_heads=4)}, "kv_heads=4 and tp=6"),
])
def test_layouts_that_cannot_be(settings, said):
    with pytest.raises(ValueError, match=said):
        check(**{"config": GPT, "kernels": "sdpa", **settings})
