"""Whole stages of the published models: what stands outside the layers, and how much a trace itself takes."""

import json
import resource
import time
from dataclasses import replace

import pytest
import torch

from common.grid import Grid
from common.trace.trace import STATISTICS, layer_trace, trace
from tests.common.trace.shapes import PUBLISHED, SEQUENCE, VOCABULARY, gpt


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_terms_outside_the_layers_are_those_of_section_4_3(sequence_parallel):
    """One stage: embedding dropout sbh/t, final norm 2sbh/t, projection input 2sbh/t, fp32 logits 4sbv/t."""
    config, b, t = gpt(3, 6144, 64), 4, 8
    s, h, v = SEQUENCE, config.hidden, VOCABULARY
    traced = trace(config, Grid(tp=t), micro_batch=b, sequence_parallel=sequence_parallel)
    layer = layer_trace(config, Grid(tp=t), micro_batch=b, sequence_parallel=sequence_parallel)
    stream = t if sequence_parallel else 1
    outside = {name: size for name, size in traced.saved.items() if name not in layer.saved}
    # Not in the paper: token and position numbers, and per token the label and the softmax's sum.
    small = {name: outside.pop(name) for name in list(outside)
             if name.startswith(("embedding.indices", "loss.labels"))}
    assert outside == {
        "embedding.dropout_mask": s * b * h // stream,
        "output.norm_input": 2 * s * b * h // stream,
        "output.projection_input": 2 * s * b * h // stream,
        "loss.logits": 4 * s * b * v // t,
    }
    assert 0 < sum(small.values()) <= 48 * s * b
    assert all(traced.saved[name] == 3 * layer.saved[name] for name in layer.saved if name not in STATISTICS)


def test_the_output_projection_costs_what_appendix_a_says():
    config, b, t = gpt(3, 1024, 16), 2, 8
    traced = trace(config, Grid(tp=t), micro_batch=b)
    assert traced.flops("forward", module="output") == 2 * b * SEQUENCE * 1024 * VOCABULARY // t
    assert traced.flops("backward", module="output") == 2 * traced.flops("forward", module="output")
    assert traced.flops("forward", module="embedding") == 0


@pytest.mark.parametrize("name, billions", [("22B", 22.0), ("175B", 175.0), ("530B", 529.6), ("1T", 1008.0)])
def test_parameters_of_the_published_models(name, billions):
    """Table 3's sizes: 12h^2 + 13h a layer, and outside them two tables and the final norm."""
    config, _, pp = PUBLISHED[name]
    h, L = config.hidden, config.depth
    layer = layer_trace(config, Grid(tp=8, pp=pp))
    whole = trace(replace(config, pattern="[*-]"), Grid(tp=8))
    assert layer.logical_parameters == 12 * h**2 + 13 * h
    outside = whole.logical_parameters - layer.logical_parameters
    assert outside == (VOCABULARY + SEQUENCE) * h + 2 * h
    assert (L * layer.logical_parameters + outside) / 1e9 == pytest.approx(billions, rel=5e-3)
    # This rank: all weights cut by 8, norms (4h) and the biases behind the sums (2h) whole.
    assert layer.parameters == (12 * h**2 + 7 * h) // 8 + 6 * h


@pytest.mark.parametrize("dtype, itemised", [
    (torch.bfloat16, {"weights": 2, "main weights": 4, "gradients": 4, "first moments": 4, "second moments": 4}),
    (torch.float32, {"weights": 4, "main weights": 0, "gradients": 4, "first moments": 4, "second moments": 4}),
    (torch.float64, {"weights": 8, "main weights": 0, "gradients": 8, "first moments": 8, "second moments": 8}),
])
def test_state_bytes_per_parameter(dtype, itemised):
    """18 bytes in bf16, the figure behind figure 1's lower bars; one fp32 step counter a tensor besides."""
    traced = layer_trace(gpt(3, 512, 8), Grid(tp=2), dtype=dtype)
    assert {k: n for k, n in traced.state.items() if k != "step counters"} == {
        k: n * traced.parameters for k, n in itemised.items()}
    assert traced.state["step counters"] == 4 * 14


def test_stages_add_up_to_the_model():
    config, grid = gpt(4, 512, 8), Grid(tp=4, pp=2)
    whole = trace(config, grid)
    stages = [trace(config, grid, rank=4 * i, first=2 * i, last=2 * i + 2) for i in range(2)]
    assert sum(x.flops("forward", "backward") for x in stages) == whole.flops("forward", "backward")
    # The last stage holds a copy of the tied embedding, its input is a leaf and takes no all-reduce of its own.
    assert sum(x.parameters for x in stages) == whole.parameters + VOCABULARY // 4 * 512
    assert sum(x.saved_bytes for x in stages) == whole.saved_bytes


def test_a_trace_becomes_json():
    traced = trace(gpt(1, 64, 4), Grid(tp=2), sequence_parallel=True)
    for detail in (True, False):
        plain = json.loads(json.dumps(traced.to_dict(detail)))
        assert plain["saved"] == traced.saved and plain["grid"]["tp"] == 2
    assert len(json.loads(json.dumps(traced.to_dict()))["operations"]) == len(traced.operations)


def test_ranks_of_the_1t_model_trace_in_seconds_and_little_memory():
    """The first stage of tp 8, pp 64, then a rank that holds a share of all 128 layers: 60 s and 4 GB are the
    limits.
    """
    config, b, pp = PUBLISHED["1T"]
    begin = time.process_time()
    stage = trace(config, Grid(tp=8, pp=pp), last=config.depth // pp, sequence_parallel=True, recompute="selective")
    assert stage.saved["attention.norm_input"] == 2 * 2 * SEQUENCE * b * config.hidden // 8
    rank = trace(config, Grid(tp=8), rank=5)
    assert time.process_time() - begin < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 4e9
    assert rank.logical_parameters / 1e12 == pytest.approx(1.008, rel=1e-3)
    s, h, L, v = SEQUENCE, config.hidden, config.depth, VOCABULARY
    assert rank.flops("forward", "backward") * 8 == pytest.approx(
        72 * b * L * s * h**2 * (1 + s / (6 * h) + v / (12 * h * L)), rel=1e-12)
