"""Fused kernels in traces: what runs in a region is one operation, with the bytes that a kernel moves."""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from common.collectives import all_reduce
from common.grid import Grid
from common.kernels import region
from common.kernels.region import absorbed, fused, kernel
from common.trace.record import Recorder, recording
from common.trace.trace import layer_trace, trace
from common.trace.world import world
from tests.common.trace.shapes import SEQUENCE, gpt, published_layer

N = 1000


@contextmanager
def recorded():
    with world(Grid()) as layout, recording(nn.Linear(1, 1), layout) as recorder:
        yield recorder


def moved(recorder: Recorder) -> list[tuple[str, int, int]]:
    return [(o.name, o.read, o.written) for o in recorder.operations]


def test_a_region_reads_what_came_in_and_writes_what_is_left():
    with recorded() as recorder:
        x, y = torch.empty(N), torch.empty(N)
        with fused("sum"):
            z = (x + y).mul_(x).exp() + 1  # x is read twice, the first three results die
        w = z * 2
    assert moved(recorder) == [("common.sum", 8 * N, 4 * N), ("aten.mul", 4 * N, 4 * N)]
    assert recorder.operations[0].inputs == ((N,), (N,)) and recorder.operations[0].outputs == ((N,),)
    del w


def test_what_was_there_and_is_written_to_counts_as_written_and_views_as_what_they_show():
    with recorded() as recorder:
        buffer, x = torch.empty(10, N), torch.empty(N)
        with fused("into"):
            buffer[3].add_(x * buffer[4])
        with fused("twice"):
            buffer[3].mul_(2)
            buffer[3].add_(1)
    assert moved(recorder) == [("common.into", 12 * N, 4 * N), ("common.twice", 4 * N, 4 * N)]


def test_all_outputs_that_live_are_written_the_largest_first():
    with recorded() as recorder:
        x = torch.empty(10, N)
        with fused("statistics"):
            mean = x.mean(-1)
            y = (x - mean[:, None]).bfloat16()
    (found,) = recorder.operations
    assert (found.read, found.written) == (40 * N, 40 + 20 * N)
    assert found.outputs == ((10, N), (10,)) and found.dtype == "bfloat16"
    del y


def test_products_inside_are_its_parts():
    with recorded() as recorder:
        a, b, main = torch.empty(30, 50), torch.empty(50, 70), torch.empty(30, 70)
        with fused("accumulate"):
            main.add_(a @ b)
    (found,) = recorder.operations
    assert (found.read, found.written) == (4 * (30 * 50 + 50 * 70 + 30 * 70), 4 * 30 * 70)
    assert found.flops == 2 * 30 * 50 * 70 and [p.name for p in found.parts] == ["aten.mm", "aten.add_"]
    assert found.parts[0].inputs == ((30, 50), (50, 70))


def test_regions_that_join_are_one_unless_something_runs_between():
    for between, expected in ((False, ["common.step"]), (True, ["common.step", "aten.neg", "common.step"])):
        with recorded() as recorder:
            x = torch.empty(N)
            with fused("step", joins=True):
                x = x + 1
            if between:
                x.neg()
            with fused("step", joins=True):
                x = x.view(10, -1) * 2
        assert [o.name for o in recorder.operations] == expected
        assert recorder.operations[0].read == 4 * N and recorder.operations[0].written == 4 * N


def test_a_region_within_a_region_belongs_to_it_and_what_is_absorbed_costs_nothing():
    with recorded() as recorder:
        x = torch.empty(N)
        with absorbed():
            x = x.clone()
        with fused("outer"):
            with absorbed():
                mask = torch.ones(N) > 0
            with fused("inner"):
                x = x + 1
            x = x * mask
            del mask
    assert moved(recorder) == [("common.absorbed", 0, 0), ("common.outer", 4 * N, 4 * N)]
    assert [[p.name for p in o.parts] for o in recorder.operations] == [
        ["aten.clone"], ["aten.ones", "aten.gt", "aten.add", "aten.mul"]]


def test_a_message_inside_a_kernel_cannot_be():
    with world(Grid(tp=2)) as layout, recording(nn.Linear(1, 1), layout), fused("kernel"):
        with pytest.raises(AssertionError, match="'kernel'"):
            all_reduce(torch.empty(N), layout.group("tp"))


