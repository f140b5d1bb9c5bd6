"""Ctrl-C while a command still imports its libraries, and at its work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_IMPORT = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"


def stopped(folder: Path, library: str, *words: str) -> subprocess.CompletedProcess:
    """A command, with a library in place of the installed one that is interrupted while it is imported."""
    (folder / f"{library}.py").write_text(AT_IMPORT)
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(folder)},
                          capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("library, command", [
    ("tyro", "infra.plan"), ("torch", "infra.measure"), ("tyro", "papers"), ("tyro", "papers.predictions"),
    ("tyro", "papers.interleaved_pipelining.reproduce"), ("tyro", "papers.sequence_parallelism.train"),
    ("numpy", "common.pipeline.draw"), ("torch", "common.predict.third_party"), ("numpy", "data.prepare"),
    ("torch", "tests.benchmarks"),
])
def test_a_command_interrupted_while_it_imports_is_one_line(tmp_path, library, command):
    done = stopped(tmp_path, library, "-m", command)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"python -m {command}: interrupted\n")


def test_other_errors_and_other_programs_are_as_ever(tmp_path):
    done = stopped(tmp_path, "numpy", "-c", "import common, numpy")
    assert done.returncode not in (0, 130) and "KeyboardInterrupt" in done.stderr
    (tmp_path / "tyro.py").write_text("1 / 0")
    done = subprocess.run([sys.executable, "-m", "infra.plan"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "Traceback" in done.stderr
