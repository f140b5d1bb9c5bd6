"""The same model really run: what its trace says is what happens.

One process and two gloo ranks run a small model for one step. FLOPs are counted by torch's FlopCounterMode,
messages by wrapping torch.distributed's own functions, saved bytes by the meter, memory by live storages.
"""

from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from common.grid import Grid
from common.layers.context import Context
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.parameters import initialise
from common.recompute.meter import measuring
from common.trace.live import Live
from common.trace.trace import trace
from tests.distributed import ranks

GPT = LanguageModelConfig(pattern="[*-]*3", hidden=32, heads=4, vocab=101, sequence=64, dropout=0.1,
                          attention_dropout=0.1)
LLAMA = replace(GPT, heads=4, kv_heads=2, ffn=48, norm="rmsnorm", activation="swiglu", positions="rotary",
                tied=False, bias=False, dropout=0.0, attention_dropout=0.0)
BATCH = 2
# torch.distributed function -> our name, and which argument is the full tensor.
FUNCTIONS = {"all_reduce": ("all_reduce", 0), "all_gather_single": ("all_gather", 0),
             "all_gather_into_tensor": ("all_gather", 0), "reduce_scatter_single": ("reduce_scatter", 1),
             "reduce_scatter_tensor": ("reduce_scatter", 1)}


@contextmanager
def listening(heard: list):
    """Every collective called through torch.distributed is noted as (operation, ranks, bytes)."""
    original = {name: getattr(dist, name) for name in FUNCTIONS}

    def wrap(name):
        kind, full = FUNCTIONS[name]

        def called(*args, group=None, **kwargs):
            heard.append((kind, dist.get_world_size(group), args[full].nbytes))
            return original[name](*args, group=group, **kwargs)
        return called

    for name in FUNCTIONS:
        setattr(dist, name, wrap(name))
    try:
        yield
    finally:
        for name, function in original.items():
            setattr(dist, name, function)


def addmm_flops(self_shape, a_shape, b_shape, **kwargs) -> int:
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


def flop_counter() -> FlopCounterMode:
    """torch's counter knows addmm, not its in-place form."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_flops})


def real_step(context, config, tp, sequence_parallel, kernels, recompute, dtype, count: bool = True) -> dict:
    """One step of one rank; FLOPs (they need hooks that keep tensors alive, so `count` turns them off) and
    messages by phase, saved bytes by name, peaks of live bytes by phase.
    """
    layout = Layout(Grid(tp=tp), context.rank if context else 0)
    model = LanguageModel(config, Context(layout, kernels, sequence_parallel, dtype), recompute)
    initialise(model, layout, 0)
    gradients = Gradients([model], layout, torch.promote_types(dtype, torch.float32))
    numbers = torch.arange(BATCH * config.sequence).view(BATCH, -1)
    found = {"flops": {}, "messages": {}, "peaks": {}}

    def phase(name, function):
        heard = []
        with listening(heard), flop_counter() if count else nullcontext() as counter:
            result = function()
        found["flops"][name] = counter.get_total_flops() if count else None
        found["messages"][name] = heard
        found["peaks"][name] = live.mark()
        return result

    with Live() as live:
        record = Record(numbers % config.vocab, (numbers + 1) % config.vocab, numbers >= 0,
                        numbers % config.sequence, samples=(0, 1))
        with measuring(model) as meter:
            terms = phase("forward", lambda: model(record, {})[1])
        loss = terms["language"].sum / terms["language"].count
        phase("backward", loss.backward)
        phase("reduce", gradients.reduce)
    return {**found, "saved": dict(meter.saved), "parameters": sum(p.numel() for p in model.parameters())}


def compare(real: dict, config, grid, rank, sequence_parallel, kernels, recompute, dtype) -> None:
    traced = trace(config, grid, rank, BATCH, kernels, sequence_parallel, recompute, dtype)
    assert traced.parameters == real["parameters"]
    assert traced.saved == real["saved"]
    assert traced.flops("forward") == real["flops"]["forward"]
    assert traced.flops("recompute", "backward") == real["flops"]["backward"]
    for phase, heard in real["messages"].items():
        phases = ("recompute", "backward") if phase == "backward" else (phase,)
        assert [(m.name, m.size, m.bytes) for m in traced.sent(*phases)] == heard


@pytest.mark.parametrize("dtype, recompute", [
    *((torch.float32, r) for r in ("none", "selective", "full", "full:1", "norm,activation", "attention.core,norm")),
    *((torch.bfloat16, r) for r in ("none", "full")),
])
def test_one_process(dtype, recompute):
    real = real_step(None, GPT, 1, False, "paper", recompute, dtype)
    assert real["flops"]["backward"] > 0 and not any(real["messages"].values())
    compare(real, GPT, Grid(), 0, False, "paper", recompute, dtype)


@pytest.mark.parametrize("kernels, recompute, sequence_parallel, model", [
    ("paper", "none", False, GPT), ("paper", "none", True, GPT), ("paper", "selective", True, GPT),
    ("paper", "full", True, GPT), ("paper", "norm,activation", True, LLAMA), ("paper", "full:2", False, LLAMA),
])
def test_two_ranks(kernels, recompute, sequence_parallel, model):
    real = ranks(2, real_step, model, 2, sequence_parallel, kernels, recompute, torch.float32)
    assert real[0]["messages"]["forward"] and real[0]["messages"]["backward"]
    for rank in range(2):
        compare(real[rank], model, Grid(tp=2), rank, sequence_parallel, kernels, recompute, torch.float32)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_peaks_of_live_bytes(recompute):
    """A trace's peaks are those of the real step, but for a scalar or two that drive them."""
    real = real_step(None, GPT, 1, False, "paper", recompute, torch.float32, count=False)
    traced = trace(GPT, Grid(), 0, BATCH, "paper", False, recompute, torch.float32)
    for phase in ("forward", "backward", "reduce"):
        assert traced.peaks[phase] == pytest.approx(real["peaks"][phase], abs=32)


def test_every_operation_has_a_phase_and_nearly_every_one_a_module():
    traced = trace(GPT, Grid(tp=2), sequence_parallel=True, recompute="full")
    phases = Counter(o.phase for o in traced.operations)
    assert set(phases) == {"forward", "recompute", "backward", "reduce", "optimizer"}
    inside = [o for o in traced.operations if o.phase in ("forward", "recompute", "backward")]
    nowhere = [o for o in inside if not o.module]
    assert {o.flops for o in nowhere} == {0} and len(nowhere) <= 4  # the mean of the loss, and its gradient
