"""Figure 7: what each technique leaves of the tensor-parallel baseline's activation memory, and its text."""

from collections.abc import Iterator

from common.claims import Ask, AtMost, Contradiction, Reading, Result, Rounding, produces
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, MODELS, SIZES, Formula, formula

FIGURE_7 = {
    "sequence-parallel": "tp-sp",
    "selective": "tp-selective",
    "both": "tp-sp-selective",
    "full": "full",
}
"""The series of the figure and the technique of table 2 that each is."""


def _times(source: str, key: str, number: int) -> Formula:
    """One printed value that is said of several bars."""
    return lambda facts: (facts[source].values[key],) * number


@produces(
    *(exact(f"figure7-{name}", "percent_of_baseline", Reading(), text=MODELS) for name in FIGURE_7),
    exact("text-figure7-individual", "fraction_of_baseline_approx", Rounding(),
          _times("text-figure7-individual", "fraction_of_baseline_approx", 8),
          text=f"sequence parallel ({MODELS}), then selective ({MODELS})"),
    exact("text-figure7-combined", "reduction_factor", Rounding(), text="of the model that gains least"),
    exact("text-figure7-combined", "percent_of_baseline_under", AtMost(), text="largest of the four models"),
    exact("text-figure7-full", "percent_of_baseline_approx", Rounding(10),
          _times("text-figure7-full", "percent_of_baseline_approx", 4), text=MODELS),
    exact("text-figure7-full", "present_work_over_full_factor_approx", Rounding(), text="all models alike"),
    minutes=0.02,
)
def figure7(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    def share(size: str, technique: str) -> float:
        return layer(size, technique).saved_bytes / layer(size, "tp").saved_bytes

    shares = {name: tuple(share(size, technique) for size in SIZES) for name, technique in FIGURE_7.items()}
    for name, found in shares.items():
        yield Result(f"figure7-{name}/percent_of_baseline", tuple(100 * x for x in found),
                     detail="one layer, rank 0 of tp 8; the baseline is tensor parallelism alone")
    bars = {name: FACTS[f"figure7-{name}"].value("percent_of_baseline") for name in FIGURE_7}
    alone = tuple(bar / 100 for name in ("sequence-parallel", "selective") for bar in bars[name])
    yield Result("text-figure7-individual/fraction_of_baseline_approx",
                 shares["sequence-parallel"] + shares["selective"],
                 contradiction=Contradiction("Figure 7", alone, "bars of 49 to 67 %, not all about half"))
    yield Result("text-figure7-combined/reduction_factor", 1 / max(shares["both"]))
    table = max(formula("table2-tp-sp-selective", size)(FACTS) / formula("table2-tp", size)(FACTS)
                for size in SIZES)
    yield Result("text-figure7-combined/percent_of_baseline_under", 100 * max(shares["both"]),
                 contradiction=Contradiction("Table 2", round(100 * table, 2), "its formulas, like the bars "
                                             "of 530B and 1T in figure 7, are slightly above 20 %"))
    yield Result("text-figure7-full/percent_of_baseline_approx", tuple(100 * x for x in shares["full"]))
    yield Result("text-figure7-full/present_work_over_full_factor_approx",
                 shares["both"][0] / shares["full"][0],
                 detail="selective recomputation with sequence parallelism over full recomputation without")


PRODUCERS = (figure7,)
