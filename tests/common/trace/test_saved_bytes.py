"""Activation bytes of the published layers against arXiv:2205.05198, sections 4 and 5: in total and term by
term.

Letters as in the paper's table 1: s sequence, b micro-batch, h hidden, a heads, t tensor-parallel size.
"""

from dataclasses import replace

import pytest

from common.grid import Grid
from common.trace.trace import STATISTICS, layer_trace
from tests.common.trace.shapes import PUBLISHED, SEQUENCE, TENSOR, gpt, published_layer

# Table 2: settings -> bytes of one layer.
TABLE_2 = {
    "no parallelism": ({}, 1, lambda s, b, h, a, t: s * b * h * (34 + 5 * a * s / h)),
    "tensor": ({}, TENSOR, lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t))),
    "tensor + sequence": ({"sequence_parallel": True}, TENSOR,
                          lambda s, b, h, a, t: s * b * h * (34 / t + 5 * a * s / (h * t))),
    "tensor + selective": ({"recompute": "selective"}, TENSOR, lambda s, b, h, a, t: s * b * h * (10 + 24 / t)),
    "tensor + sequence + selective": ({"sequence_parallel": True, "recompute": "selective"}, TENSOR,
                                      lambda s, b, h, a, t: s * b * h * 34 / t),
    "full": ({"recompute": "full"}, TENSOR, lambda s, b, h, a, t: 2 * s * b * h),
    # Not in the table. Section 5: full recomputation could keep 1/t of the input; our stream is cut already.
    "full + sequence": ({"sequence_parallel": True, "recompute": "full"}, TENSOR,
                        lambda s, b, h, a, t: 2 * s * b * h / t),
}

# Section 4.1: part -> bytes without parallelism, and what divides it under tensor parallelism alone.
PARTS = {
    "attention.qkv_input": (lambda s, b, h, a: 2 * s * b * h, "whole"),
    "attention.q": (lambda s, b, h, a: 2 * s * b * h, "cut"),
    "attention.k": (lambda s, b, h, a: 2 * s * b * h, "cut"),
    "attention.softmax": (lambda s, b, h, a: 2 * a * s**2 * b, "cut"),
    "attention.softmax_mask": (lambda s, b, h, a: a * s**2 * b, "cut"),
    "attention.dropped": (lambda s, b, h, a: 2 * a * s**2 * b, "cut"),
    "attention.v": (lambda s, b, h, a: 2 * s * b * h, "cut"),
    "attention.output_input": (lambda s, b, h, a: 2 * s * b * h, "cut"),
    "attention.dropout_mask": (lambda s, b, h, a: s * b * h, "whole"),
    "mlp.up_input": (lambda s, b, h, a: 2 * s * b * h, "whole"),
    "mlp.activation_input": (lambda s, b, h, a: 8 * s * b * h, "cut"),
    "mlp.down_input": (lambda s, b, h, a: 8 * s * b * h, "cut"),
    "mlp.dropout_mask": (lambda s, b, h, a: s * b * h, "whole"),
    "attention.norm_input": (lambda s, b, h, a: 2 * s * b * h, "whole"),
    "mlp.norm_input": (lambda s, b, h, a: 2 * s * b * h, "whole"),
}


