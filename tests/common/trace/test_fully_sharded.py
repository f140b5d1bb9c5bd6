"""Traces of fully sharded training: against real steps on gloo, against the normal trace, and against
arithmetic."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.parallel.fully_sharded import build
from common.trace import fully_sharded
from common.trace.fully_sharded import trace
from common.trace.trace import trace as normal_trace
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, train_step
from tests.common.trace.shapes import gpt
from tests.composition.parity import GPT, LLAMA, Case, records
from tests.distributed import ranks

SMALL = replace(GPT, pattern="[*-]*3", hidden=20)


def real(context, cases: list[tuple[LanguageModelConfig, Execution, int]]) -> list[list[tuple]]:
    """(message, ranks, bytes of the whole tensor) of all that gathers or scatters in one step of each
    case."""
    found = []
    whole = {"all_gather_single": ("all_gather", "output_tensor"),
             "reduce_scatter_single": ("reduce_scatter", "input")}
    torch_s = {name: getattr(dist, name) for name in whole}

    def noting(name, heard):
        kind, full = whole[name]

        def called(*args, group, **named):
            x = named[full] if full in named else args[0]
            heard.append((kind, dist.get_world_size(group), x.nbytes))
            return torch_s[name](*args, group=group, **named)
        return called

    for config, execution, micro_batches in cases:
        layout, heard = Layout(Grid(dp=context.size), context.rank), []
        training = build(config, execution, AdamWConfig(), layout, seed=1)
        batch = records(Case(model=config), 0, context.size, context.rank, 4 * context.size,
                        4 // micro_batches)
        try:
            for name in whole:
                setattr(dist, name, noting(name, heard))
            train_step(training, batch, 1e-3, 1.0)
        finally:
            for name, function in torch_s.items():
                setattr(dist, name, function)
        found.append(heard)
    return found


def test_messages_are_those_of_a_real_step():
    """In order, with their sizes; so often as there are micro-batches; the same with recomputation."""
    bf16 = Execution("paper", recompute="full", precision="bf16")
    cases = [(SMALL, bf16, 2), (SMALL, replace(bf16, recompute="none"), 1),
             (replace(LLAMA, pattern="[*-]*5"), Execution("sdpa", precision="fp32"), 2)]
    heard = ranks(2, real, cases)
    for rank in range(2):
        for (config, execution, micro_batches), sent in zip(cases, heard[rank], strict=True):
            traced = trace(config, Grid(dp=2), rank, 4 // micro_batches, execution)
            each = [(m.name, m.size, m.bytes) for m in traced.messages if m.name != "all_reduce"]
            assert each * micro_batches == sent
            counted = traced.totals(micro_batches)
            assert counted.pop(("all_reduce", "reduce")) == (1, 8)
            assert sum(number for number, _ in counted.values()) == len(sent)
            assert sum(size for _, size in counted.values()) == sum(size for *_, size in sent)


@pytest.mark.parametrize("kernels, recompute", [("paper", "full"), ("paper", "selective"),
                                                ("sdpa", "norm,activation")])
def test_products_are_those_of_the_normal_trace(kernels, recompute):
    """Matrix products and attention of each phase and module: same number of FLOPs."""
    config = replace(SMALL, attention_dropout=0.1 if recompute == "selective" else 0.0)
    execution = Execution(kernels, recompute=recompute, precision="bf16")
    ours = trace(config, Grid(dp=2), micro_batch=3, execution=execution)
    normal = normal_trace(config, Grid(dp=2), micro_batch=3, kernels=kernels, recompute=recompute)

    def products(operations):
        return sorted((o.phase, o.module, o.flops) for o in operations if o.flops)

    assert products(ours.operations) == products(normal.operations) != []


@pytest.mark.parametrize("execution", [Execution("paper", recompute="full", precision="bf16"),
                                       Execution("sdpa", precision="fp32")])
def test_layers_left_out_are_as_if_they_had_been_run(execution):
    config = replace(LLAMA, pattern="[*-]*6", dropout=0.1)
    short, whole = (trace(config, Grid(dp=6), 5, 2, execution, layers=n) for n in (4, 6))
    assert short.operations == whole.operations
    assert short.messages == whole.messages
    assert short == whole


def test_a_message_may_travel_beside_the_layers_around_its_use():
    """Forward: gathered beside the two layers before, once the first has its parameters. Backward: gathered,
    and its gradients reduced, beside one layer. As fully_shard's notes on streams have it."""
    traced = trace(replace(SMALL, pattern="[*-]*8"), Grid(dp=4))

    def layers(operations):
        return {".".join(o.module.split(".")[:2]) for o in operations if o.module.startswith("layers")}

    sent = {(m.name, m.phase, m.module): m for m in traced.messages}
    for k in range(3, 6):
        gathered = sent["all_gather", "forward", f"layers.{k}"]
        assert layers(traced.beside(gathered)) == {f"layers.{k - 1}", f"layers.{k - 2}"}
        before, after = traced.operations[gathered.start - 1], traced.operations[gathered.end]
        assert (before.name, before.module) == ("fsdp.split_with_sizes_copy", f"layers.{k - 2}")
        assert (after.name, after.module) == ("fsdp.split_with_sizes_copy", f"layers.{k}")
        again = sent["all_gather", "backward", f"layers.{k}"]
        assert layers(traced.beside(again)) == {f"layers.{k + 1}"}
        assert {o.phase for o in traced.beside(again)} == {"recompute", "backward"}
        reduced = sent["reduce_scatter", "backward", f"layers.{k}"]
        assert layers(traced.beside(reduced)) == {f"layers.{k - 1}"}
        for at in (reduced.start - 1, reduced.end):
            assert traced.operations[at].name == "fsdp.chunk_cat"
    assert not traced.beside(sent["all_gather", "forward", ""])
    assert traced.messages[-1].name == "all_reduce" and not traced.beside(traced.messages[-1])


