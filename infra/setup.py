"""Set up .venv for a command of the Makefile: `python -m infra.setup COMMAND`. Standard library only.

Says first what it will cost. Requirements that are installed already, as a stamp in .venv tells, are not
looked at again, so that later runs need no network; an installation that was interrupted is done anew.
TORCH_INDEX_URL, if set, is the package index that torch alone is taken from, such as your CPU wheel index.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (3, 11)
REQUIREMENTS = {
    "reproduce": ("requirements.txt",),
    "reproduce-full": ("requirements.txt",),
    "test": ("requirements.txt", "requirements-dev.txt"),
    "bench": ("requirements.txt", "requirements-dev.txt"),
    "soak": ("requirements.txt", "requirements-dev.txt"),
}


class SetupError(Exception):
    """One line that says what is wrong and what to do."""


def check_python(version: tuple[int, ...], command: str) -> None:
    """The pinned packages are tested together on one version of Python."""
    if tuple(version[:2]) != NEEDED:
        needed, found = ".".join(map(str, NEEDED)), ".".join(map(str, version[:2]))
        raise SetupError(
            f"this needs Python {needed} and found {found}; install Python {needed}, then run "
            f"`make {command} PYTHON=/path/to/python{needed}`"
        )


def load_costs(path: Path) -> dict:
    """The costs as written in costs.toml."""
    import tomllib  # only from Python 3.11 on, which check_python has seen by now

    return tomllib.loads(path.read_text(encoding="utf-8"))


def duration(minutes: float) -> str:
    """Minutes as text, hours where there are two or more."""
    return f"{minutes / 60:.1f} hours" if minutes >= 120 else f"{minutes:g} minutes"


def announcement(command: str, costs: dict, installed: bool) -> str:
    """What the command is about to cost."""
    run = costs["commands"][command]
    first = (
        "Everything is installed; nothing is downloaded." if installed else _installation(costs["install"])
    )
    return f"make {command}: {run['what']}.\n{first}\nThen at most {duration(run['minutes'])} on 2 cores."


def _installation(install: dict) -> str:
    return (
        f"The installation into .venv downloads about {install['download_gb']:g} GB, takes about "
        f"{install['disk_gb']:g} GB on disk and, beside the download, about {duration(install['minutes'])}."
    )


def costs_markdown(costs: dict) -> str:
    """The costs as a table for README."""
    install = costs["install"]
    lines = ["| command | what | after installation, at most |", "| --- | --- | ---: |"]
    for name, run in costs["commands"].items():
        lines.append(f"| `make {name}` | {run['what']} | {duration(run['minutes'])} |")
    first = "The first command also sets up. " + _installation(install)
    when = f"Measured on {install['measured']}, on 2 cores without a GPU."
    return "\n".join([*lines, "", f"{first} {when}"])


def fingerprint(root: Path, name: str, index: str) -> str:
    """Changes when what `name` installs changes."""
    text = f"{sys.version_info[:3]} {index}\n" + (root / name).read_text()
    text += (root / "requirements-cuda.txt").read_text()
    return hashlib.sha256(text.encode()).hexdigest()


class Environment:
    """The virtual environment of the repository and what its stamp says is in it."""

    def __init__(self, root: Path, index: str = "") -> None:
        self.root, self.index = root, index
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.stamp = self.folder / "installed"
        self.unfinished = self.folder / "installing"

    def missing(self, names: tuple[str, ...]) -> list[str]:
        """The requirement files of `names` that are not installed as they now stand."""
        wanted = [f"{name} {fingerprint(self.root, name, self.index)}" for name in names]
        done = self.stamp.read_text().splitlines() if self.stamp.exists() else []
        if self.unfinished.exists() or not self.python.exists():
            done = []
        return [line.split()[0] for line in wanted if line not in done]

    def install(self, names: tuple[str, ...], room_gb: float) -> None:
        """Install all files of `names`; a folder that an interrupted installation left is made anew."""
        if self.unfinished.exists():
            shutil.rmtree(self.folder)
        if not self.python.exists():
            free = shutil.disk_usage(self.root).free / 1e9
            if free < room_gb:
                raise SetupError(
                    f"{self.root} has {free:.1f} GB free and needs {room_gb:g} GB; free some space"
                )
            self._run([sys.executable, "-m", "venv", str(self.folder)], "install Python's venv module")
        self.unfinished.touch()
        pip = [str(self.python), "-m", "pip"]
        for command in self.pip_commands(names):
            self._run([*pip, *command], "see its message above; run the same command again to retry")
        self._run([*pip, "check"], "the pinned packages do not fit together; please report this")
        lines = [f"{name} {fingerprint(self.root, name, self.index)}" for name in names]
        self.stamp.write_text("\n".join(lines) + "\n")
        self.unfinished.unlink()

    def pip_commands(self, names: tuple[str, ...]) -> list[list[str]]:
        """Arguments of each call of pip: torch alone from its own index, if one is set, then the rest."""
        options = ["--disable-pip-version-check", "--progress-bar", "on" if sys.stdout.isatty() else "off"]
        commands = []
        if self.index:
            pins = [line.split("#")[0].strip() for line in (self.root / names[0]).read_text().splitlines()]
            torch = next(pin for pin in pins if pin.startswith("torch=="))
            commands.append(["install", *options, "--no-deps", "--index-url", self.index, torch])
        files = [part for name in names for part in ("-r", str(self.root / name))]
        return [*commands, ["install", *options, *files]]

    def _run(self, command: list[str], hint: str) -> None:
        done = subprocess.run(command, cwd=self.root, check=False)
        if done.returncode:
            raise SetupError(f"`{' '.join(command)}` failed with {done.returncode}: {hint}")


def main(arguments: list[str]) -> None:
    """Announce, then install what is missing, one set-up at a time."""
    if len(arguments) != 1 or arguments[0] not in REQUIREMENTS:
        raise SetupError(f"give one of {', '.join(REQUIREMENTS)}, not {' '.join(arguments) or 'nothing'}")
    command = arguments[0]
    check_python(sys.version_info[:3], command)
    names = REQUIREMENTS[command]
    costs = load_costs(ROOT / "infra" / "costs.toml")
    environment = Environment(ROOT, os.environ.get("TORCH_INDEX_URL", ""))
    with (ROOT / "requirements.txt").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = environment.missing(names)
        print(announcement(command, costs, installed=not missing), flush=True)
        if missing:
            environment.install(names, costs["install"]["disk_gb"] + costs["install"]["download_gb"])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.exit(f"error: {error}")
