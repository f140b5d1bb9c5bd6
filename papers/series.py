"""All published times and rates that are predicted, paper by paper: each paper's predicted.py says which, as PREDICTED."""

from importlib import import_module

from common.claims.published import Facts, load
from common.predict.series import Predicted
from papers import FOLDER

ALL: tuple[Predicted, ...] = tuple(import_module(f"papers.{path.parent.name}.predicted").PREDICTED
                                   for path in sorted(FOLDER.glob("*/predicted.py")))


def facts_of(paper: Predicted) -> Facts:
    return load(FOLDER / paper.paper / "published.toml")