def test_copies_move_what_they_hold():
    """Into place from a gathered buffer: read and written once. Gradients to a buffer: read in bf16, written
    in fp32. On a message's own stream: this rank's part."""
    traced = trace(SMALL, Grid(dp=5))
    messages = {(m.name, m.phase, m.module): m for m in traced.messages}
    gathered = messages["all_gather", "forward", "layers.1"]
    reduced = messages["reduce_scatter", "backward", "layers.1"]
    (out, _), (join,) = ([o for o in traced.operations if (o.name, o.module) == (name, "layers.1")]
                         for name in ("fsdp.split_with_sizes_copy", "fsdp.chunk_cat"))
    assert out.read == out.written == gathered.bytes
    elements = 12 * 20**2 + 13 * 20
    assert (join.read, join.written) == (2 * elements, reduced.bytes)
    assert 0 <= reduced.bytes - 4 * elements < 4 * 5 * 14  # 14 parameters, each padded to the ranks
    cast, copy = gathered.copies
    assert (cast.written, copy.read, copy.written) == (gathered.bytes // 5,) * 3
    assert sum(o.written for o in reduced.copies) <= reduced.bytes // 5


# Table 2 of arXiv:2104.04473: layers, hidden, heads, data ranks, micro-batch, 10^9 parameters as printed.
TABLE_2 = {"175B on 768": (96, 12288, 96, 768, 2, 174.6), "530B on 2240": (105, 20480, 128, 2240, 1, 529.6)}


@pytest.mark.parametrize("name", TABLE_2)
def test_published_size(name):
    """Forward and backward gather, and backward reduces, every layer once; what is outside layers is not let
    go between."""
    layers, hidden, heads, dp, micro_batch, billions = TABLE_2[name]
    traced = trace(gpt(layers, hidden, heads), Grid(dp=dp), micro_batch=micro_batch)
    assert round(traced.parameters / 1e9, 1) == billions
    layer, outside = 12 * hidden**2 + 13 * hidden, (51200 + 2048) * hidden + 2 * hidden
    assert traced.parameters == layers * layer + outside
    padding = 1 + 1e-5
    for (message, phase), number, elements, width in (
            (("all_gather", "forward"), layers + 1, layers * layer + outside, 2),
            (("all_gather", "backward"), layers, layers * layer, 2),
            (("reduce_scatter", "backward"), layers + 1, layers * layer + outside, 4)):
        count, size = traced.totals()[message, phase]
        assert count == number and 1 <= size / (width * elements) <= padding
    assert len(traced.messages) == 3 * layers + 2 + 1
    assert traced.state.pop("step counters") == 4 * (14 * layers + 4)  # one of Adam's per parameter
    assert len(traced.state) == 4
    for size in traced.state.values():
        assert 1 <= size * dp / (4 * traced.parameters) <= padding


def test_gradients_may_travel_in_a_half_type():
    wide, narrow = (trace(SMALL, Grid(dp=4), reduce=dtype).totals()
                    for dtype in (torch.float32, torch.bfloat16))
    key = "reduce_scatter", "backward"
    assert wide.pop(key)[1] == 2 * narrow.pop(key)[1]
    assert wide == narrow


@pytest.mark.parametrize("config, grid, settings, message", [
    (SMALL, Grid(tp=2, dp=2), {}, "tp=2"),
    (SMALL, Grid(), {}, "dp=1"),
    (replace(SMALL, pattern="[*-]*2 [-]"), Grid(dp=2), {}, "all must be alike"),
    (SMALL, Grid(dp=2), {"execution": Execution(recompute="full:1")}, "recompute='full:1'"),
    (SMALL, Grid(dp=2), {"micro_batch": 0}, "micro_batch=0"),
    (SMALL, Grid(dp=2), {"layers": 3}, "layers=3: needs .* 4 layers"),
    (SMALL, Grid(dp=2), {"rank": 2}, "rank 2 is outside"),
])
def test_what_cannot_be_traced_is_refused(config, grid, settings, message):
    with pytest.raises(ValueError, match=message):
        trace(config, grid, **settings)
    assert not dist.is_initialized()


def test_layers_that_differ_are_noticed(monkeypatch):
    """A message that only one of the two layers in the middle sends."""
    named = fully_sharded._named

    def doubled(kind, streams, name):
        comm = named(kind, streams, name)
        if name != "layers.2" or kind is not fully_sharded.DefaultReduceScatter:
            return comm

        class Twice(type(comm)):
            def __call__(self, **arguments):
                super().__call__(**arguments)
                return super().__call__(**arguments)
        return Twice()

    monkeypatch.setattr(fully_sharded, "_named", doubled)
    with pytest.raises(AssertionError, match="layers 1 and 2 differ in backward"):
        trace(replace(SMALL, pattern="[*-]*5"), Grid(dp=2))
