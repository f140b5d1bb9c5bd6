"""The papers: each folder with a published.toml declares its claims as `PAPER` in its reproduce.py."""

from importlib import import_module
from pathlib import Path

from common.claims.schema import Paper

FOLDER = Path(__file__).parent


def find() -> tuple[Paper, ...]:
    """All papers, by name. ValueError for a folder whose reproduce.py is missing or declares no PAPER."""
    return tuple(_paper(path.parent) for path in sorted(FOLDER.glob("*/published.toml")))


def _paper(folder: Path) -> Paper:
    if not (folder / "reproduce.py").exists():
        raise ValueError(f"papers/{folder.name} has a published.toml and no reproduce.py with a PAPER")
    module = import_module(f"papers.{folder.name}.reproduce")
    paper = getattr(module, "PAPER", None)
    if not isinstance(paper, Paper) or paper.folder.resolve() != folder.resolve():
        raise ValueError(f"papers/{folder.name}/reproduce.py needs PAPER = Paper(Path(__file__).parent, ...)")
    return paper