@pytest.mark.parametrize("technique", TABLE_2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_of_one_layer_are_those_of_table_2(name, technique):
    config, b, _ = PUBLISHED[name]
    settings, t, formula = TABLE_2[technique]
    traced = published_layer(name, t, **settings)
    assert traced.saved_bytes == pytest.approx(formula(SEQUENCE, b, config.hidden, config.heads, t), rel=1e-12)
    assert traced.statistics_bytes < 1e-3 * traced.saved_bytes


@pytest.mark.parametrize("tp, sequence_parallel", [(1, False), (8, False), (8, True)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_part_of_section_4_1_is_one_named_tensor(name, tp, sequence_parallel):
    config, b, _ = PUBLISHED[name]
    traced = published_layer(name, tp, sequence_parallel)
    expected = {}
    for part, (formula, kind) in PARTS.items():
        divisor = tp if kind == "cut" or sequence_parallel else 1
        expected[part] = formula(SEQUENCE, b, config.hidden, config.heads) / divisor
    assert {part: size for part, size in traced.saved.items() if part not in STATISTICS} == expected


def test_selective_recomputation_frees_the_square_terms_and_nothing_else():
    none, selective = (published_layer("175B", recompute=r).saved for r in ("none", "selective"))
    freed = {"attention.softmax", "attention.softmax_mask", "attention.dropped"}
    assert selective == {part: size for part, size in none.items() if part not in freed}


@pytest.mark.parametrize("recompute, freed", [
    ("norm", {"attention.qkv_input", "mlp.up_input"}),
    ("activation", {"mlp.down_input"}),
    ("norm,activation", {"attention.qkv_input", "mlp.up_input", "mlp.down_input"}),
])
def test_discarded_outputs_are_not_kept(recompute, freed):
    none, less = (published_layer("22B", recompute=r).saved for r in ("none", recompute))
    assert less == {part: size for part, size in none.items() if part not in freed}


@pytest.mark.parametrize("kernels, growth", [("sdpa", 2), ("paper", 4)])
def test_fused_attention_keeps_nothing_quadratic(kernels, growth):
    """Twice the sequence, twice every tensor kept; with unfused attention the scores' output takes four
    times.
    """
    short = replace(gpt(4, 1024, 16), attention_dropout=0.0)
    a, b = (layer_trace(c, Grid(tp=4), kernels=kernels, sequence_parallel=True).saved
            for c in (short, replace(short, sequence=2 * short.sequence)))
    ratios = {part: b[part] / a[part] for part in a}
    assert set(a) == set(b)
    assert max(ratios.values()) == growth
    quadratic = {part for part, ratio in ratios.items() if ratio != 2}
    assert quadratic == ({"attention.softmax"} if growth == 4 else set())


LLAMA = replace(gpt(4, 4096, 32), kv_heads=8, ffn=14336, norm="rmsnorm", activation="swiglu",
                positions="rotary", tied=False, bias=False, dropout=0.0, attention_dropout=0.0)


@pytest.mark.parametrize("kernels", ["paper", "sdpa"])
@pytest.mark.parametrize("tp", [4, 16])
def test_a_llama_layer_keeps_what_its_shapes_say(kernels, tp):
    """Grouped queries, gate and value, RMSNorm and rotary tables; at tp 16 two ranks share each key-value
    head.
    """
    s, h, f, d = SEQUENCE, LLAMA.hidden, LLAMA.inner, LLAMA.dim
    heads, groups = LLAMA.heads // tp, max(LLAMA.groups // tp, 1)
    saved = layer_trace(LLAMA, Grid(tp=tp), kernels=kernels, sequence_parallel=True).saved
    stream = {part: 2 * s * h // tp for part in ("attention.norm_input", "attention.qkv_input", "mlp.norm_input",
                                                 "mlp.up_input")}
    inner = {"mlp.activation_input": 2 * s * 2 * f // tp, "mlp.down_input": 2 * s * f // tp}
    attention = {"attention.q": 2 * s * heads * d, "attention.k": 2 * s * groups * d,
                 "attention.v": 2 * s * groups * d, "attention.output_input": 2 * s * heads * d}
    scores = {"attention.softmax": 2 * heads * s * s} if kernels == "paper" else {}
    for part, size in (stream | inner | attention | scores).items():
        assert saved[part] == size, part
    # Besides fp32 statistics and tables, nothing: the unrotated keys are gone.
    rest = {"norm.statistics": 2 * 4 * s // tp, "rotary.table": 2 * 4 * s * d // 2}
    rest |= {} if kernels == "paper" else {"attention.statistics": 4 * heads * s}
    assert {part: size for part, size in saved.items() if part not in stream | inner | attention | scores} == rest
