"""The four models of table 3 and the paper's formulas at their sizes: the published side of a comparison."""

from collections.abc import Callable
from pathlib import Path

from common.claims.formula import evaluate
from common.claims.published import Facts, Value, load

FACTS = load(Path(__file__).with_name("published.toml"))
SIZES = ("22b", "175b", "530b", "1t")
NAMES = {"22b": "22B", "175b": "175B", "530b": "530B", "1t": "1T"}
MODELS = ", ".join(NAMES.values())
MIB, GIB = 2**20, 2**30

Formula = Callable[[Facts], Value]


def variables(facts: Facts, size: str, **changes: float) -> dict[str, float]:
    """The variables of table 1 for one model, and those of later sections.

    m: interleaving stages (section 4.2.3); delta: 1 without pipeline stages (section 4.3); B: the whole batch
    (appendix A).
    """
    config = facts[f"table3-{size}"].config
    return {
        "a": config["heads"], "b": config["micro_batch"], "h": config["hidden"], "L": config["layers"],
        "p": config["pp"], "s": config["seq"], "t": config["tp"], "v": config["vocab"],
        "m": config["interleave"], "delta": int(config["pp"] == 1), "B": config["global_batch"], **changes,
    }  # fmt: skip


def formula(name: str, size: str, unit: float = 1, **changes: float) -> Formula:
    """The formula of a published claim at one model's size, in `unit`."""
    return lambda facts: facts[name].evaluate(**variables(facts, size, **changes)) / unit


def formulas(name: str, unit: float = 1, **changes: float) -> Formula:
    """The same for all four models."""
    return lambda facts: tuple(formula(name, size, unit, **changes)(facts) for size in SIZES)


def parts(name: str, key: str, unit: float = 1, **changes: float) -> Formula:
    """A formula that stands among a claim's values, for all four models."""
    return lambda facts: tuple(
        evaluate(facts[name].values[key], variables(facts, size, **changes)) / unit for size in SIZES)
