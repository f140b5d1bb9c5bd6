"""Setting up .venv: what is announced, what pip is called with, and what an interruption leaves."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from infra.setup import (
    REQUIREMENTS,
    ROOT,
    Environment,
    SetupError,
    announcement,
    check_python,
    load_costs,
    main,
)

TEST = REQUIREMENTS["test"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose requirements need nothing from a network."""
    (tmp_path / "requirements.txt").write_text("# nothing\n-c requirements-cuda.txt\n")
    (tmp_path / "requirements-cuda.txt").write_text("# nothing\n")
    (tmp_path / "requirements-dev.txt").write_text("# nothing\n")
    return tmp_path


def test_an_interrupted_installation_is_done_anew_and_a_finished_one_is_kept(root: Path) -> None:
    (root / "requirements.txt").write_text("./no-such-folder\n")
    environment = Environment(root)
    with pytest.raises(SetupError, match="pip install .* failed with 1"):
        environment.install(TEST, 0)
    assert environment.unfinished.exists() and environment.missing(TEST) == list(TEST)
    left_over = environment.folder / "half-written"
    left_over.touch()

    (root / "requirements.txt").write_text("# nothing\n")
    environment.install(("requirements.txt",), 0)
    assert not left_over.exists() and not environment.unfinished.exists()
    assert environment.missing(("requirements.txt",)) == []
    assert environment.missing(TEST) == ["requirements-dev.txt"]
    environment.install(TEST, 0)
    assert environment.missing(TEST) == []

    assert Environment(root, "https://example.org/cpu").missing(TEST) == list(TEST)
    (root / "requirements-cuda.txt").write_text("triton==3.8.0\n")
    assert environment.missing(TEST) == list(TEST)


def test_too_little_space_is_said_before_anything_is_made(root: Path) -> None:
    with pytest.raises(SetupError, match="GB free and needs 1e\\+09 GB"):
        Environment(root).install(TEST, 1e9)
    assert not (root / ".venv").exists()


def test_torch_alone_comes_from_its_own_index(root: Path) -> None:
    shutil.copy(ROOT / "requirements.txt", root / "requirements.txt")
    first, second = Environment(root, "https://example.org/cpu").pip_commands(TEST)
    assert first[-4:-1] == ["--no-deps", "--index-url", "https://example.org/cpu"]
    assert re.fullmatch(r"torch==[\d.]+", first[-1])
    files = [str(root / name) for name in TEST]
    assert second[-4:] == ["-r", files[0], "-r", files[1]] and "--index-url" not in second
    assert len(Environment(root).pip_commands(TEST)) == 1


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 12, 0), (2, 7, 18), (4, 11, 0)])
def test_another_python_is_refused_with_what_to_do(version: tuple[int, ...]) -> None:
    with pytest.raises(SetupError, match=r"needs Python 3\.11 and found .*make test PYTHON="):
        check_python(version, "test")


@pytest.mark.parametrize("arguments", [[], ["deploy"], ["test", "bench"]])
def test_an_unknown_command_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SetupError, match="give one of reproduce, reproduce-full, test, bench, soak"):
        main(arguments)


def test_the_announcement_says_what_it_costs() -> None:
    costs = load_costs(ROOT / "infra" / "costs.toml")
    fresh = announcement("reproduce", costs, installed=False)
    assert (
        f"{costs['install']['download_gb']:g} GB" in fresh
        and f"{costs['install']['minutes']:g} minutes" in fresh
    )
    again = announcement("reproduce", costs, installed=True)
    assert "nothing is downloaded" in again and "GB" not in again
    assert set(costs["commands"]) == set(REQUIREMENTS)
    assert all(costs["install"].values()) and all(run["minutes"] > 0 for run in costs["commands"].values())


def test_requirements_are_exact_and_agree() -> None:
    pins: dict[str, str] = {}
    for name in ("requirements.txt", "requirements-cuda.txt", "requirements-dev.txt", "requirements-gpu.txt"):
        for line in (ROOT / name).read_text().splitlines():
            line = line.split("#")[0].strip()
            if line and not line.startswith("-c "):
                match = re.fullmatch(r"([A-Za-z0-9._-]+)(\[[a-z0-9,-]+\])?==([A-Za-z0-9.]+)", line)
                assert match, f"{name}: {line!r} is not an exact version"
                assert match.group(1) not in pins, f"{name}: {match.group(1)} is pinned twice"
                pins[match.group(1)] = match.group(3)
    assert "apex" not in pins and {"torch", "pytest", "megatron-core"} <= pins.keys()


def test_make_names_every_command() -> None:
    make = [shutil.which("make"), "-n"]
    for command in REQUIREMENTS:
        done = subprocess.run([*make, command], cwd=ROOT, capture_output=True, text=True, check=True)
        assert f"-m infra.setup {command}\n" in done.stdout and ".venv/bin/python -m " in done.stdout


def test_make_says_which_python_is_needed(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.version_info = (3, 13, 0); "
        'import runpy; sys.argv = ["setup", "test"]; runpy.run_module("infra.setup", run_name="__main__")\'\n'
    )
    other.chmod(0o755)
    done = subprocess.run(
        ["make", "test", f"PYTHON={other}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode != 0 and "needs Python 3.11 and found 3.13" in done.stderr
    assert "pytest" not in done.stdout


def test_ci_runs_make_test_from_anywhere() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and "set -euo pipefail" in script.read_text()
    assert script.read_text().splitlines()[-1] == "make test"


def test_pytest_is_strict() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["timeout"] and "--strict-markers" in options["addopts"]
