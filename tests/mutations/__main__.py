"""Applies named one-line breaks of the core, one by one, to a copy of the tree, and tells which the tests catch.

    python -m tests.mutations [NAME ...] [--list]

Each must turn a test red: the tests named with it are run until the first failure. Exit status 1 if one survives.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("common", "data", "evals", "infra", "papers", "tests", "pyproject.toml")


def copy_tree(target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def apply(mutation: Mutation, root: Path) -> None:
    """Replaces the one place that the mutation names; ValueError when it is not there exactly once."""
    path = root / mutation.file
    text = path.read_text()
    if (times := text.count(mutation.old)) != 1:
        raise ValueError(f"mutation {mutation.name}: {mutation.old!r} stands {times} times in {mutation.file}; "
                         "bring the mutation up to date with the code")
    path.write_text(text.replace(mutation.old, mutation.new))


def run_tests(root: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900)


def caught(mutation: Mutation) -> tuple[bool, str]:
    """Whether a test turned red, and the last line that pytest printed."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder)
        copy_tree(root)
        apply(mutation, root)
        done = run_tests(root, mutation.tests)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mutation {mutation.name}: pytest ended with {done.returncode}: {lines[-1]}")
    failed = [line for line in lines if line.startswith("FAILED")]
    return done.returncode == 1, (failed or lines)[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutations to apply; default all")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    asked = parser.parse_args()
    known = {m.name: m for m in MUTATIONS}
    unknown = [n for n in asked.names if n not in known]
    if unknown:
        parser.error(f"unknown mutation {unknown[0]!r}: see --list")
    chosen = [known[n] for n in asked.names] or list(MUTATIONS)
    if asked.list:
        for m in chosen:
            print(f"{m.name:34} {m.file}: {m.what}")
        return 0
    survivors = []
    for number, m in enumerate(chosen, start=1):
        start = time.monotonic()
        red, line = caught(m)
        print(f"{number:2}/{len(chosen)}  {'caught  ' if red else 'SURVIVED'}  {m.name:34} {time.monotonic() - start:5.1f} s  "
              f"{line[:100]}", flush=True)
        survivors += [] if red else [m.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught" +
          (f"; survivors: {', '.join(survivors)}" if survivors else ""))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
