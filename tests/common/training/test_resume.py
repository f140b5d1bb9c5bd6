"""Runs that cannot go on are refused by name before any rank starts, and nothing of them is changed."""

import json
import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.checkpoint import store
from common.device import choose
from common.layout import SERIAL
from common.training import loop
from common.training.command import main
from common.training.recipe import Recipe
from common.training.run_directory import RunDirectory
from data.prepare import prepare
from infra import launch
from papers.sequence_parallelism import recipes
from tests.common.training.small_run import recipe, start, write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of six steps with the checkpoints of steps 2, 4 and 6."""
    root = tmp_path_factory.mktemp("resume")
    base = recipe(write_text(root / "files"))
    prepared = prepare(base.data)
    run = start(base, root, "run")
    loop.train(base, prepared, run, SERIAL, choose("cpu"))
    yield run
    shutil.rmtree(prepared.directory)


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> RunDirectory:
    """A copy of it, stopped after step 4, which no rank may touch."""
    def refuse(*_, **__):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(launch, "run_local", refuse)
    shutil.copytree(trained.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    return RunDirectory.open(tmp_path / "run")


def said(run: RunDirectory, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(recipes, ["--resume", str(run.path)])
    line = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and "\n" not in line
    return line


def change(file: Path, *path: str, value) -> None:
    content = inner = json.loads(file.read_text())
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    file.write_text(json.dumps(content))


def every_file_of(run: RunDirectory, damage) -> None:
    for folder in store.checkpoints(run.checkpoints):
        damage(next(folder.glob("*.safetensors")))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [lambda f: f.unlink(), lambda f: os.truncate(f, 100), flip,
                                    lambda f: (f.parent / "manifest.json").unlink()])
def test_no_whole_checkpoint(run, capsys, damage):
    every_file_of(run, damage)
    assert "has no whole checkpoint to resume from" in said(run, capsys)


@pytest.mark.parametrize(("path", "value", "line"), [
    (("model", "activation"), "squared_relu", "model.activation differs from that of step-00000004, which was trained "
                                              "with 'gelu_tanh', not 'squared_relu'"),
    (("model", "ffn"), 64, "model.ffn differs"),
    (("model", "norm_eps"), 0.5, "model.norm_eps differs"),
    (("training", "seed"), 7, "training.seed differs"),
    (("training", "batch"), 16, "training.batch differs"),
    (("model", "sequence"), 100_000, "sequence=100000 is longer than the data"),
])
def test_a_config_that_is_no_longer_the_checkpoints(run, capsys, path, value, line):
    change(run.config, *path, value=value)
    assert line in said(run, capsys)


def test_another_tokenizer(run, capsys, monkeypatch):
    from common.training import command

    real = prepare(run.load_config(Recipe).data)
    other = replace(real, report={**real.report, "tokenizer": {**real.report["tokenizer"], "sha256": "f" * 64}})
    monkeypatch.setattr(command, "prepare", lambda *_, **__: other)
    monkeypatch.setattr(command, "Samples", lambda *_: None)
    monkeypatch.setattr(type(other), "tokens", lambda *_: None)
    assert "was trained with another tokenizer" in said(run, capsys)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"resumes": 1, "command": "x"}', '{"command": "x"}'])
def test_a_damaged_env_json(run, capsys, content):
    run.environment.write_text(content)
    assert "env.json' is damaged" in said(run, capsys)


@pytest.mark.parametrize("line", ["nonsense", "[1]", "{}", '{"step": "x"}', "3"])
def test_a_damaged_metrics_jsonl(run, capsys, line):
    run.metrics.write_text(line + "\n" + run.metrics.read_text())
    assert "line 1 is damaged" in said(run, capsys)


def test_a_run_of_another_papers_command(run, capsys):
    change(run.environment, "command", value="python -m papers.interleaved_pipelining.train laptop")
    assert "use python -m papers.interleaved_pipelining.train --resume" in said(run, capsys)


def hold(path: str, held, release) -> None:
    with RunDirectory.open(Path(path)).exclusive():
        held.set()
        release.wait()


def test_one_process_at_a_time_and_a_dead_one_holds_nothing(run, capsys):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(str(run.path), held, release))
    other.start()
    assert held.wait(60)
    assert "is in use: another process trains in it" in said(run, capsys)
    other.kill()
    other.join()
    with run.exclusive():
        pass


def test_a_finished_run_says_so_and_is_left_as_it_is(trained, monkeypatch, capsys):
    monkeypatch.setattr(launch, "run_local", None)
    before = {p: p.read_bytes() for p in trained.path.rglob("*") if p.is_file()}
    main(recipes, ["--resume", str(trained.path)])
    assert "is complete: 6 of 6 steps are done" in capsys.readouterr().out
    assert before == {p: p.read_bytes() for p in trained.path.rglob("*") if p.is_file()}
