"""Utilisation of the hardware, table 5 and its text: counted work over the printed time, so it is derived."""

from collections.abc import Iterator

from common.claims import Absolute, Ask, Contradiction, Quantity, Relative, Result, Rounding, produces
from common.claims.quantities import derived
from papers.sequence_parallelism.sizes import FACTS, NAMES, SIZES, formula
from papers.sequence_parallelism.work import TERA, WORDS, by_the_text, iteration

TIME = "iteration_s_present_work"
APPENDIX_C = ("175b", "530b")


def utilisation(size: str, flops: float, seconds: float) -> float:
    """Percent of the peak of the GPUs of table 3 (section 6.3)."""
    gpus = FACTS[f"table3-{size}"].config["gpus"]
    return 100 * flops / (seconds * gpus * FACTS["setup-peak"].values["peak_tflops_per_gpu"] * TERA)


def rounded(source: str, percent: str, seconds: str) -> Absolute:
    """What the rounding of a printed utilisation, and of the time it is computed from, leaves open."""
    values = FACTS[source].values
    return Absolute(0.05 + values[percent] * 0.005 / values[seconds], "as printed, and the printed time")


def _table5(size: str, key: str) -> Quantity:
    return derived(f"table5-{size}", key, rounded(f"table5-{size}", key, TIME), headline=size == "175b",
                   text=f"{key[:3].upper()} from counted FLOPs and the printed time")


def _scaled(replicas: int) -> Quantity:
    key = f"mfu_percent_dp{replicas}"
    return derived("text-dp8-530b", key, rounded("text-dp8-530b", key, f"iteration_s_dp{replicas}"),
                   text=f"MFU, {replicas}-way data parallel, from counted FLOPs and the printed time")


def _before(size: str) -> Quantity:
    """What appendix C states less the gain that it states."""
    values = FACTS[f"text-microbatch-recompute-{size}"].values
    return derived(f"text-microbatch-recompute-{size}", "mfu_before", Absolute(0.15, "three printed values"),
                   lambda facts: round(values["mfu_percent"] - values["mfu_gain_points"], 1),
                   covers=("mfu_gain_points",), unit="%", text=f"MFU without it, {NAMES[size]}")


def _of_one_micro_batch(facts) -> float:
    """The MFU of table 5 if B were what appendix A says."""
    flops = formula("eq7-model-flops", "175b", B=1)(facts)
    return utilisation("175b", flops, facts["table5-175b"].values[TIME])


@produces(
    *(_table5(size, key) for size in SIZES for key in ("mfu_percent", "hfu_percent")),
    *map(_scaled, (1, 8)),
    derived("text-abstract-530b", "mfu_percent_present_work", Rounding(),
            text="MFU from counted FLOPs and section 6.3's time"),
    *map(_before, APPENDIX_C),
    derived("eq-flops-layer-forward", "mfu_175b_percent", Relative(0.001), _of_one_micro_batch,
            text="MFU of 175B with B the micro-batch, as appendix A has it"),
    minutes=0.02,
)
def utilisations(ask: Ask) -> Iterator[Result]:
    mfu = {}
    for size in SIZES:
        work, seconds = iteration(size), FACTS[f"table5-{size}"].values[TIME]
        mfu[size] = utilisation(size, work.model, seconds)
        by_text = utilisation(size, by_the_text(size), seconds)
        yield Result(f"table5-{size}/mfu_percent", mfu[size])
        yield Result(f"table5-{size}/hfu_percent", utilisation(size, work.hardware, seconds),
                     contradiction=Contradiction("the text of equation 8", by_text, WORDS))
    for replicas in (1, 8):  # batch and GPUs both grow that many times
        seconds = FACTS["text-dp8-530b"].values[f"iteration_s_dp{replicas}"]
        share = utilisation("530b", iteration("530b").model, seconds)
        yield Result(f"text-dp8-530b/mfu_percent_dp{replicas}", share)
    yield Result("text-abstract-530b/mfu_percent_present_work", share, detail=f"{seconds} s on 2240 GPUs")
    for size in APPENDIX_C:
        table = Contradiction("Table 5", FACTS[f"table5-{size}"].values["mfu_percent"],
                              "the same run without microbatch-level recomputation")
        yield Result(f"text-microbatch-recompute-{size}/mfu_before", mfu[size],
                     contradiction=table if size == "175b" else None)
    yield Result("eq-flops-layer-forward/mfu_175b_percent", mfu["175b"], detail="all of an iteration",
                 contradiction=Contradiction("Table 5", FACTS["table5-175b"].values["mfu_percent"],
                                             "its MFU follows with B the global batch"))


PRODUCERS = (utilisations,)
