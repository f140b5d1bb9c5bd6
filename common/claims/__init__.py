"""Claims of a paper: what it states, what our code gives for it, and the verdict between the two.

A paper's folder holds `published.toml` (the facts, see `published.py`), a `README.md` with the blocks
`scores` and `claims`, stored results under `results/`, and a `reproduce.py` like this one:

    from pathlib import Path

    from common.claims import Ask, Figure, Paper, Quantity, Relative, Result, Waits, main, produces

    SIZES = ("22b", "175b")

    def formula(name: str, size: str):  # the paper's formula at a published size, GiB
        return lambda facts: facts[name].evaluate(**sizes_of(facts[f"table3-{size}"].config)) / 2**30

    @produces(
        *(Quantity("table2-tp", size, "exact", Relative(0.001), formula("table2-tp", size), unit="GiB")
          for size in SIZES),
        minutes=0.2,
    )
    def table2(ask: Ask):
        from papers.sequence_parallelism.memory import layer_trace  # torch is imported here, not above

        for size in SIZES:
            if ask.wants(f"table2-tp/{size}"):
                trace = layer_trace(ask.facts[f"table3-{size}"].config)
                yield Result(f"table2-tp/{size}", trace.saved_bytes / 2**30, detail="one layer, rank 0")

    PAPER = Paper(
        Path(__file__).parent,
        producers=(table2,),
        waits=(Waits(("table4-*", "figure8-*"), "predicted", "needs the predictor"),),
        context=("setup-*", "table1-notation", "figure1-*/gpu_memory_line_gb"),
        figures=(Figure("figure7", "Memory against the baseline.", ("figure7-*",), draw_figure7),),
    )

    if __name__ == "__main__":
        main(PAPER)

Rules
- The id of a claim is "published id/key". Without `published=` the value is the one of that key.
- Every number in published.toml is produced, waits or is context, else the listing is an error. Patterns
  with a "/" speak of single numbers and win over those of whole claims; what is produced needs no pattern.
- A function yields exactly one `Result` for each wanted id. `ours` is a number, a list or a text like the
  published value; NaN and infinity are errors. Verdicts are computed by `judge.py`, from numbers alone.
- A miss needs `Result(cause=...)`, an explanation that was tested; it is shown only if the claim is missed.
- `Result(contradiction=Contradiction(where, value, what))` is what the paper gives elsewhere for the same
  quantity. Where ours misses the published value and agrees with that one, the verdict is
  paper-inconsistent.
- Tolerances: `Relative`, `Absolute`, `Rounding` (as printed), `Reading` (of a figure), `AtLeast`, `AtMost`,
  `Between`, `Order`, `Equal`; see `tolerance.py`. A spread makes bounds and orders stricter.

`python -m papers.<name>.reproduce` runs it, `python -m papers` lists all, `python -m papers --readme` writes
the README blocks.
"""

from common.claims.command import main
from common.claims.judge import Row
from common.claims.schema import (
    Ask,
    Contradiction,
    Figure,
    Paper,
    Quantity,
    Result,
    Waits,
    produces,
)
from common.claims.tolerance import (
    Absolute,
    AtLeast,
    AtMost,
    Between,
    Equal,
    Order,
    Reading,
    Relative,
    Rounding,
)

__all__ = [
    "Absolute", "Ask", "AtLeast", "AtMost", "Between", "Contradiction", "Equal", "Figure", "Order", "Paper",
    "Quantity", "Reading", "Relative", "Result", "Rounding", "Row", "Waits", "main", "produces",
]  # fmt: skip
