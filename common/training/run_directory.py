"""The directory of one run: what was asked for, on what it ran, and what came of it.

    config.json    the config, from which the run can be replayed
    env.json       command, commit, seed, machine, library versions, date; again for each resume
    plan.json      the plan made before the run, where there was one
    metrics.jsonl  one line per step
    tb/  checkpoints/  logs/
"""

import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from common.checkpoint.files import flush, write_text
from common.claims.origin import ROOT, commit, machine, versions
from common.device import physical_cores, total_memory
from common.training.config_json import from_json, to_json

T = TypeVar("T")
FOLDERS = ("tb", "checkpoints", "logs")


@dataclass(frozen=True)
class RunDirectory:
    """One existing run; the properties are the places in it."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "env.json"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tb"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @classmethod
    def create(cls, root: Path, config: Any, *, recipe: str, seed: int, plan: Any = None,
               id: str | None = None, command: str | None = None) -> Self:
        """A new directory `root`/`id` that appears complete or not at all.

        config: a frozen dataclass. plan: anything to_json takes. id: default is the time, the recipe and
        six random digits. command: default is this process's own. Raises ValueError for an id that is not
        a plain name or exists already, and for a root that cannot be written; nothing is overwritten.
        """
        id = new_id(recipe) if id is None else id
        if not re.fullmatch(r"[\w+=,-][\w.+=,-]*", id):
            raise ValueError(f"run id {id!r} is not a plain name: use letters, digits and . _ - + = ,")
        run = cls(Path(root) / id)
        files = {run.config: to_json(config), run.environment: environment(seed, command) | {"resumes": []}}
        if plan is not None:
            files[run.plan] = to_json(plan)
        try:
            run.path.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{id}.", dir=run.path.parent))
        except OSError as error:
            raise ValueError(f"runs folder {str(root)!r} cannot be written: {error.strerror}") from error
        try:
            partial.chmod(0o755)
            for file, content in files.items():
                write_text(partial / file.name, _dump(content))
            (partial / run.metrics.name).touch()
            for folder in FOLDERS:
                (partial / folder).mkdir()
            _rename_to_new(partial, run.path)
            flush(run.path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """The run at `path`. Raises ValueError where there is none."""
        run = cls(Path(path))
        if not run.config.is_file():
            raise ValueError(f"{str(path)!r} is not a run's directory: it has no config.json")
        return run

    def load_config(self, kind: type[T]) -> T:
        """This run's config as an instance of `kind`."""
        return load_config(self.config, kind)

    def load_environment(self) -> dict[str, Any]:
        """What env.json holds. ValueError, naming the file, where it is damaged."""
        try:
            content = json.loads(self.environment.read_text(encoding="utf-8"))
            if isinstance(content["resumes"], list) and isinstance(content["command"], str):
                return content
            reason = "resumes must be a list and command a string"
        except OSError as error:
            reason = error.strerror
        except (ValueError, KeyError, TypeError) as error:
            reason = repr(error)
        raise ValueError(f"{str(self.environment)!r} is damaged ({reason}): start a new run with --config "
                         f"{self.config}")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While it lasts no other process trains in this directory; the lock goes with the process that holds it.

        ValueError where another one does. It lies on config.json, the one file that a run never writes again.
        """
        with self.config.open("rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"run {str(self.path)!r} is in use: another process trains in it; wait for its end, "
                                 "or stop it") from None
            yield

    def add_resume(self, seed: int, step: int, command: str | None = None) -> None:
        """Note in env.json that the run goes on from `step` in this process."""
        content = self.load_environment()
        content["resumes"].append({"step": step} | environment(seed, command))
        write_text(self.environment, _dump(content))


def load_config(path: Path, kind: type[T]) -> T:
    """The config of class `kind` in a file config.json, for a replay.

    Raises ValueError, naming the file and the field, for anything but what to_json wrote for this class.
    """
    try:
        return from_json(kind, json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"config {str(path)!r}: {reason}") from error


def new_id(recipe: str) -> str:
    """Time (UTC), recipe and six random hexadecimal digits: sorts by time, and does not collide."""
    name = re.sub(r"[^\w.-]+", "-", recipe)
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(3)}"


def environment(seed: int, command: str | None = None) -> dict[str, Any]:
    """On what this process runs: command, commit, seed, machine, library versions and date (UTC).

    commit is null outside a repository. memory is in bytes. Neither host nor user is named.
    """
    head = commit(ROOT)
    known = head != "no commit"
    return {
        "command": command or shlex.join(sys.orig_argv),
        "commit": head.removesuffix("-dirty") if known else None,
        "dirty": head.endswith("-dirty") if known else None,
        "seed": seed,
        "machine": {"name": machine(), "cores": physical_cores(), "memory": total_memory()},
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _dump(content: Any) -> str:
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _rename_to_new(source: Path, target: Path) -> None:
    """Rename a folder that is not empty; a target that exists is left as it is."""
    taken = ValueError(f"run {str(target)!r} exists already: choose another id, or resume it")
    if target.exists() or target.is_symlink():
        raise taken
    try:
        os.rename(source, target)
    except OSError as error:
        if not target.exists():
            raise
        raise taken from error  # another process made it in between
