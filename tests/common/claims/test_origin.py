"""Commit and versions of a result, against git and the interpreter."""

import platform
import subprocess
from pathlib import Path

from common.claims.origin import commit, origin_of, versions


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_is_marked_when_code_differs(tmp_path: Path) -> None:
    assert commit(tmp_path) == "no commit"
    git(tmp_path, "init", "-q")
    for name in ("common/a.py", "papers/x/results/a.json", "papers/x/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "a")
    head = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert commit(tmp_path) == head
    (tmp_path / "papers/x/results/a.json").write_text("2")
    (tmp_path / "papers/x/README.md").write_text("2")
    (tmp_path / "notes.txt").write_text("2")
    assert commit(tmp_path) == head
    (tmp_path / "common/a.py").write_text("2")
    assert commit(tmp_path) == head + "-dirty"
    git(tmp_path, "checkout", "-q", "common/a.py")
    (tmp_path / "common/new.py").write_text("")
    assert commit(tmp_path) == head + "-dirty"


def test_an_origin_says_where_it_ran() -> None:
    origin = origin_of("python -m papers")
    assert (origin.command, origin.run) == ("python -m papers", "now")
    assert "cores" in origin.machine and platform.node() not in origin.machine
    assert versions()["python"] == platform.python_version()
    assert versions().keys() >= {"torch", "numpy"}
