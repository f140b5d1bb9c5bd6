"""Real training state through a chain of layouts: not a bit changes, and every layout trains on alike."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from common.checkpoint import store
from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.training.loop import restore
from common.training.step import Training, build, train_step
from tests.composition.parity import ADAMW, Case, records
from tests.distributed import ranks

# Two key-value groups, so that four tensor ranks hold copies; a vocabulary that neither two nor four divide.
MODEL = LanguageModelConfig(pattern="[*-]*8", hidden=32, heads=4, kv_heads=2, vocab=101, sequence=24)
CHAIN = {
    "cube": Case(Grid(tp=2, pp=2, dp=2), model=MODEL, sharded=True, batch=8),
    "wide": Case(Grid(tp=4, dp=2), model=MODEL, batch=8, sequence_parallel=True),
    "long": Case(Grid(pp=4), model=MODEL, schedule="interleaved", chunks=2, batch=8),
    "long and shared": Case(Grid(pp=2, dp=4), model=MODEL, sharded=True, batch=8),
    "one": Case(model=MODEL, batch=8),
}


def whole(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint, put together from its files by the names of their pieces alone."""
    shapes = json.loads((folder / "manifest.json").read_text())["shapes"]
    found, count = {}, {}
    for file in folder.glob("*.safetensors"):
        for name, piece in load_file(file).items():
            tensor, _, offset = name.partition("@")
            start = [int(i) for i in offset.split(",")] if offset else [0] * piece.ndim
            box = tuple(slice(o, o + n) for o, n in zip(start, piece.shape, strict=True))
            shape = shapes[tensor.partition(".")[2]]
            found.setdefault(tensor, np.full(shape, np.nan, piece.dtype))[box] = piece
            count.setdefault(tensor, np.zeros(shape, int))[box] += 1
    assert all((n == 1).all() for n in count.values())
    return found


def step(training: Training, case: Case, number: int):
    layout = training.layout
    batch = records(case, number, layout.size("dp"), layout.index("dp"), case.batch)
    return train_step(training, batch, 1e-2, ADAMW[case.precision].clip)


def link(context, case: Case, source: str, target: str) -> tuple[float, float]:
    """Trains two steps, or loads what was trained; saves that; then trains one more and saves again.

    Returns loss and gradient norm of the last step.
    """
    layout = Layout(case.grid, context.rank if context else 0)
    training = build(MODEL, case.execution, ADAMW[case.precision], layout, seed=len(source))
    facts = {name: f for name, _, f in training.gradients.parameters}
    if source:
        assert restore(training, Path(source), facts) == training.optimizer.steps == 2
    else:
        step(training, case, 0), step(training, case, 1)
    for number in (2, 3):
        if number == 3:
            result = step(training, case, 2)
        about = {"step": number, "updates": training.optimizer.steps, "loss_scale": None}
        saved = store.save(Path(target), training.optimizer.state(), facts, layout, about)
        check_held(training, whole(saved))
    return result.loss, result.grad_norm


def check_held(training: Training, saved: dict[str, np.ndarray]) -> None:
    """What the rank trains with is what was saved, in the model's parameters too."""
    layout = training.layout

    def stored(kind, name, facts):
        return facts.slice(torch.from_numpy(saved[f"{kind}.{name}"]), layout)

    facts = {name: f for name, _, f in training.gradients.parameters}
    for kind, held in training.optimizer.state().items():
        for name, x in held.items():
            part = stored(kind, name, facts[name]).reshape(-1)
            assert torch.equal(x.data, part[x.start:x.start + x.data.numel()]), (kind, name)
    for name, p, f in training.gradients.parameters:
        assert torch.equal(p.detach(), stored("parameters", name, f)), name


@pytest.fixture(scope="module")
def links(tmp_path_factory) -> dict[str, tuple[Path, float, float]]:
    """Folder, loss and norm of each layout; each loads what the one before it saved."""
    root, source, found = tmp_path_factory.mktemp("reshard"), "", {}
    for name, case in CHAIN.items():
        arguments = case, source, str(root / name)
        said = ranks(case.grid.world, link, *arguments) if case.grid.world > 1 else [link(None, *arguments)]
        assert len(set(said)) == 1
        found[name] = root / name, *said[0]
        source = str(root / name / "step-00000002")
    return found


@pytest.mark.parametrize("name", [name for name in CHAIN if name != "cube"])
def test_parameters_and_moments_are_the_same_bits_under_every_layout(links, name):
    first, here = (whole(links[n][0] / "step-00000002") for n in ("cube", name))
    assert {n.partition(".")[0] for n in first} == {"parameters", "exp_avg", "exp_avg_sq"}
    assert first.keys() == here.keys()
    assert all(np.array_equal(x, here[n]) for n, x in first.items())


@pytest.mark.parametrize("name", [name for name in CHAIN if name != "cube"])
def test_every_layout_trains_on_alike(links, name):
    (folder, loss, norm), (other, its_loss, its_norm) = links["cube"], links[name]
    assert its_loss == pytest.approx(loss, rel=1e-5) and its_norm == pytest.approx(norm, rel=1e-5)
    first, here = (whole(f / "step-00000003") for f in (folder, other))
    for kind in ("parameters", "exp_avg", "exp_avg_sq"):
        norms = [np.linalg.norm(x) for n, x in first.items() if n.startswith(kind + ".")]
        floor = 1e-3 * np.linalg.norm(norms) / len(norms) ** 0.5
        for n, x in first.items():
            if n.startswith(kind + "."):
                assert np.linalg.norm(here[n] - x) <= 1e-5 * max(np.linalg.norm(x), floor), n
