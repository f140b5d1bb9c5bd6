"""Files that a command may write, and those that it must leave alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.claims.target import check_folder, check_target

ROOT = Path(__file__).parents[3]


def refused(path: Path, words: str, **options) -> None:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ValueError, match=words) as error:
        check_target(path, "--draw", **options)
    assert "--draw" in str(error.value) and "\n" not in str(error.value)
    assert before == (path.read_bytes() if path.is_file() else None)


def test_a_new_file_is_taken(tmp_path):
    check_target(tmp_path / "a.PNG", "--draw", (".png", ".svg"))
    check_target(tmp_path / "new" / "er" / "a.toml", "--output", new_folders=True)
    assert not list(tmp_path.iterdir())


def test_what_exists_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("precious")
    refused(path, "exists: name another file, or give --force to replace it")
    check_target(path, "--draw", force=True)


def test_what_cannot_be_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    for force in (False, True):
        refused(tmp_path, "is a folder", force=force)
        refused(Path("/dev/null"), "no ordinary file", force=force)
        refused(tmp_path / "broken", "no ordinary file", force=force)
        refused(Path("/dev/null/a.png"), "/dev/null is a file and no folder", force=force, new_folders=True)
        refused(tmp_path / "file" / "b" / "a.png", "file is a file and no folder", force=force, new_folders=True)
        refused(tmp_path / "nowhere" / "a.png", "there is no folder", force=force)
        refused(tmp_path / "a.jpg", "end the name in .png, .svg or .pdf", force=force, endings=(".png", ".svg", ".pdf"))
        refused(tmp_path / "a.jpg", "end the name in .toml", force=force, endings=(".toml",))


def test_read_only_places_are_refused(tmp_path, monkeypatch):
    """As the system says it: root may write everywhere but on a read-only disk."""
    path = tmp_path / "a.png"
    path.write_text("")
    monkeypatch.setattr(os, "access", lambda where, mode: Path(where) != tmp_path)
    refused(path, "is read-only, name another", force=True)
    with pytest.raises(ValueError, match="--store: the folder .* is read-only"):
        check_folder(tmp_path / "results" / "training", "--store")
    monkeypatch.setattr(os, "access", lambda where, mode: Path(where) != path)
    refused(path, "is read-only: name another file", force=True)


COMMANDS = {
    "papers.predictions": ["--draw"],
    "papers": ["--html"],
    "papers.interleaved_pipelining.reproduce": ["--html"],
    "common.predict.third_party": ["--draw"],
    "common.pipeline.draw": ["1f1b", "--output"],
    "infra.plan": ["interleaved_pipelining:laptop", "--cluster", "selene", "--timeline"],
    "infra.compare": ["--cluster", "selene", "--draw"],
    "infra.measure": ["--output"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_leaves_a_file_alone(name, tmp_path):
    path = tmp_path / ("mine.toml" if name == "infra.measure" else "mine.png")
    path.write_text("precious")
    done = subprocess.run([sys.executable, "-m", name, *COMMANDS[name], str(path)], cwd=ROOT, capture_output=True,
                          text=True, timeout=100)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and path.read_text() == "precious" and done.stdout == ""
    assert len(lines) == 1 and lines[0].endswith("exists: name another file, or give --force to replace it"), done