def test_marks_do_nothing_where_nobody_listens():
    seen = []

    @kernel("f")
    def f(x):
        """Doubles."""
        seen.append(region._listener)
        return 2 * x

    assert f(3) == 6 and f.__doc__ == "Doubles." and seen == [None]
    assert fused("a") is fused("b") is absorbed()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("kernels", ["paper", "unfused"])
def test_marks_change_neither_flops_nor_messages_nor_what_is_saved(kernels, recompute, monkeypatch):
    settings = {"micro_batch": 2, "kernels": kernels, "recompute": recompute, "sequence_parallel": True}
    marked = trace(gpt(2, 256, 4), Grid(tp=4), **settings)
    monkeypatch.setattr(region, "listening", lambda listener: absorbed())
    plain = trace(gpt(2, 256, 4), Grid(tp=4), **settings)
    assert len(marked.operations) < len(plain.operations)
    assert marked.saved == plain.saved and marked.peaks == plain.peaks
    assert marked.flops_by_module() == plain.flops_by_module()
    assert [replace(m, start=0, end=0) for m in marked.messages] == [replace(m, start=0, end=0)
                                                                     for m in plain.messages]
    assert [m.asynchronous for m in marked.messages] == [m.asynchronous for m in plain.messages]
    assert all(plain.kernel_peaks[p] >= marked.kernel_peaks[p] for p in marked.peaks)


def test_element_wise_kernels_of_a_layer_move_the_bytes_that_they_must():
    """22B, b = 4, t = 8 in bf16: LayerNorm 2 + 2 bytes an element, bias, dropout and sum 2 + 2 and 2 + 1; softmax 2 + 2 and
    dropout 2 and 2 + 1 a score; scores are written once, and read by nothing but the softmax.
    """
    traced = published_layer("22B")
    sbh, scores = 4 * SEQUENCE * 6144, 8 * 4 * SEQUENCE**2
    forward = [o for o in traced.operations if o.phase == "forward"]
    by_name = {o.name: o for o in forward}
    close = {"rel": 1e-3}  # statistics, weights and biases
    assert Counter(o.name for o in forward) == {
        "common.layer_norm": 2, "common.products": 1, "aten.baddbmm": 1, "aten._softmax": 1,
        "common.dropout": 1, "aten.bmm": 1, "aten.clone": 1, "aten.mm": 2, "common.residual": 2, "aten.addmm": 1,
        "aten.gelu": 1}
    for name, read, written in (("layer_norm", 2 * sbh, 2 * sbh), ("residual", 4 * sbh, 3 * sbh),
                                ("dropout", 2 * scores, 3 * scores)):
        found = by_name[f"common.{name}"]
        assert (found.read, found.written) == (pytest.approx(read, **close), pytest.approx(written, **close))
    assert by_name["aten.baddbmm"].written == 2 * scores
    assert by_name["aten.baddbmm"].read == 2 * 2 * sbh // 8


def test_weight_gradients_are_added_to_the_main_gradients_by_the_product_itself():
    traced = published_layer("22B")
    down = next(o for o in traced.operations if o.name == "common.weight_gradient" and o.module.endswith("down"))
    tokens, h = 4 * SEQUENCE, 6144
    inner = 4 * h // 8
    assert down.read == 2 * tokens * (h + inner) + 4 * h * inner and down.written == 4 * h * inner


def test_without_the_fused_kernels_scores_move_many_times_as_often():
    """Section 4.2 of arXiv:2104.04473 fuses scale, mask and softmax: 4 bytes a score where PyTorch's own kernels in fp32
    move 2 + 4 for the cast, 4 + 4 for the scale, 4 + 1 + 4 for the mask, 4 + 4 for softmax and 4 + 2 for the cast back.
    """
    config, scores = gpt(3, 1024, 16), 16 * SEQUENCE**2
    paper, unfused = (layer_trace(config, Grid(), kernels=k) for k in ("paper", "unfused"))

    def element_wise(traced):
        return sum(o.read + o.written for o in traced.operations
                   if o.phase == "forward" and o.module.endswith("attention.mixer") and not o.flops)

    mask = SEQUENCE**2  # one table of all heads
    assert element_wise(unfused) - element_wise(paper) == (6 + 8 + 8 + 8 + 6 - 4) * scores + mask
    steps = Counter(o.name for o in unfused.operations if o.phase == "forward" and o.module.endswith("branches.mlp"))
    assert steps == {"common.dropout": 1, "aten.add": 1}
