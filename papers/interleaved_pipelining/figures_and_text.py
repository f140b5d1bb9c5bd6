"""What the text says of its figures, beside the figures; and the paper's two values where it has two.

Nothing here is ours but the arithmetic on plotted values.
"""

from collections.abc import Iterator

from common.claims import (
    Absolute,
    Ask,
    AtLeast,
    AtMost,
    Contradiction,
    Equal,
    Quantity,
    Result,
    Rounding,
    produces,
)
from common.claims.quantities import derived
from papers.interleaved_pipelining.sizes import FACTS, INTERLEAVED, PIPELINED

RATE = "tflops_per_gpu"


def plotted(source: str, key: str = RATE) -> list[float]:
    return FACTS[source].values[key]


def gains(after: str, before: str) -> tuple[float, ...]:
    """Percent, point by point."""
    return tuple(100 * (new / old - 1) for new, old in zip(plotted(after), plotted(before), strict=True))


def best(source: str, key: str) -> float:
    """Where the curve is highest."""
    rates = plotted(source)
    return plotted(source, key)[rates.index(max(rates))]


INTERLEAVING = ("figure12-interleaved", "figure12-default")
ABSTRACT, INTRODUCTION = "text-interleaved-gain-abstract", "text-interleaved-gain-intro"
LEAST, MOST = "throughput_gain_percent_at_least", "throughput_gain_percent_at_most"
MIX, MICRO = "text-suboptimal-mix", "text-microbatch-gain"
LOSS, FUSION = "text-recompute-loss", "text-fusion-530b"


@produces(
    derived(ABSTRACT, LEAST, AtLeast(), text="smallest gain of Figure 12"),
    derived(INTRODUCTION, MOST, AtMost(), text="largest gain of Figure 12"),
    derived(MIX, "slowdown_factor_up_to", AtLeast(), text="best over worst mix of Figure 13"),
    derived(MICRO, "throughput_gain_percent", AtLeast(), text="largest gain over micro-batch 1 in Figure 16",
            headline=True),
    derived(LOSS, "throughput_loss_percent_up_to", AtLeast(), text="largest loss of Figure 17"),
    derived(FUSION, "tflops_per_gpu_after", Equal(), text="530B in Table 1, to which section 5.8 seems to point"),
    derived("figure14-b32", "batch_sizes", Equal(), lambda facts: 3, unit="",
            text="batch sizes plotted, of those that the caption announces"),
    derived("setup-e2e-schedule", "interleaved_rows", Equal(), lambda facts: len(PIPELINED), unit="",
            text="rows of Table 1 with several stages that interleave"),
    minutes=0.01,
)
def two_values(ask: Ask) -> Iterator[Result]:
    found = gains(*INTERLEAVING)
    shown = ", ".join(f"{gain:.1f}" for gain in found)
    for id, gain in ((f"{ABSTRACT}/{LEAST}", min(found)), (f"{INTRODUCTION}/{MOST}", max(found))):
        yield Result(id, gain, contradiction=Contradiction("Figure 12", gain, f"gains of {shown} % by batch size"))
    factor = max(max(plotted(name)) / min(plotted(name)) for name in ("figure13-b32", "figure13-b128"))
    yield Result(f"{MIX}/slowdown_factor_up_to", factor,
                 contradiction=Contradiction("Figure 13", factor, "no plotted mix of tensor and pipeline "
                                             "parallelism is slower than the best by more"))
    rates = [plotted(name) for name in ("figure16-b128", "figure16-b512")]
    gain = max(100 * (max(found) / found[0] - 1) for found in rates)
    yield Result(f"{MICRO}/throughput_gain_percent", gain,
                 contradiction=Contradiction("Figure 16", gain, "the best micro-batch size over 1; figure 8's "
                                             "estimates are 9 and 21 %"))
    kept, again = (plotted(f"figure17-{name}", "sequences_per_s") for name in ("no-recompute", "recompute"))
    loss = max(100 * (1 - slow / fast) for slow, fast in zip(again, kept, strict=False))
    yield Result(f"{LOSS}/throughput_loss_percent_up_to", loss,
                 contradiction=Contradiction("Figure 17", loss, "33 % is the extra work, which costs at most a "
                                             "quarter of the throughput"))
    rate = plotted("table1-530b")
    yield Result(f"{FUSION}/tflops_per_gpu_after", rate,
                 contradiction=Contradiction("Table 1", rate, "the text says that its configuration is used"))
    yield Result("figure14-b32/batch_sizes", sum(entry.id.startswith("figure14-") for entry in FACTS),
                 contradiction=Contradiction("Figure 14", 2, "the curves for batches 32 and 512"))
    yield Result("setup-e2e-schedule/interleaved_rows", len(INTERLEAVED),
                 contradiction=Contradiction("the authors' run_table_1.sh", len(INTERLEAVED),
                                             "39.1B and 1008B run without the option"))


