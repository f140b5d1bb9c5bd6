"""A run's directory appears whole, is never overwritten, and says what ran where."""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.training import run_directory
from common.training.run_directory import RunDirectory, load_config

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Model:
    hidden: int
    rate: float


@dataclass(frozen=True)
class Config:
    model: Model
    name: str


CONFIG = Config(Model(8, 1e-3), "small")


def create(root, **changes):
    return RunDirectory.create(root, CONFIG, **({"recipe": "gpt", "seed": 5} | changes))


def test_everything_is_there_and_nothing_else(tmp_path):
    run = create(tmp_path / "runs", id="first", plan={"gib": 1.5})
    names = {path.name for path in run.path.iterdir()}
    assert names == {"config.json", "env.json", "plan.json", "metrics.jsonl", "tb", "checkpoints", "logs"}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]
    assert run.metrics.read_text() == "" and json.loads(run.plan.read_text()) == {"gib": 1.5}
    assert run.tensorboard.is_dir() and run.checkpoints.is_dir() and run.logs.is_dir()
    assert not create(tmp_path, id="second").plan.exists()


def test_the_config_is_replayed_from_the_file(tmp_path):
    run = create(tmp_path)
    assert RunDirectory.open(run.path).load_config(Config) == CONFIG
    assert load_config(run.config, Config) == CONFIG


def test_the_environment_is_what_other_tools_say(tmp_path):
    content = json.loads(create(tmp_path, command="make it").environment.read_text())
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert content["command"] == "make it" and content["seed"] == 5 and content["resumes"] == []
    assert isinstance(content["dirty"], bool)
    assert head.stdout.startswith(content["commit"]) and len(content["commit"]) >= 7
    python = subprocess.run([sys.executable, "--version"], capture_output=True, text=True).stdout.split()[1]
    assert content["versions"]["python"] == python
    memory = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    assert 0 < content["machine"]["memory"] <= memory
    assert 1 <= content["machine"]["cores"] <= os.cpu_count()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", content["date"])


def test_outside_a_repository_the_commit_is_null(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "ROOT", tmp_path)
    content = run_directory.environment(1)
    assert content["commit"] is None and content["dirty"] is None


def test_a_run_that_exists_is_not_touched(tmp_path):
    run = create(tmp_path, id="one")
    run.metrics.write_text("precious")
    with pytest.raises(ValueError, match="run .*one' exists already: choose another id, or resume it"):
        create(tmp_path, id="one")
    assert run.metrics.read_text() == "precious"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        create(tmp_path, id="empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "one"]


def test_of_many_at_once_one_wins(tmp_path):
    results: list[str] = []

    def attempt():
        try:
            results.append(create(tmp_path, id="same").path.name)
        except ValueError as error:
            results.append(str(error))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("same") == 1 and sum("exists already" in result for result in results) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


def test_nothing_is_left_of_a_creation_that_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", fail)
    with pytest.raises(OSError, match="No space left"):
        create(tmp_path, id="one")
    assert list(tmp_path.iterdir()) == []


def test_default_ids_sort_by_time_name_the_recipe_and_differ(tmp_path):
    names = [create(tmp_path, recipe="papers/x:gpt 22b").path.name for _ in range(5)]
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"\d{8}-\d{6}-papers-x-gpt-22b-[0-9a-f]{6}", name) for name in names)


@pytest.mark.parametrize("id", ["", "../up", "a/b", ".hidden", "two words", "new\nline"])
def test_ids_that_are_not_plain_names_are_refused(tmp_path, id):
    with pytest.raises(ValueError, match="is not a plain name"):
        create(tmp_path, id=id)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="runs folder .*file' cannot be written"):
        create(tmp_path / "file")


def test_a_resume_is_noted(tmp_path):
    run = create(tmp_path, command="first")
    run.add_resume(7, step=100, command="second")
    run.add_resume(7, step=200, command="third")
    content = json.loads(run.environment.read_text())
    assert content["command"] == "first"
    assert [(each["command"], each["step"], each["seed"]) for each in content["resumes"]] == [
        ("second", 100, 7), ("third", 200, 7)]
    assert {path.name for path in run.path.iterdir()} == {"config.json", "env.json", "metrics.jsonl", "tb",
                                                          "checkpoints", "logs"}


def test_opening_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a run's directory"):
        RunDirectory.open(tmp_path)
    with pytest.raises(ValueError, match="config .*nowhere.json': No such file"):
        load_config(tmp_path / "nowhere.json", Config)
    (tmp_path / "config.json").write_text('{"model": {"hidden": 8, "rate": 0.1}')
    with pytest.raises(ValueError, match="config .*config.json': "):
        load_config(tmp_path / "config.json", Config)
    (tmp_path / "config.json").write_text('{"model": {"hidden": 8}, "name": "x"}')
    with pytest.raises(ValueError, match=r"config .*config.json': model\.rate is missing"):
        RunDirectory.open(tmp_path).load_config(Config)
