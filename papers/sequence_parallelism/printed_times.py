"""Times of one layer that the paper prints, against each other: table 4, figure 8 and the text on them.

A derived value has to agree within what the rounding of printed numbers and the reading of figures leave
open; where it does not, the paper gives two values.
"""

from collections.abc import Iterator

from common.claims import (
    Absolute,
    Ask,
    AtLeast,
    Between,
    Contradiction,
    Equal,
    Quantity,
    Result,
    Rounding,
    produces,
)
from common.claims.quantities import derived
from papers.sequence_parallelism.sizes import FACTS, NAMES, SIZES

TIME_ERROR = 0.05  # ms: half of the last digit of table 4's times
OVERHEADS = ("sequence-parallel", "full-recompute", "selective", "selective-sequence")
SPEEDUP, RANGE, REMOVED = "text-table4-sp-speedup", "text-full-recompute-overhead", "text-abstract-overhead"
BACKWARD = {"selective": "selective", "full": "full-recompute"}


def table4(row: str, key: str = "combined_ms") -> float:
    return FACTS[f"table4-{row}"].values[key]


BASE = table4("baseline")


def _range(facts) -> tuple[float, float]:
    values = facts[RANGE].values
    return values["overhead_percent_min"], values["overhead_percent_max"]


@produces(
    *(derived(f"table4-{row}", "overhead_percent", Rounding(), text="overhead from its combined times")
      for row in OVERHEADS),
    derived(SPEEDUP, "forward_speedup_percent", Rounding()),
    derived(SPEEDUP, "before_ms", Equal()),
    derived(SPEEDUP, "after_ms", Equal()),
    *(derived(f"text-table4-{row}-backward", key, Rounding()) for row in BACKWARD
      for key in ("overhead_ms", "overhead_percent_of_backward")),
    derived("text-table4-expected", "overhead_percent", Rounding(), text="overhead from Table 4"),
    derived(REMOVED, "overhead_reduction_percent_over", AtLeast(),
            text="share removed, from Table 4's times"),
    derived(RANGE, "range", Between(), _range, covers=("overhead_percent_min", "overhead_percent_max"),
            unit="%", text="22B from Table 4; 175B, 530B, 1T from Figure 8"),
    minutes=0.01,
)
def table4_arithmetic(ask: Ask) -> Iterator[Result]:
    overhead = {row: 100 * (table4(row) / BASE - 1) for row in OVERHEADS}
    for row in OVERHEADS:
        yield Result(f"table4-{row}/overhead_percent", overhead[row])
    before, after = table4("baseline", "forward_ms"), table4("sequence-parallel", "forward_ms")
    yield Result(f"{SPEEDUP}/forward_speedup_percent", 100 * (1 - after / before))
    yield Result(f"{SPEEDUP}/before_ms", before)
    yield Result(f"{SPEEDUP}/after_ms", after)
    backward = table4("baseline", "backward_ms")
    for name, row in BACKWARD.items():
        extra = table4(row, "backward_ms") - backward
        yield Result(f"text-table4-{name}-backward/overhead_ms", extra)
        yield Result(f"text-table4-{name}-backward/overhead_percent_of_backward", 100 * extra / backward)
    yield Result("text-table4-expected/overhead_percent", overhead["full-recompute"])
    removed = 1 - overhead["selective-sequence"] / overhead["full-recompute"]
    yield Result(f"{REMOVED}/overhead_reduction_percent_over", 100 * removed,
                 detail="its rounded percentages, 4 of 39, give 89.7")
    yield Result(f"{RANGE}/range", (overhead["full-recompute"], *(_over(size, "full") for size in SIZES[1:])))


def _over(size: str, bar: str) -> float:
    """Overhead by the total of a bar of figure 8, percent."""
    return FACTS[f"figure8-{size}"].values[f"{bar}_total_percent"] - 100


