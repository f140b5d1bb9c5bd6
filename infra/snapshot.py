"""A copy of this project's code as it stands, edits and all: what a job runs while the work on the code goes on."""

import shutil
import subprocess
from pathlib import Path

from common.claims.origin import CODE, ROOT

FOLDERS = (*CODE, "tests")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def snapshot(target: Path, root: Path = ROOT) -> None:
    """Copies the code under `root` to the new folder `target`.

    Prepared data stays shared (a link to runs/), and where `root` is a git work tree the copy is one too, with the
    same commit, so that a run there notes from which commit it comes and whether the code differs. Raises OSError.
    """
    target.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(root / name, target / name, ignore=_LEFT_OUT, symlinks=True)
    runs = (root / "runs").resolve()
    runs.mkdir(exist_ok=True)
    (target / "runs").symlink_to(runs, target_is_directory=True)
    if (root / ".git").exists() and shutil.which("git"):
        _same_commit(root, target)


def _same_commit(root: Path, target: Path) -> None:
    """A bare copy of no objects at all: they are read from the repository's own."""
    clone = target / ".clone"
    git = ["git", "-c", "advice.detachedHead=false"]
    _run([*git, "clone", "--quiet", "--shared", "--no-checkout", "--", str(root), str(clone)])
    (clone / ".git").rename(target / ".git")
    clone.rmdir()
    _run([*git, "-C", str(target), "reset", "--quiet", "--mixed"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "reset" not in command:  # which has 1 for its exit status where files differ
        raise OSError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
