"""FLOPs and messages of the published layers against arXiv:2205.05198, appendix A and section 4.2."""

from collections import Counter
from dataclasses import replace

import pytest

from common.grid import Grid
from common.trace.trace import layer_trace, trace
from tests.common.trace.shapes import PUBLISHED, SEQUENCE, VOCABULARY, gpt, published_layer
from tests.common.trace.test_saved_bytes import LLAMA


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_flops_of_one_layer(name, recompute):
    """Forward 24bsh^2 + 4bs^2h over all ranks, backward double, and what each policy runs again."""
    config, b, _ = PUBLISHED[name]
    s, h, t = SEQUENCE, config.hidden, 8
    traced = published_layer(name, t, recompute=recompute)
    forward, attention = 24 * b * s * h**2 + 4 * b * s**2 * h, 4 * b * s**2 * h
    assert traced.flops("forward") * t == forward
    assert traced.flops("backward") * t == 2 * forward
    assert traced.flops("recompute") * t == {"none": 0, "selective": attention, "full": forward}[recompute]
    assert traced.flops("reduce", "optimizer") == 0


def test_flops_by_module_are_appendix_a_s_parts():
    config, b, _ = PUBLISHED["530B"]
    s, h = SEQUENCE, config.hidden
    traced = published_layer("530B", 8, True, "selective")
    layer = f"layers.{config.depth // 2}.branches"
    parts = {"attention.mixer.qkv": 6 * b * s * h**2, "attention.mixer": 4 * b * s**2 * h,
             "attention.mixer.output": 2 * b * s * h**2, "mlp.mixer.up": 8 * b * s * h**2,
             "mlp.mixer.down": 8 * b * s * h**2}
    expected = {f"{layer}.{part}": flops // 8 for part, flops in parts.items()}
    assert traced.flops_by_module("forward") == expected
    assert traced.flops_by_module("backward") == {part: 2 * flops for part, flops in expected.items()}
    assert traced.flops_by_module("recompute") == {f"{layer}.attention.mixer": 4 * b * s**2 * h // 8}
    assert traced.flops("forward", module=f"{layer}.mlp") == 16 * b * s * h**2 // 8


def test_flops_of_a_model_are_equation_7():
    config, b, L = gpt(5, 6144, 64), 4, 5
    s, h, v, t = SEQUENCE, config.hidden, VOCABULARY, 8
    traced = trace(config, Grid(tp=t), micro_batch=b, sequence_parallel=True)
    equation_7 = 72 * b * L * s * h**2 * (1 + s / (6 * h) + v / (12 * h * L))
    assert traced.flops() * t == pytest.approx(equation_7, rel=1e-12)


@pytest.mark.parametrize("kernels, products", [("paper", 4), ("sdpa", 5)])
def test_flops_of_grouped_query_attention_count_the_whole_square(kernels, products):
    """Fused attention makes the scores again in backward: five products for the unfused four."""
    s, b, tp = SEQUENCE, 2, 4
    traced = layer_trace(LLAMA, Grid(tp=tp), kernels=kernels, micro_batch=b)
    core = f"layers.{LLAMA.depth // 2}.branches.attention.mixer"
    square = 2 * b * LLAMA.heads // tp * s * s * LLAMA.dim
    assert traced.flops_by_module("forward")[core] == 2 * square
    assert traced.flops_by_module("backward")[core] == products * square


def counted(traced, *phases):
    return Counter((m.name, m.group) for m in traced.sent(*phases))


def test_tensor_parallelism_alone_sends_four_all_reduces():
    config, b, _ = PUBLISHED["175B"]
    traced = published_layer("175B")
    assert counted(traced, "forward") == counted(traced, "backward") == {("all_reduce", "tp"): 2}
    sent = traced.sent("forward", "backward")
    assert {m.bytes for m in sent} == {2 * SEQUENCE * b * config.hidden}
    assert {m.dtype for m in sent} == {"bfloat16"} and {m.size for m in sent} == {8}
    # Forward waits at once; in backward the weight gradient runs beside the reduction of the input gradient.
    assert [m.asynchronous for m in sent] == [False, False, True, True]
    assert not traced.sent("reduce")


def test_sequence_parallelism_sends_the_same_and_gathers_inputs_again():
    """Four all-gathers and four reduce-scatters, and in backward one more gather for each column-parallel
    input.
    """
    config, b, _ = PUBLISHED["175B"]
    traced = published_layer("175B", sequence_parallel=True)
    assert counted(traced, "forward") == {("all_gather", "tp"): 2, ("reduce_scatter", "tp"): 2}
    assert counted(traced, "backward") == {("all_gather", "tp"): 4, ("reduce_scatter", "tp"): 2}
    assert {m.bytes for m in traced.sent("forward", "backward")} == {2 * SEQUENCE * b * config.hidden}
    again = [m for m in traced.sent("backward") if m.name == "all_gather" and m.module.endswith(("qkv", "up"))]
    assert len(again) == 2 and all(m.asynchronous for m in again)
    summed = [m for m in traced.sent("backward") if m.name == "reduce_scatter"]
    assert [m.module.rpartition(".")[2] for m in summed] == ["up", "qkv"] and all(m.asynchronous for m in summed)
    # Norms and the biases behind the row-parallel layers saw a part of the tokens: six vectors, fp32.
    (partial,) = traced.sent("reduce")
    assert (partial.name, partial.group, partial.bytes) == ("all_reduce", "tp", 6 * config.hidden * 4)


def test_recomputation_of_a_layer_repeats_its_forward_messages():
    for sequence_parallel in (False, True):
        full, none, selective = (published_layer("175B", sequence_parallel=sequence_parallel, recompute=r)
                                 for r in ("full", "none", "selective"))
        assert counted(full, "recompute") == counted(none, "forward")
        assert counted(full, "backward") == counted(selective, "backward") == counted(none, "backward")
        assert counted(selective, "recompute") == counted(none, "recompute") == {}


def test_gradients_are_summed_over_data_ranks_and_over_copies_of_key_value_heads():
    grid = Grid(tp=16, dp=3, pp=2)
    traced = layer_trace(LLAMA, grid, rank=21, sequence_parallel=True, kernels="sdpa")
    by_group = {m.group: m for m in traced.sent("reduce")}
    assert set(by_group) == {"dp+cp", "tp", "tp/8"}
    over_data = traced.sent("reduce", group="dp+cp")
    assert sum(m.bytes for m in over_data) == 4 * traced.parameters and {m.size for m in over_data} == {3}
    assert by_group["tp/8"].bytes == 4 * 2 * LLAMA.dim * LLAMA.hidden and by_group["tp/8"].size == 2
    assert {m.group for m in traced.sent("optimizer")} == {"tp+cp+dp+pp"}


def test_embedding_and_loss_send_what_vocabulary_parallelism_needs():
    config = gpt(3, 1024, 16)
    s, b, h, t = SEQUENCE, 2, 1024, 8
    stream = 2 * s * b * h
    plain, cut = (trace(config, Grid(tp=t), micro_batch=b, sequence_parallel=on) for on in (False, True))
    outside = [[(m.name, m.bytes) for m in x.sent("forward", "backward") if not m.module.startswith("layers")]
               for x in (plain, cut)]
    loss = [("all_reduce", 4 * s * b), ("all_reduce", 2 * 4 * s * b)]  # the maximum; the sum and the label's logit
    assert outside[0] == [("all_reduce", stream), *loss, ("all_reduce", stream)]
    assert outside[1] == [("reduce_scatter", stream), ("all_gather", stream), *loss,
                          ("all_gather", stream), ("reduce_scatter", stream), ("all_gather", stream)]


def test_traffic_of_a_matrix_product_and_of_views():
    """y = x w: reads both, writes one; what only renames memory is not an operation."""
    config = replace(gpt(3, 512, 8), dropout=0.0, attention_dropout=0.0, bias=False)
    traced = layer_trace(config, Grid(), micro_batch=1)
    up = next(o for o in traced.operations if o.module.endswith("mlp.mixer.up"))
    assert (up.name, up.phase) == ("aten.mm", "forward")
    assert up.read == 2 * (SEQUENCE * 512 + 512 * 2048) and up.written == 2 * SEQUENCE * 2048
    assert up.flops == 2 * SEQUENCE * 512 * 2048
    names = {o.name for o in traced.operations}
    assert not names & {"aten.view", "aten.t", "aten.transpose", "aten.permute", "aten.empty", "aten.detach",
                        "aten._unsafe_view"}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_without_overlap_every_message_is_waited_for_at_once(sequence_parallel):
    def beside(overlap: bool) -> int:
        found = trace(gpt(layers=1, hidden=64, heads=8), Grid(tp=2), sequence_parallel=sequence_parallel, overlap=overlap)
        return sum(m.end > m.start for m in found.messages if m.phase == "backward")

    assert beside(True) > 0 and beside(False) == 0
