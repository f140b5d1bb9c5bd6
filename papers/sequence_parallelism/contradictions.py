"""The paper's other numbers against each other. Nothing here is ours but the arithmetic.

A derived value has to agree within what the rounding of printed numbers and the reading of figures leave
open; where it does not, the paper gives two values.
"""

from collections.abc import Iterator

from common.claims import Absolute, Ask, AtLeast, Contradiction, Equal, Quantity, Result, Rounding, produces
from common.claims.quantities import derived
from papers.sequence_parallelism.sizes import FACTS, GIB, SIZES

GIGA = 1e9
RANGE, ABSTRACT = "text-throughput-range", "text-abstract-530b"


def printed(source: str) -> dict:
    return FACTS[source].values


def _gain(size: str) -> Quantity:
    values = printed(f"table5-{size}")
    slow, fast = values["iteration_s_full_recompute"], values["iteration_s_present_work"]
    room = 0.05 + 100 * slow / fast * 0.005 * (1 / slow + 1 / fast)
    tolerance = Absolute(room, "as printed, and the printed times")
    return derived(f"table5-{size}", "throughput_increase_percent", tolerance, text="gain from printed times")


@produces(
    *map(_gain, SIZES),
    derived(RANGE, "throughput_increase_percent_min", Equal(), text="smallest gain of Table 5"),
    derived(RANGE, "throughput_increase_percent_max", Equal(), text="largest gain of Table 5"),
    derived(ABSTRACT, "speedup_percent", Rounding(), text="gain from the two utilisations"),
    derived(ABSTRACT, "gpus", Equal(), text="GPUs, 8 times Table 3's"),
    derived("text-dp8-530b", "iteration_s_dp1", Equal(), text="Table 5's time"),
    derived("text-abstract-memory", "reduction_factor", Rounding(), text="of Figure 7's largest bar"),
    derived("text-figure1-exceeds", "gpu_memory_gb", AtLeast(), text="smallest baseline bar of Figure 1"),
    derived("text-mtnlg-layers", "layers_per_device", Equal(), text="layers over pipeline stages, Table 3"),
    derived("setup-no-dp", "dp", Equal(), text="GPUs over tp x pp, every row of Table 3"),
    minutes=0.01,
)
def tables_and_text(ask: Ask) -> Iterator[Result]:
    for size in SIZES:
        values = printed(f"table5-{size}")
        gain = 100 * (values["iteration_s_full_recompute"] / values["iteration_s_present_work"] - 1)
        yield Result(f"table5-{size}/throughput_increase_percent", gain)
    gains = [printed(f"table5-{size}")["throughput_increase_percent"] for size in SIZES]
    yield Result(f"{RANGE}/throughput_increase_percent_min", min(gains))
    yield Result(f"{RANGE}/throughput_increase_percent_max", max(gains))
    values = printed(ABSTRACT)
    speedup = values["mfu_percent_present_work"] / values["mfu_percent_full_recompute"] - 1
    yield Result(f"{ABSTRACT}/speedup_percent", 100 * speedup)
    yield Result(f"{ABSTRACT}/gpus", 8 * printed("table3-530b")["gpus"])
    yield Result("text-dp8-530b/iteration_s_dp1", printed("table5-530b")["iteration_s_present_work"])
    largest = max(printed("figure7-both")["percent_of_baseline"])
    yield Result("text-abstract-memory/reduction_factor", 100 / largest)
    smallest = min(printed(f"figure1-{size}")["total_baseline_gib"] for size in SIZES)
    yield Result("text-figure1-exceeds/gpu_memory_gb", smallest * GIB / GIGA, detail=f"{smallest} GiB")
    rows = [printed(f"table3-{size}") for size in SIZES]
    yield Result("text-mtnlg-layers/layers_per_device", rows[2]["layers"] / rows[2]["pp"])
    yield Result("setup-no-dp/dp", max(row["gpus"] / (row["tp"] * row["pp"]) for row in rows))


SAVING = "text-dealloc-530b"


def _saving(facts) -> float:
    return facts[SAVING].values["saving_gib"]


@produces(
    derived(SAVING, "saving_gib", Rounding(), text="2 bytes for each element of its formula"),
    derived(SAVING, "saving_gb", Rounding(), _saving, text="the same in the unit printed"),
    derived(SAVING, "figure9_gib", Absolute(0.005 + 2 * FACTS["figure9-dealloc"].read_error,
                                            "as printed, and two readings"), _saving,
            text="the two curves of Figure 9 at rank 0"),
    minutes=0.01,
)
def deallocation(ask: Ask) -> Iterator[Result]:
    config = FACTS[SAVING].config
    sizes = {"s": config["seq"], "b": config["micro_batch"], "h": config["hidden"], "r": config["pp"]}
    saved = 2 * FACTS["text-dealloc-formula"].evaluate(**sizes)
    yield Result(f"{SAVING}/saving_gib", saved / GIB)
    yield Result(f"{SAVING}/saving_gb", saved / GIGA,
                 contradiction=Contradiction("Appendix B's formula", saved / GIGA, "2.73 counts GiB"))
    curves = [printed(f"figure9-{name}")["memory_gib"][0] for name in ("no-dealloc", "dealloc")]
    yield Result(f"{SAVING}/figure9_gib", curves[0] - curves[1])


PRODUCERS = (tables_and_text, deallocation)
