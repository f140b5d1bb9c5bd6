"""fully_shard on the same model, held to one process of the normal path."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from common.grid import Grid
from common.layout import Layout
from common.parallel.fully_sharded import build
from common.parameters import Slice
from common.training import step as normal
from common.training.step import Execution, forward_backward, mean_loss, train_step
from tests.composition.parity import (
    ADAMW,
    GPT,
    LLAMA,
    Case,
    assembled,
    assert_half_precision,
    assert_parity,
    records,
)
from tests.distributed import ranks

TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}


def outcome(context, case: Case) -> dict[str, np.ndarray]:
    """What tests/composition/parity.py asks of a case, of a fully sharded training."""
    layout = Layout(case.grid, context.rank)
    model = replace(case.model, dropout=case.dropout, attention_dropout=case.dropout)
    adamw = ADAMW[case.precision]
    training = build(model, case.execution, adamw, layout, seed=7)
    gradients = training.gradients

    def batch(step):
        return records(case, step, layout.size("dp"), layout.index("dp"), case.batch, case.micro or 2)

    def whole(what, runs):
        return {f"{what}.{name}": assembled(runs.get(name), facts, layout, sharded=True).double().numpy()
                for name, _, facts in gradients.parameters}

    def reduced():
        return {piece.name: Slice(piece.gradient, piece.start) for piece in gradients.pieces()}

    loss, _ = forward_backward(training, batch(0))
    gradients.reduce()
    found = {"loss": loss.numpy(), **whole("gradient", reduced())}
    found["norm"] = gradients.clip(adamw.clip).numpy()
    found |= whole("clipped", reduced())
    training.optimizer.step(1e-2)
    for step in (1, 2):
        result = train_step(training, batch(step), 1e-2, adamw.clip)
    found["loss after"] = np.array(result.loss)
    found |= whole("parameter", training.optimizer.state()["parameters"])
    found["held-out loss"] = np.array(mean_loss(training.pipeline, batch(3))[0])
    return found


# Nothing of TEN but its positions divides by 3 ranks; of 9 elements, as in NINE, the last of 4 has none.
# Ranks have unequal numbers of counted tokens; some micro-batches have none.
TEN = replace(GPT, hidden=10, heads=2, tied=False)
NINE = replace(GPT, hidden=9, heads=3, tied=False)
CASES = {
    2: [Case(Grid(dp=2), dropout=0.1, recompute="full", batch=8),
        Case(Grid(dp=2), dropout=0.1, model=replace(LLAMA, tied=True), precision="fp64", documents=True,
             batch=8),
        Case(Grid(dp=2), dropout=0.1, recompute="full", precision="bf16", batch=8)],
    3: [Case(Grid(dp=3), recompute="norm,activation", model=TEN, batch=12, micro=1)],
    4: [Case(Grid(dp=4), dropout=0.1, precision="fp64", documents=True, batch=8, micro=1),
        Case(Grid(dp=4), dropout=0.1, recompute="full", model=LLAMA, kernels="sdpa", batch=8, micro=1),
        Case(Grid(dp=4), recompute="selective", model=NINE, batch=8),
        Case(Grid(dp=4), dropout=0.1, model=LLAMA, precision="bf16", batch=8, micro=1)],
}


def outcomes(context, cases: list[Case]) -> list[dict[str, np.ndarray]]:
    return [outcome(context, case) for case in cases]


@pytest.mark.parametrize("world", CASES)
def test_every_number_is_that_of_one_process(world):
    """Loss, every gradient, norm, clipped gradients and three updates, on every rank."""
    for parts in ranks(world, outcomes, CASES[world]):
        for case, found in zip(CASES[world], parts, strict=True):
            if case.precision == "bf16":
                assert_half_precision(case, found)
            else:
                assert_parity(case, found, TOLERANCE[case.precision])


def kept(context, case: Case) -> dict:
    """What this rank keeps between steps, and what it starts from beside the normal path's parameters."""
    layout, adamw = Layout(case.grid, context.rank), ADAMW[case.precision]
    training = build(case.model, case.execution, adamw, layout, seed=3)
    train_step(training, records(case, 0, layout.size("dp"), layout.index("dp"), case.batch), 0.0, adamw.clip)
    serial = normal.build(case.model, case.execution, adamw, Layout(), seed=3).model
    whole = {name: p.detach().float().flatten() for name, p in serial.named_parameters()}
    return {"kinds": {kind: {n: (s.start, s.data.numel()) for n, s in runs.items()}
                      for kind, runs in training.optimizer.state().items()},
            "gradients": sum(p.gradient.numel() for p in training.gradients.pieces()),
            "modules": sum(p.to_local().numel() for p in training.model.parameters()),
            "same": all(torch.equal(s.data, whole[n][s.start:s.start + s.data.numel()])
                        for n, s in training.optimizer.state()["parameters"].items()),
            "whole": {n: x.numel() for n, x in whole.items()}}


def test_each_rank_keeps_its_part_of_everything_and_no_more():
    """Runs of the ranks join without gap or overlap; after a step of size nothing they hold the first values,
    in bf16."""
    found = ranks(4, kept, Case(Grid(dp=4), precision="bf16", batch=8, model=NINE))
    assert all(f["same"] for f in found)
    for kind in ("parameters", "exp_avg", "exp_avg_sq"):
        for name, size in found[0]["whole"].items():
            runs = [f["kinds"][kind][name] for f in found if name in f["kinds"][kind]]
            assert sum(length for _, length in runs) == size
            assert [start for start, _ in runs] == [sum(n for _, n in runs[:i]) for i in range(len(runs))]
    total = sum(found[0]["whole"].values())
    assert not any(name.endswith("norm.weight") for name in found[3]["kinds"]["parameters"])
    for f in found:
        assert f["gradients"] == f["modules"] <= total / 4 + len(f["whole"])


@pytest.mark.parametrize("grid, execution, message", [
    (Grid(tp=2, dp=2), Execution(), "tp=2: .* use dp=4"),
    (Grid(cp=2, dp=2), Execution(), "cp=2"),
    (Grid(pp=2, dp=2), Execution(), "pp=2"),
    (Grid(ep=2, dp=2), Execution(), "ep=2"),
    (Grid(), Execution(), "dp=1: .* at least 2 data ranks"),
    (Grid(dp=2), Execution(schedule="gpipe"), "schedule='gpipe': .* needs schedule='1f1b'"),
    (Grid(dp=2), Execution(sharded_optimizer=True), "sharded_optimizer=True"),
    (Grid(dp=2), Execution(overlap="none"), "overlap='none'"),
    (Grid(dp=2), Execution(compile=True), "compile=True"),
    (Grid(dp=2), Execution(precision="fp16"), "precision='fp16': .* use bf16, fp32 or fp64"),
    (Grid(dp=2), Execution(recompute="some"), "recompute='some'"),
])
def test_what_it_does_not_cover_is_refused_before_any_process_group(grid, execution, message):
    with pytest.raises(ValueError, match=message):
        build(GPT, execution, ADAMW["fp32"], Layout(grid, 0), seed=1)
