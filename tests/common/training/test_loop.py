"""The training loop: exact resume, damaged checkpoints, signals, steps that are not finite."""

import errno
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from common.checkpoint import storage, store
from common.checkpoint.store import CheckpointError
from common.device import choose
from common.grid import Grid
from common.layout import SERIAL
from common.training import loop, saves
from common.training.command import rank
from common.training.events import Unstable
from common.training.metrics import read_metrics
from common.training.recipe import Recipe
from common.training.resume import checked_start
from common.training.run_directory import RunDirectory
from data.prepare import prepare
from tests.common.training.small_run import recipe, start, with_grid, write_text
from tests.distributed import ranks


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = write_text(tmp_path_factory.mktemp("text") / "files")
    prepared = prepare(recipe(folder).data)
    yield folder
    shutil.rmtree(prepared.directory)


def serial(base: Recipe, directory: RunDirectory, resume: bool = False) -> loop.Summary:
    prepared = prepare(base.data)
    checkpoint = checked_start(directory, base, prepared) if resume else None
    return loop.train(base, prepared, directory, SERIAL, choose("cpu"), checkpoint)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint of one process, by safetensors alone."""
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as f:
            found |= {name: f.get_tensor(name) for name in f.keys()}
    return found


def steps(directory: RunDirectory) -> list[tuple]:
    return [(row["step"], row["loss"], row["lr"], row["grad_norm"]) for row in read_metrics(directory.metrics)
            if "lr" in row]


def cut_back(directory: RunDirectory, step: int) -> None:
    """Leaves the run as a kill after the checkpoint of `step` would."""
    for folder in store.checkpoints(directory.checkpoints):
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)


def test_resume_repeats_no_bit_less(text, tmp_path):
    base = recipe(text)
    whole, broken = start(base, tmp_path, "whole"), start(base, tmp_path, "broken")
    first, _ = serial(base, whole), serial(base, broken)
    cut_back(broken, 2)
    again = serial(base, broken, resume=True)
    assert again.steps == first.steps == 6
    assert again.valid_loss == first.valid_loss and steps(broken) == steps(whole)
    a, b = tensors(whole.checkpoints / "step-00000006"), tensors(broken.checkpoints / "step-00000006")
    assert a.keys() == b.keys() and len([n for n in a if n.startswith("exp_avg_sq.")]) > 10
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_resume_under_another_layout_goes_on_alike(text, tmp_path):
    base = recipe(text)
    whole, moved = start(base, tmp_path, "whole"), start(base, tmp_path, "moved")
    serial(base, whole), serial(base, moved)
    cut_back(moved, 4)
    wide = with_grid(base, Grid(tp=2, dp=2), sequence_parallel=True)
    ranks(4, rank, wide, str(moved.path), checked_start(moved, wide, prepare(wide.data)))
    for one, other in zip(steps(whole), steps(moved), strict=True):
        assert other == pytest.approx(one, rel=1e-5)


def test_tensor_parallel_run_logs_the_same_losses(text, tmp_path):
    base = recipe(text)
    one, two = start(base, tmp_path, "one"), start(base, tmp_path, "two")
    serial(base, one)
    ranks(2, rank, with_grid(base, Grid(tp=2), sequence_parallel=True), str(two.path), None)
    for a, b in zip(steps(one), steps(two), strict=True):
        assert b == pytest.approx(a, rel=1e-5)


def test_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(text, tmp_path, capsys):
    base = recipe(text)
    directory = start(base, tmp_path, "run")
    serial(base, directory)
    newest = directory.checkpoints / "step-00000006"
    file = next(newest.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=file.name):
        store.verify(newest)
    serial(base, directory, resume=True)
    assert file.name in capsys.readouterr().out
    store.verify(newest)  # written again from step 4 on


def test_torn_checkpoints_are_refused(text, tmp_path):
    base = recipe(text)
    directory = start(base, tmp_path, "run")
    serial(base, directory)
    folder = directory.checkpoints / "step-00000002"
    file = next(folder.glob("*.safetensors"))
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=file.name):
        store.verify(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        store.verify(folder)
    (folder / "manifest.json").write_text('{"format": 1')
    with pytest.raises(CheckpointError, match="damaged"):
        store.verify(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no manifest"):
        store.verify(folder)


def test_checkpoint_of_another_model_names_the_tensor(text, tmp_path):
    base = recipe(text)
    directory = start(base, tmp_path, "run")
    serial(base, directory)
    other = replace(base, model=replace(base.model, ffn=64))
    with pytest.raises(CheckpointError, match=r"mlp.*\[128, 32\].*\[64, 32\]"):
        loop.train(other, prepare(base.data), directory, SERIAL, choose("cpu"), directory.checkpoints / "step-00000006")


def test_signal_stops_after_the_step_with_a_checkpoint(text, tmp_path, monkeypatch):
    """And without an evaluation, which a run that was never stopped would not have made there."""
    base = recipe(text, save_every=0)
    directory = start(base, tmp_path, "run")
    real = loop.train_step

    def step_with_signal(*arguments):
        os.kill(os.getpid(), signal.SIGUSR1)
        return real(*arguments)

    monkeypatch.setattr(loop, "train_step", step_with_signal)
    summary = serial(base, directory)
    assert summary.stopped == "SIGUSR1" and summary.steps == 1 and math.isnan(summary.valid_loss)
    assert [row.get("evaluation") for row in read_metrics(directory.metrics)] == [None]
    assert [p.name for p in store.checkpoints(directory.checkpoints)] == ["step-00000001"]


def test_steps_that_are_not_finite_change_nothing_and_end_the_run(text, tmp_path):
    base = recipe(text, patience=2, save_every=0)
    directory = start(base, tmp_path, "run")
    broken = loop.Loop(base, prepare(base.data), directory, SERIAL, choose("cpu"))
    before = {n: p.clone() for n, p in broken.training.model.named_parameters()}
    with torch.no_grad():
        broken.training.model.output.norm.weight[0] = math.nan
    with pytest.raises(Unstable, match="2 steps in a row"):
        broken.run()
    after = dict(broken.training.model.named_parameters())
    assert all(torch.equal(after[n], p) for n, p in before.items() if n != "output.norm.weight")
    rows = read_metrics(directory.metrics)
    assert [(row.get("skipped"), row.get("event")) for row in rows] == 2 * [(True, None), (None, "skipped")]
    trained_on = rows[3]  # step 2: positions 8 to 15 of the samples in this seed's order
    assert trained_on["positions"] == [8, 15]
    assert trained_on["samples"] == [broken.order.sample(at)[1] for at in range(8, 16)]
    assert broken.training.optimizer.steps == 0


def test_training_outlives_a_checkpoint_that_cannot_be_written(text, tmp_path, monkeypatch):
    """Steps 2 and 4 find no room; step 6, the last, is tried until there is some. Nothing of training changes."""
    base = recipe(text)
    whole, marred = start(base, tmp_path, "whole"), start(base, tmp_path, "marred")
    serial(base, whole)
    tries = []

    def full(tensors, path, metadata):
        tries.append(path.parent.name)
        if len(tries) < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_file(tensors, path, metadata)

    monkeypatch.setattr(storage, "save_file", full)
    monkeypatch.setattr(saves, "WAIT", 0.01)
    summary = serial(base, marred)
    assert tries == [f"step-0000000{n}.partial" for n in (2, 4, 6, 6, 6)]
    assert [(row["step"], "No space left" in row["error"]) for row in read_metrics(marred.metrics)
            if row.get("event") == "save failed"] == [(2, True), (4, True), (6, True), (6, True)]
    assert steps(marred) == steps(whole) and summary.checkpoint.endswith("step-00000006")
    ours, theirs = (tensors(d.checkpoints / "step-00000006") for d in (marred, whole))
    assert all(torch.equal(ours[name], x) for name, x in theirs.items())


def test_a_last_checkpoint_that_never_finds_room_is_an_error(text, tmp_path, monkeypatch):
    base = recipe(text, save_every=4)
    directory = start(base, tmp_path, "run")
    real = storage.save_file

    def full(tensors, path, metadata):
        if "step-00000006" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(tensors, path, metadata)

    monkeypatch.setattr(storage, "save_file", full)
    monkeypatch.setattr(saves, "WAIT", 0.0)
    monkeypatch.setattr(saves, "RETRIES", 2)
    with pytest.raises(CheckpointError, match="step-00000006.*No space left"):
        serial(base, directory)
    assert [p.name for p in store.checkpoints(directory.checkpoints)] == ["step-00000004"]
