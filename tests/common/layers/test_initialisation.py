"""First weights: their statistics, their independence of each other, and of the layout."""

import math

import pytest
import torch
from torch import nn

from common.grid import Grid
from common.layers.context import Context
from common.layout import SERIAL, Layout
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.parallel.gradients import gather_whole
from common.parameters import Facts, initialise, named, parameter
from infra.rank_context import RankContext
from tests.distributed import ranks

CONFIG = LanguageModelConfig(
    pattern="[*-]*3",
    hidden=48,
    heads=4,
    kv_heads=2,
    vocab=131,
    sequence=70,
    norm="layernorm",
    activation="swiglu",
    tied=False,
    qkv_bias=True,
    init_std=0.03,
)


def make(config=CONFIG, seed=1, **context) -> LanguageModel:
    model = LanguageModel(config, Context(**context))
    initialise(model, context.get("layout", SERIAL), seed)
    return model


def weights(model) -> dict[str, torch.Tensor]:
    return {
        n: p.detach().double() for n, p in model.named_parameters() if p.dim() > 1 and not n.endswith("bias")
    }


def test_every_weight_is_normal_with_the_std_the_config_names():
    """Mean, variance and fourth moment within five of their standard deviations; output projections are
    smaller."""
    found = weights(make())
    assert len(found) == 3 + 3 * 5
    for name, w in found.items():
        residual = name.endswith(("mixer.output.weight", "mixer.down.weight"))
        std = 0.03 / math.sqrt(2 * 3) if residual else 0.03
        z, n = w.flatten() / std, w.numel()
        assert abs(z.mean()) < 5 / math.sqrt(n), name
        assert abs(z.square().mean() - 1) < 5 * math.sqrt(2 / n), name
        assert abs(z.pow(4).mean() - 3) < 5 * math.sqrt(96 / n), name


def test_norms_start_at_one_and_biases_at_zero():
    constant = {n: p for n, p in make().named_parameters() if n not in weights(make())}
    assert constant
    for name, p in constant.items():
        assert torch.equal(p, torch.full_like(p, 1.0 if name.endswith("norm.weight") else 0.0)), name


def test_weights_of_different_places_have_nothing_in_common():
    """Weights, blocks of rows of one, halves of gate and value, seeds: no two are correlated."""
    rows = {}
    for seed in (1, 2):
        for name, p, facts in named(make(seed=seed)):
            if name in weights(make()):
                # A block of 64 rows is 3 x 1024 numbers or a multiple, so that repeated blocks would show.
                cut_first = p.detach().double().movedim(facts.dim, 0).reshape(-1)
                rows |= {
                    f"{seed} {name} {i}": x for i, x in enumerate(cut_first.split(1024)) if len(x) == 1024
                }
    assert len(rows) > 200
    joint = torch.corrcoef(torch.stack(list(rows.values())))
    assert joint.fill_diagonal_(0).abs().max() < 6 / math.sqrt(1024)


def test_the_same_numbers_in_every_dtype():
    exact = weights(make(dtype=torch.float64))
    for dtype in (torch.float32, torch.bfloat16):
        for name, p in make(dtype=dtype).named_parameters():
            if name in exact:
                assert torch.equal(p, exact[name].to(dtype)), name


def test_depth_adds_layers_and_changes_no_other_weight_but_by_scale():
    deep = weights(make(LanguageModelConfig(**{**vars(CONFIG), "pattern": "[*-]*12"})))
    for name, w in weights(make()).items():
        factor = 2.0 if name.endswith(("mixer.output.weight", "mixer.down.weight")) else 1.0
        torch.testing.assert_close(deep[name] * factor, w, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_a_second_call_and_any_number_of_rows(rows):
    """Blocks of rows: their borders leave nothing out and repeat nothing."""
    model = nn.Module()
    model.w = parameter(Facts((rows, 5)), SERIAL, torch.float32)
    with torch.no_grad():
        model.w.fill_(torch.nan)
    initialise(model, SERIAL, 1)
    first = model.w.detach().clone()
    assert first.isfinite().all() and len(first.flatten().unique()) == 5 * rows
    initialise(model, SERIAL, 1)
    assert torch.equal(model.w, first)


def _whole(context: RankContext) -> dict[str, torch.Tensor]:
    layout = Layout(Grid(tp=context.size), context.rank)
    model = make(layout=layout)
    padding = [p.narrow(f.dim, last - first, p.shape[f.dim] - (last - first)) for _, p, f in named(model)
               for first, last in [f.local_range(layout)]]
    assert not any(x.any() for x in padding)
    return {n: gather_whole(p.detach(), f, layout) for n, p, f in named(model)}


@pytest.mark.parametrize("size", [2, 4])
def test_no_layout_changes_a_weight(size):
    """Vocabulary 131 and two key-value heads on two and four ranks; bit for bit."""
    expected = dict(make().named_parameters())
    for whole in ranks(size, _whole):
        assert whole.keys() == expected.keys()
        assert all(torch.equal(whole[n], p) for n, p in expected.items())
