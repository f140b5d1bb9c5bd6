"""Where a result comes from: command, commit, machine, date and library versions."""

import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from common.claims.schema import Origin

ROOT = Path(__file__).parents[2]
CODE = ("common", "papers", "data", "evals", "infra")
LIBRARIES = ("torch", "numpy", "transformers", "megatron-core")


def origin_of(command: str) -> Origin:
    """The origin of what this process produces now, run as `command`."""
    return Origin(
        command=command,
        commit=commit(ROOT),
        machine=machine(),
        date=datetime.now(UTC).date().isoformat(),
        versions=versions(),
        run="now",
    )


def commit(root: Path) -> str:
    """The commit of the working tree, marked "-dirty" if code differs from it or is not in it.

    Stored results and READMEs do not count: they are what a run writes.
    """
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "no commit"
    changed = _git(
        root, "status", "--porcelain", "--", *CODE, ":(exclude)papers/*/results/*", ":(exclude)*.md"
    )
    return head + ("-dirty" if changed else "")


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command; None where the folder is no repository or has no commit."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def machine() -> str:
    """Processor, cores, memory and GPUs, without the name of the host."""
    from common.device import cpu_model, physical_cores, total_memory  # imports torch; the listing does not

    parts = [cpu_model(), f"{physical_cores()} cores", f"{total_memory() / 2**30:.0f} GiB"]
    return ", ".join(parts + _gpus())


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on, of those installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> list[str]:
    """Models of NVIDIA GPUs, from the driver's own files so that no library has to be imported."""
    found = [
        match.group(1).strip()
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        if (match := re.search(r"Model:\s*(.+)", file.read_text()))
    ]
    return [f"{found.count(model)} × {model}" for model in sorted(set(found))]
