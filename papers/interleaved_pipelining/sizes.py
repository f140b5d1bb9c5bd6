"""The models of the paper and its formulas at their sizes: the published side of a comparison.

Names are those of the paper: p, t, d sizes of pipeline, tensor and data parallelism; n GPUs; B global batch; b
micro-batch; m micro-batches per pipeline; v chunks per device; l layers; h hidden; a heads; s sequence; V vocabulary.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from common.claims.formula import evaluate
from common.claims.published import Facts, Value, load

FACTS = load(Path(__file__).with_name("published.toml"))
TABLE_1 = {
    "table1-1-7b": "1.7B", "table1-3-6b": "3.6B", "table1-7-5b": "7.5B", "table1-18b": "18.4B",
    "table1-39b": "39.1B", "table1-76b": "76.1B", "table1-145b": "145.6B", "table1-310b": "310.1B",
    "table1-530b": "529.6B", "table1-1008b": "1008B",
}  # fmt: skip
"""Rows of table 1 by the id of their claim, and the name of each model."""
PIPELINED = tuple(row for row in TABLE_1 if FACTS[row].config["pp"] > 1)
INTERLEAVED = tuple(row for row in TABLE_1 if FACTS[row].config["interleave"] > 1)
TABLE_2 = tuple(entry.id for entry in FACTS if entry.id.startswith("table2-"))

PETA, TERA, GIGA = 1e15, 1e12, 1e9
DAY = 86_400
PEAK = FACTS["setup-peak"].values["peak_tflops_per_gpu"]

Formula = Callable[[Facts], Value]


def names(rows: Sequence[str]) -> str:
    """These rows, in words."""
    known = {tuple(TABLE_1): "every row of Table 1", PIPELINED: "rows of Table 1 with several stages",
             INTERLEAVED: "rows of Table 1 that interleave"}
    return known.get(tuple(rows)) or ", ".join(TABLE_1[row] for row in rows)


def variables(source: str, **changes: float) -> dict[str, float]:
    """The variables of the paper's formulas for one row, from what the row and the authors' scripts state."""
    found = {"a": "heads", "b": "micro_batch", "h": "hidden", "l": "layers", "p": "pp", "s": "seq", "t": "tp",
             "V": "vocab", "d": "dp", "n": "gpus", "B": "global_batch", "v": "interleave"}
    config = FACTS[source].config
    sizes = {name: config[key] for name, key in found.items() if key in config}
    if {"B", "b", "d"} <= sizes.keys():
        sizes["m"] = sizes["B"] // (sizes["b"] * sizes["d"])
    return sizes | changes


def formula(name: str, side: int = -1) -> str:
    """The right side of a published equation, or another side of it; primes are spelled out."""
    return FACTS[name].formula.split("=")[side].strip().replace("'", "_prime")


def value(name: str, side: int = -1, **sizes: float) -> float:
    """A published formula at these sizes."""
    return evaluate(formula(name, side), sizes)


def at_rows(name: str, rows: Sequence[str], unit: float = 1, side: int = -1, **changes: float) -> Formula:
    """A published formula at the size of each row, in `unit`."""
    return lambda facts: tuple(value(name, side, **variables(row, **changes)) / unit for row in rows)
