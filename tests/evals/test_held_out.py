"""Evaluation takes model and data from the checkpoint, whatever the recipe on the command line says of them."""

import math
import shutil
from dataclasses import replace

import pytest

from common.checkpoint import store
from common.device import choose
from common.grid import Grid
from common.layout import SERIAL
from common.training import loop
from data.prepare import prepare
from evals import held_out
from evals.held_out import HeldOut, scores
from infra import launch
from tests.common.training.small_run import recipe, start, write_text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose model differs from small_run's in shape and in fields that no shape shows."""
    root = tmp_path_factory.mktemp("held_out")
    base = recipe(write_text(root / "files"), evaluate_sequences=0)
    base = replace(base, model=replace(base.model, pattern="[*-]*3", ffn=64, activation="squared_relu", norm_eps=0.5))
    prepared = prepare(base.data)
    directory = start(base, root, "run")
    summary = loop.train(base, prepared, directory, SERIAL, choose("cpu"))
    yield directory, base, summary
    shutil.rmtree(prepared.directory)


def other(base):
    """What another recipe of the same command may be: another model, other data, two ranks."""
    return replace(recipe("nowhere"), grid=Grid(dp=2), training=base.training)


def test_the_runs_own_model_and_data_are_scored(run):
    directory, base, summary = run
    found = scores(other(base), HeldOut(directory.path, order=0))["model"]
    assert found.loss == pytest.approx(summary.valid_loss, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(summary.valid_loss), rel=1e-5)


@pytest.fixture
def no_rank_starts(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(launch, "run_local", refuse)


def test_another_tokenizer_is_refused(run, no_rank_starts, monkeypatch):
    directory, base, _ = run
    real = prepare(base.data)
    changed = replace(real, report={**real.report, "tokenizer": {**real.report["tokenizer"], "sha256": "f" * 64}})
    monkeypatch.setattr(held_out, "prepare", lambda *_, **__: changed)
    with pytest.raises(ValueError, match="another tokenizer"):
        scores(base, HeldOut(directory.path))


def test_a_launch_of_another_size_is_refused(run, no_rank_starts):
    directory, base, _ = run
    with pytest.raises(ValueError, match="launch has 2 ranks, the grid needs .* 1"):
        scores(base, HeldOut(directory.path, launch="local:2"))


def test_a_layout_that_the_runs_model_cannot_take_is_refused(run, no_rank_starts):
    directory, base, _ = run
    with pytest.raises(ValueError, match="3 layers do not fill 4 stages"):
        scores(replace(base, grid=Grid(pp=4)), HeldOut(directory.path))


def test_a_checkpoint_without_a_recipe_is_scored_with_the_commands(run, monkeypatch):
    directory, base, _ = run
    folder = held_out.checkpoint_folder(directory.path)
    content = store.read_manifest(folder)
    del content["recipe"]
    monkeypatch.setattr(store, "read_manifest", lambda _: content)
    assert held_out.trained(base, folder) is base