FIGURE_8 = {
    "full_forward": ((1, "baseline", "forward_ms"),),
    "full_backward": ((1, "baseline", "backward_ms"),),
    "full_recompute": ((1, "full-recompute", "combined_ms"), (-1, "baseline", "combined_ms")),
    "full_total": ((1, "full-recompute", "combined_ms"),),
    "present_forward": ((1, "selective-sequence", "forward_ms"),),
    "present_backward": ((1, "sequence-parallel", "backward_ms"),),
    "present_recompute": ((1, "selective-sequence", "backward_ms"), (-1, "sequence-parallel", "backward_ms")),
    "present_total": ((1, "selective-sequence", "combined_ms"),),
}
"""The bars of the 22B as sums of times that table 4 prints for the same runs."""
NOTED = ("full_recompute", "full_total", "present_total")


def _from_table4(bar: str) -> float:
    return 100 * sum(sign * table4(row, key) for sign, row, key in FIGURE_8[bar]) / BASE


def _figure8(bar: str) -> Quantity:
    rounding = TIME_ERROR / BASE * (100 * len(FIGURE_8[bar]) + _from_table4(bar))
    room = Absolute(FACTS["figure8-22b"].read_error + rounding, "reading error and rounding of Table 4")
    return derived("figure8-22b", f"{bar}_from_table4", room,
                   lambda facts: facts["figure8-22b"].values[f"{bar}_percent"], unit="%",
                   text=f"{bar.replace('_', ' ')}, from Table 4's times")


LARGE, APPENDIX_C = "text-figure8-large", "text-microbatch-recompute-overhead"
PRINTED = {"present": "overhead_percent_present_work", "full": "overhead_percent_full_recompute"}
ROUNDED = Absolute(0.5 + FACTS["figure8-530b"].read_error, "as printed, and the reading error")


def _large(bar: str, size: str) -> Quantity:
    key = PRINTED[bar]
    return derived(LARGE, f"{bar}_{size}", ROUNDED, lambda facts: facts[LARGE].values[key], covers=(key,),
                   unit="%", text=f"{bar}, {NAMES[size]}, from Figure 8's total")


def _appendix_c(size: str) -> Quantity:
    key = "overhead_percent_approx"
    return derived(APPENDIX_C, size, ROUNDED, lambda facts: facts[APPENDIX_C].values[key], covers=(key,),
                   unit="%", text=f"{NAMES[size]}, from Figure 8's total")


@produces(
    *map(_figure8, FIGURE_8),
    *(_large(bar, size) for bar in PRINTED for size in ("530b", "1t")),
    derived(LARGE, "slice_1t", ROUNDED, lambda facts: facts[LARGE].values[PRINTED["present"]], unit="%",
            text="present, 1T, from Figure 8's recompute slice alone"),
    *map(_appendix_c, ("175b", "530b")),
    minutes=0.01,
)
def figure8_arithmetic(ask: Ask) -> Iterator[Result]:
    for bar in FIGURE_8:
        ours = _from_table4(bar)
        other = Contradiction("Table 4", ours, "times of the same runs") if bar in NOTED else None
        yield Result(f"figure8-22b/{bar}_from_table4", ours, contradiction=other)
    for bar in PRINTED:
        for size in ("530b", "1t"):
            ours = _over(size, bar)
            other = Contradiction("Figure 8", ours, "forward and backward of its bar exceed 100 %")
            noted = (bar, size) == ("present", "1t")
            yield Result(f"{LARGE}/{bar}_{size}", ours, contradiction=other if noted else None)
    yield Result(f"{LARGE}/slice_1t", FACTS["figure8-1t"].values["present_recompute_percent"])
    for size in ("175b", "530b"):
        ours = _over(size, "present")
        other = Contradiction("Figure 8", ours, "the total of the present work")
        yield Result(f"{APPENDIX_C}/{size}", ours, contradiction=other if size == "175b" else None)


PRODUCERS = (table4_arithmetic, figure8_arithmetic)
