"""Pieces of stages against whole models: parameters counted on modules, FLOPs and saved bytes of a trace of
the whole stage, bytes on the wire by arithmetic."""

from dataclasses import replace

import pytest
import torch

from common.grid import Grid
from common.layers.context import Context
from common.models.language_model import LanguageModel
from common.pipeline.stages import cuts
from common.predict.pieces import Way, border, pieces
from common.predict.stages import stages
from common.trace.trace import trace
from common.trace.world import world
from common.training.step import Execution
from tests.common.predict.small import GPT, LLAMA


@pytest.mark.parametrize(
    "model, tp, pp, chunks", [(GPT, 1, 1, 1), (GPT, 2, 2, 2), (LLAMA, 4, 3, 1), (LLAMA, 2, 1, 1)]
)
def test_parameters_of_stages_are_those_of_the_modules(model, tp, pp, chunks):
    made = stages(model, Execution("paper", precision="bf16", chunks=chunks), Grid(tp=tp, pp=pp), 1)
    for stage, (first, last) in zip(made, cuts(model.layers, pp * chunks), strict=True):
        with world(Grid(tp=tp)) as layout:
            module = LanguageModel(
                model, Context(layout, "paper", dtype=torch.bfloat16), first=first, last=last
            )
            assert stage.parameters == sum(p.numel() for p in module.parameters())
        assert stage.state["weights"] == 2 * stage.parameters
    assert len(made) == pp * chunks


def test_logical_parameters_are_those_of_the_whole_model_with_tied_ones_once():
    for model, expected in (
        (GPT, 4 * (12 * 64**2 + 13 * 64) + (264 + 32 + 2) * 64),
        (LLAMA, 4 * (2 * 64**2 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + (2 * 257 + 1) * 64),
    ):
        for grid in (Grid(), Grid(tp=2, pp=2)):
            made = stages(model, Execution("paper", precision="bf16"), grid, 1)
            assert sum(times * piece.logical for stage in made for piece, times in stage.parts) == expected


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_flops_and_saved_bytes_of_a_stage_are_those_of_its_trace(recompute):
    grid = Grid(tp=2, pp=2)
    first, last = stages(GPT, Execution("paper", precision="bf16", recompute=recompute), grid, 2)
    for stage, (low, high) in ((first, (0, 2)), (last, (2, 4))):
        whole = trace(GPT, Grid(tp=2), micro_batch=2, recompute=recompute, first=low, last=high)
        assert stage.flops == whole.flops("forward", "recompute", "backward")
        assert dict(stage.saved) == whole.saved
        assert dict(stage.state) == whole.state | {"step counters": stage.state["step counters"]}


def test_rotary_tables_are_kept_once_for_a_stage():
    (stage,) = stages(LLAMA, Execution("sdpa", precision="bf16"), Grid(), 1)
    whole = trace(LLAMA, Grid(), kernels="sdpa")
    assert dict(stage.saved) == whole.saved


def test_policy_of_the_first_layers_alone_makes_stages_of_two_kinds():
    made = stages(GPT, Execution("paper", precision="bf16", recompute="full:1"), Grid(pp=2), 1)
    assert [times for _, times in made[0].parts] == [1, 1, 1]
    assert made[0].kept < made[1].kept


def test_halves_of_a_backward_pass_hold_it_all_and_put_off_a_third():
    way = Way(2, 1, "paper", False, "none", "bf16")
    layer = pieces(GPT, "*-", way).layer
    now, later = layer.halves
    assert sorted(map(repr, now.operations + later.operations)) == sorted(
        map(repr, layer.backward.operations)
    )
    assert len(now.messages) == len(layer.backward.messages) and not later.messages
    s, h = GPT.sequence, GPT.hidden
    assert (
        later.flops == 2 * s * 12 * h * h // 2
    )  # weight gradients of all linear layers, on one of two tensor ranks
    assert layer.backward.flops == 2 * layer.forward.flops


@pytest.mark.parametrize(
    "sequence_parallel, scatter_gather, parts, joined",
    [(False, False, 1, False), (False, True, 4, True), (True, True, 4, False)],
)
def test_bytes_between_stages(sequence_parallel, scatter_gather, parts, joined):
    """2 bytes for each of b s h elements, whole or a part of each tensor rank."""
    way = Way(4, 3, "paper", sequence_parallel, "none", "bf16")
    whole = 2 * 3 * GPT.sequence * GPT.hidden
    crossing = border(GPT, way, scatter_gather)
    assert crossing.bytes == whole // parts
    assert crossing.joined == (whole if joined else 0)
    assert border(GPT, replace(way, micro_batch=1), scatter_gather).times(3) == crossing