DOUBLE, SMALL = "text-zero3-gain-double", "text-zero3-gain-small"
PAIRS = {
    (DOUBLE, "175b"): ("table2-ptdp-175b-768", "table2-zero3-175b-768"),
    (DOUBLE, "530b"): ("table2-ptdp-530b-1120", "table2-zero3-530b-1120"),
    (SMALL, "175b"): ("table2-ptdp-175b-384", "table2-zero3-175b-384"),
    (SMALL, "530b"): ("table2-ptdp-530b-560", "table2-zero3-530b-640"),
}


MODEL_SIZES = (("figure14-b32", "pp"), ("figure14-b512", "pp"), ("figure15-b32", "tp"), ("figure15-b128", "tp"),
               ("figure15-b512", "tp"))


def _gain(pair: tuple[str, str]) -> Quantity:
    """Of two rates that are printed without decimals."""
    source, size = pair
    ours, other = (plotted(row) for row in PAIRS[pair])
    room = 0.5 + 100 * ours / other * 0.5 * (1 / ours + 1 / other)
    tolerance = Absolute(room, "as printed, and the printed rates")
    model = "174.6B" if size == "175b" else "529.6B"
    if source == SMALL:
        return derived(source, f"throughput_gain_percent_{size}", tolerance, text=f"{model}, from Table 2")
    return derived(source, size, tolerance, lambda facts: facts[DOUBLE].values["throughput_gain_percent"],
                   covers=("throughput_gain_percent",), unit="%", text=f"{model}, from Table 2")


@produces(
    *map(_gain, PAIRS),
    *(derived(f"text-fusion-{size}", "throughput_gain_percent", Rounding(), text="from the two rates")
      for size in ("175b", "530b")),
    derived("text-recompute-gain", "throughput_factor_up_to", Rounding(),
            text="best with over best without, Figure 17"),
    derived("text-scatter-gather-gain", "throughput_gain_percent_up_to", Rounding(),
            text="largest gain of Figure 18"),
    derived("text-microbatch-best", "micro_batch", Equal(), lambda facts: (2, 2), unit="",
            text="best of Figure 16, batch 128 and 512"),
    derived("takeaway-1", "best_tp", Equal(), lambda facts: (facts["setup-cluster"].values["gpus_per_node"],) * 2,
            unit="", text="tensor size at the best mix of Figure 13, batch 32 and 128, against GPUs per node"),
    derived("takeaway-2", "best_model_parallel", Equal(),
            lambda facts: tuple(min(plotted(*curve)) for curve in MODEL_SIZES), unit="",
            text="model-parallel size at the best points of Figures 14 and 15, against the least plotted"),
    minutes=0.01,
)
def figures_and_text(ask: Ask) -> Iterator[Result]:
    for (source, size), (ours, other) in PAIRS.items():
        key = size if source == DOUBLE else f"throughput_gain_percent_{size}"
        yield Result(f"{source}/{key}", 100 * (plotted(ours) / plotted(other) - 1),
                     detail=f"{FACTS[ours].values['gpus']} GPUs against {FACTS[other].values['gpus']}")
    for size in ("175b", "530b"):
        values = FACTS[f"text-fusion-{size}"].values
        yield Result(f"text-fusion-{size}/throughput_gain_percent",
                     100 * (values["tflops_per_gpu_after"] / values["tflops_per_gpu_before"] - 1))
    again, kept = (max(plotted(f"figure17-{name}", "sequences_per_s")) for name in ("recompute", "no-recompute"))
    yield Result("text-recompute-gain/throughput_factor_up_to", again / kept)
    yield Result("text-scatter-gather-gain/throughput_gain_percent_up_to",
                 max(gains("figure18-scatter-gather", "figure18-unoptimized")))
    yield Result("text-microbatch-best/micro_batch",
                 tuple(best(name, "micro_batch") for name in ("figure16-b128", "figure16-b512")))
    yield Result("takeaway-1/best_tp", tuple(best(name, "tp") for name in ("figure13-b32", "figure13-b128")))
    yield Result("takeaway-2/best_model_parallel", tuple(best(*curve) for curve in MODEL_SIZES))


PRODUCERS = (two_values, figures_and_text)
