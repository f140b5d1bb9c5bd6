"""The executor on toy stages, whose results one process computes by plain autograd."""

import gc
import time
import weakref

import pytest
import torch
from torch import nn

from common.grid import Grid
from common.layout import SERIAL, Layout
from common.models.language_model import CarryShape, LossTerm
from common.models.record import Record
from common.pipeline.execute import Pipeline
from common.pipeline.schedules import forward_only, make
from tests.distributed import ranks

WIDTH = 6


class Toy(nn.Module):
    """Two tensors travel beside each other, one of them of integers; the last stage weighs one by the other."""

    def __init__(self, stage: int, stages: int, replicated: bool = False):
        super().__init__()
        self.first, self.last, self.replicated = stage == 0, stage == stages - 1, replicated
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(stage)))
        self.outputs: list[weakref.ref] = []

    def carry(self, record: Record) -> dict[str, CarryShape]:
        b = record.tokens.shape[0]
        return {"x": CarryShape((b, WIDTH), torch.float32, self.replicated), "kept": CarryShape((b,), torch.int64, False)}

    def forward(self, record: Record, carry):
        x = record.tokens[:, :WIDTH].float() if self.first else carry["x"]
        kept = record.tokens[:, 0] if self.first else carry["kept"]
        y = torch.tanh(x @ self.weight) + x
        self.outputs.append(weakref.ref(y))
        if self.last:
            return {}, {"toy": LossTerm((y.sum(1) * kept).sum(), kept.sum())}
        return {"x": y, "kept": kept}, {}


def micro_batches(count: int) -> list[Record]:
    """Their sizes differ."""
    made = []
    for i in range(count):
        tokens = torch.randint(1, 9, (1 + i % 3, WIDTH), generator=torch.Generator().manual_seed(i))
        made.append(Record(tokens, tokens, tokens > 0, tokens, samples=tuple(range(len(tokens)))))
    return made


def serial(stages: int, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Gradients of all stages, and the sum of the losses."""
    modules, total = [Toy(i, stages) for i in range(stages)], torch.zeros(())
    for record in micro_batches(count):
        carry, terms = {}, {}
        for module in modules:
            carry, terms = module(record, carry)
        total = total + terms["toy"].sum
    total.backward()
    return [m.weight.grad for m in modules], total.detach()


def pipelined(context, name: str, p: int, v: int, m: int):
    layout = Layout(Grid(pp=p), context.rank)
    stages = [Toy(c * p + context.rank, p * v) for c in range(v)]
    totals = Pipeline(stages, layout).run(make(name, p, v, m), micro_batches(m), lambda terms: terms["toy"].sum)
    return [s.weight.grad for s in stages], totals.get("toy")


@pytest.mark.parametrize("name, p, v, m", [("gpipe", 2, 1, 3), ("1f1b", 3, 1, 5), ("1f1b", 4, 1, 2), ("zb-h1", 3, 1, 4),
                                           ("interleaved", 2, 3, 4), ("interleaved", 3, 2, 6), ("interleaved", 4, 2, 4)])
def test_gradients_are_those_of_plain_autograd(name, p, v, m):
    expected, total = serial(p * v, m)
    found = ranks(p, pipelined, name, p, v, m)
    for rank, (gradients, _) in enumerate(found):
        for chunk, gradient in enumerate(gradients):
            torch.testing.assert_close(gradient, expected[chunk * p + rank], rtol=1e-5, atol=1e-5)
    assert found[-1][1][0].item() == pytest.approx(total.item(), rel=1e-6) and found[0][1] is None


def forward_alone(context, p: int, v: int, m: int):
    stages = [Toy(c * p + context.rank, p * v) for c in range(v)]
    with torch.no_grad():
        totals = Pipeline(stages, Layout(Grid(pp=p), context.rank)).run(forward_only(p, m, v), micro_batches(m))
    return totals.get("toy"), [s.weight.grad for s in stages]


@pytest.mark.parametrize("p, v, m", [(2, 1, 5), (2, 2, 3), (3, 2, 7)])
def test_forward_only_sums_any_number_of_micro_batches(p, v, m):
    found = ranks(p, forward_alone, p, v, m)
    assert found[-1][0][0].item() == pytest.approx(serial(p * v, m)[1].item(), rel=1e-6)
    assert all(g is None for _, gradients in found for g in gradients)


def outputs_alive(context) -> list[int]:
    """After each action of the first rank of GPipe: how many of its outputs still take memory."""
    p, m = 2, 6
    toy = Toy(context.rank, p)
    counts = []

    def forward(record, carry):
        gc.collect()
        counts.append(sum(ref() is not None for ref in toy.outputs))
        return toy(record, carry)

    forward.carry = toy.carry
    Pipeline([forward], Layout(Grid(pp=p), context.rank)).run(
        make("gpipe", p, 1, m), micro_batches(m), lambda terms: terms["toy"].sum)
    return counts


def test_outputs_are_let_go_once_sent():
    """Six micro-batches are in flight, yet only what is still under way is held: one message per channel."""
    assert max(ranks(2, outputs_alive)[0]) <= 1


def wire_bytes(context, scatter_gather: bool) -> int:
    grid = Grid(tp=2, pp=2)
    layout = Layout(grid, context.rank)
    toy = Toy(layout.index("pp"), 2, replicated=True)
    pipeline = Pipeline([toy], layout, scatter_gather=scatter_gather)
    pipeline.run(make("1f1b", 2, 1, 4), micro_batches(4), lambda terms: terms["toy"].sum)
    return pipeline.bytes_sent, toy.weight.grad


def test_scatter_gather_cuts_the_bytes_on_the_wire_by_the_tensor_size():
    rows = sum(len(r.tokens) for r in micro_batches(4))
    whole, sliced = (ranks(4, wire_bytes, on) for on in (False, True))
    kept = rows * 8  # the integers are not replicated, and have no gradient
    assert [b for b, _ in whole] == [rows * WIDTH * 4 + kept] * 2 + [rows * WIDTH * 4] * 2
    assert [b for b, _ in sliced] == [rows * WIDTH * 2 + kept] * 2 + [rows * WIDTH * 2] * 2
    for (_, a), (_, b) in zip(whole, sliced, strict=True):
        assert torch.equal(a, b)


def test_a_schedule_of_another_size_is_refused():
    with pytest.raises(ValueError, match="is for pp=2, 1 chunks and 4 micro-batches; here are pp=1, 1 and 3"):
        Pipeline([Toy(0, 1)], SERIAL).run(make("1f1b", 2, 1, 4), micro_batches(3))


def under_way(context, overlap: bool) -> list[int]:
    """Messages on their way from this rank when each of its passes begins; its peer takes its time over every pass."""
    p, m = 2, 4
    toy, counts = Toy(context.rank, p), []

    def forward(record, carry):
        boxes = (pipeline._activations_out, pipeline._gradients_out)
        counts.append(sum(len(box._under_way) for box in boxes if box))
        time.sleep(0.02 * context.rank)
        return toy(record, carry)

    forward.carry = toy.carry
    pipeline = Pipeline([forward], Layout(Grid(pp=p), context.rank), overlap=overlap)
    pipeline.run(make("gpipe", p, 1, m), micro_batches(m), lambda terms: terms["toy"].sum)
    return counts


@pytest.mark.parametrize("overlap", [False, True])
def test_messages_have_left_before_the_next_pass_unless_they_overlap(overlap):
    (first, _) = ranks(2, under_way, overlap)
    assert (max(first) > 0) == overlap
