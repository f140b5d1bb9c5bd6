"""The paper's tables against each other and its text. Nothing here is ours but the arithmetic and counted FLOPs.

A derived value has to agree within what the rounding of printed numbers leaves open.
"""

from collections.abc import Iterator

from common.claims import Absolute, Ask, Equal, Quantity, Result, Rounding, produces
from common.claims.quantities import derived, exact
from papers.interleaved_pipelining.parameters import same_model
from papers.interleaved_pipelining.sizes import (
    DAY,
    FACTS,
    PEAK,
    TABLE_1,
    TABLE_2,
    TERA,
    value,
)
from papers.interleaved_pipelining.work import days

RATE, DAYS = "tflops_per_gpu", "training_days_300b_tokens"
LARGEST, SMALLEST = "table1-1008b", "table1-1-7b"
HEADLINE = "text-headline"


def printed(source: str) -> dict:
    return FACTS[source].values


def percent(source: str) -> float:
    """Of peak, from the printed rate of a row."""
    return 100 * printed(source)[RATE] / PEAK


def _aggregate(row: str) -> Quantity:
    room = 0.05 + 0.5 * printed(row)["gpus"] / 1000
    return derived(row, "aggregate_pflops", Absolute(room, "as printed, and the printed rate"), unit="PFLOP/s",
                   text="rate times GPUs")


@produces(
    *(derived(row, "percent_of_peak", Rounding(), text="rate over 312 TFLOP/s") for row in TABLE_1),
    *map(_aggregate, TABLE_1),
    derived(HEADLINE, "percent_of_peak", Rounding(), text="rate over 312 TFLOP/s"),
    *(derived(HEADLINE, key, Equal(), unit=unit, text=f"{text} of Table 1's last row")
      for key, unit, text in (("aggregate_pflops", "PFLOP/s", "rate"), (RATE, None, "rate"), ("gpus", "", "GPUs"))),
    derived("text-smallest-model", "percent_of_peak", Rounding(), text="Table 1's first rate over 312 TFLOP/s"),
    derived("text-superlinear", "tflops_per_gpu_smallest", Equal(), text="Table 1's first row"),
    derived("text-superlinear", "tflops_per_gpu_largest", Equal(), text="Table 1's last row"),
    derived("text-deepspeed-compare", "percent_of_peak_here", Rounding(),
            text="Table 1's last rate over 312 TFLOP/s"),
    derived("setup-nodes-largest", "gpus", Equal(), text="p t d of Table 1's last row"),
    derived("setup-nodes-largest", "nodes", Equal(), text="those, eight to a node"),
    derived("setup-tp-size", "tp", Equal(), text="of all rows of Table 1 with several stages"),
    exact("eq-gpu-count", "table1", Equal(), lambda facts: tuple(facts[row].values["gpus"] for row in TABLE_1),
            unit="", text="GPUs of Table 1, as the ranks of the recipes' grids"),
    derived("text-tp-limit", "params_billion", Absolute(2, "a round number"),
            text="Table 1's largest model with one stage"),
    minutes=0.01,
)
def table1(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.traces import recipe

    for row in TABLE_1:
        yield Result(f"{row}/percent_of_peak", percent(row))
        yield Result(f"{row}/aggregate_pflops", printed(row)[RATE] * printed(row)["gpus"] / 1000)
    yield Result(f"{HEADLINE}/percent_of_peak", percent(HEADLINE))
    for key in ("aggregate_pflops", RATE, "gpus"):
        yield Result(f"{HEADLINE}/{key}", printed(LARGEST)[key])
    yield Result("text-smallest-model/percent_of_peak", percent(SMALLEST))
    yield Result("text-superlinear/tflops_per_gpu_smallest", printed(SMALLEST)[RATE])
    yield Result("text-superlinear/tflops_per_gpu_largest", printed(LARGEST)[RATE])
    yield Result("text-deepspeed-compare/percent_of_peak_here", percent(LARGEST))
    ranks = {row: recipe(row).grid.world for row in TABLE_1}
    yield Result("setup-nodes-largest/gpus", ranks[LARGEST])
    yield Result("setup-nodes-largest/nodes", ranks[LARGEST] / printed("setup-cluster")["gpus_per_node"])
    (tp,) = {printed(row)["tp"] for row in TABLE_1 if printed(row)["pp"] > 1}
    yield Result("setup-tp-size/tp", tp)
    yield Result("eq-gpu-count/table1", tuple(ranks.values()))
    single = [printed(row)["params_billion"] for row in TABLE_1 if printed(row)["pp"] == 1]
    yield Result("text-tp-limit/params_billion", max(single),
                 detail="with tp 8; the next row, 39.1 billion, has two stages")


def _trained(row: str) -> Quantity:
    """Days follow from FLOPs and a rate that is printed without decimals."""
    values = printed(row)
    room = 0.5 + values[DAYS] * 0.5 / values[RATE]
    return derived(row, DAYS, Absolute(room, "as printed, and the printed rate"), headline=row == TABLE_2[-1],
                   text="days on 300 billion tokens, from counted FLOPs and the rate")


def by_equation_4(source: str) -> float:
    values = printed(source)
    return value("eq-training-time", T=values["tokens_billion"] * 1e9, P=values["params_billion"] * 1e9,
                 n=values["gpus"], X=values[RATE] * TERA) / DAY


FIGURE_10 = {f"figure10-{scheme}-{size}": tuple(row for row in TABLE_2 if row.startswith(f"table2-{scheme}-{size}"))
             for scheme in ("zero3", "ptdp") for size in ("175b", "530b")}
DEEPSPEED, MONTH = "text-deepspeed-compare", 365.25 / 12


@produces(
    *map(_trained, TABLE_2),
    *(derived(name, RATE, Equal(), text="the rates of Table 2") for name in FIGURE_10),
    derived("text-train-time-gpt3", "days", Rounding(), text="equation 4"),
    derived("text-train-time-1t", "days", Rounding(), text="equation 4", headline=True),
    derived("text-train-time-1t-months", "months", Rounding(), unit="months", text="the text's 84 days"),
    derived(DEEPSPEED, "training_months_deepspeed", Rounding(10), unit="months",
            text="equation 4 at 37.6 PFLOP/s, 450 billion tokens, 1008 billion parameters"),
    minutes=0.01,
)
def training_times(ask: Ask) -> Iterator[Result]:
    for row in TABLE_2:
        values = printed(row)
        yield Result(f"{row}/{DAYS}", days(same_model(row), 300e9, values["gpus"], values[RATE]))
    for name, rows in FIGURE_10.items():
        yield Result(f"{name}/{RATE}", tuple(printed(row)[RATE] for row in rows))
    for source in ("text-train-time-gpt3", "text-train-time-1t"):
        yield Result(f"{source}/days", by_equation_4(source))
    yield Result("text-train-time-1t-months/months", printed("text-train-time-1t")["days"] / MONTH)
    run = printed("text-train-time-1t")
    whole = value("eq-training-time", T=run["tokens_billion"] * 1e9, P=run["params_billion"] * 1e9, n=1,
                  X=printed(DEEPSPEED)["aggregate_pflops_deepspeed"] * 1e15)
    yield Result(f"{DEEPSPEED}/training_months_deepspeed", whole / DAY / MONTH,
                 detail="the text says about 40")


PRODUCERS = (table1, training_times)
