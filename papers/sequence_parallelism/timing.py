"""Measured here: what each recomputation policy costs one layer, in the manner of table 4 and figure 8.

Two reduced layers stand for each model. The one timed by default keeps the head size and s/h, and with them
the attention scores per FLOP of the layer, which decide what recomputing the core costs. The counterpart of
recipes.py keeps 5as/h, which decides the memory; it makes tens of times as many scores per FLOP, so it is
timed in the long form alone.
"""

from collections.abc import Iterator

from common.claims import Ask, AtLeast, Order, Quantity, Result, produces
from common.claims.quantities import measured
from papers.sequence_parallelism.sizes import FACTS, NAMES, SIZES, Formula

POLICIES = ("none", "selective", "full")
ALL = (*POLICIES, "norm,activation")
ROUNDS, LONG_ROUNDS = 15, 61
# hidden, heads, sequence, micro-batch: 0.5 to 1 GFLOP forward
TIMED = {"22b": (384, 4, 128, 1), "175b": (384, 3, 64, 2), "530b": (640, 4, 64, 1), "1t": (800, 5, 64, 1)}
REMOVED = "text-abstract-overhead"
MOST = 50.0
"""Percent of full recomputation's overhead: more than this is most of it."""


def _totals(size: str) -> Formula:
    """Totals of none, selective and full, percent of none.

    Selective alone for the 22B, from table 4; figure 8 has it with sequence parallelism.
    """
    def of_none(facts) -> tuple[float, ...]:
        if size == "22b":
            rows = ("baseline", "selective", "full-recompute")
            times = [facts[f"table4-{row}"].values["combined_ms"] for row in rows]
            return tuple(100 * time / times[0] for time in times)
        values = facts[f"figure8-{size}"].values
        return 100.0, values["present_total_percent"], values["full_total_percent"]
    return of_none


def _phases(size: str) -> Formula:
    values = FACTS[f"figure8-{size}"].values
    return lambda facts: (values["full_forward_percent"], values["full_backward_percent"])


def _total(size: str, key: str, shape: str = "") -> Quantity:
    return measured(f"figure8-{size}", f"{key}_totals", Order(), _totals(size), unit="%",
                    text=f"none, selective, full: total{shape}")


def _removed(size: str, key: str, shape: str = "") -> Quantity:
    return measured(REMOVED, f"{key}_removed_{size}", AtLeast(MOST),
                    lambda facts: facts[REMOVED].values["overhead_reduction_percent_over"], unit="%",
                    text=f"share of full recomputation's overhead removed by selective, {NAMES[size]}{shape}",
                    headline=(key, size) == ("layer", "22b"))


def scaled(size: str):
    """A layer with the head size and the s/h of the published model, fewer heads, and its micro-batch."""
    from common.models.config import LanguageModelConfig

    hidden, heads, sequence, micro_batch = TIMED[size]
    published = FACTS[f"table3-{size}"].config
    assert hidden * published["heads"] == heads * published["hidden"]
    assert hidden * published["seq"] == sequence * published["hidden"]
    config = LanguageModelConfig("[*-]*3", hidden, heads, sequence=sequence, dropout=0.1,
                                 attention_dropout=0.1)
    return config, micro_batch


def scores_per_flop(heads: int, sequence: int, hidden: int) -> float:
    """Attention scores over forward FLOPs of one layer (appendix A)."""
    return heads * sequence**2 / (24 * sequence * hidden**2 + 4 * sequence**2 * hidden)


def _results(size: str, key: str, times, shape: str, density: float) -> Iterator[Result]:
    """Totals and the share removed. density: scores per FLOP over those of the published layer."""
    from papers.sequence_parallelism.layer_time import median_interval

    seconds = {policy: [sum(pair) for pair in found] for policy, found in times.items()}
    rounds = list(zip(*(seconds[policy] for policy in POLICIES), strict=True))
    ratios = {policy: median_interval([100 * t / n for t, n in zip(found, seconds["none"], strict=True)])
              for policy, found in seconds.items()}
    others = "".join(f"; {policy} {ratios[policy][0]:.1f} % of none" for policy in times
                     if policy not in POLICIES)
    why = f"this layer makes {density:.3g} times as many attention scores per FLOP as the published one"
    yield Result(f"figure8-{size}/{key}_totals", tuple(ratios[policy][0] for policy in POLICIES),
                 spread=tuple(ratios[policy][1] for policy in POLICIES), detail=shape + others,
                 cause=f"the intervals of the medians overlap over {len(rounds)} rounds; {why}")
    removed, spread = median_interval([100 * (1 - (s - n) / (f - n)) for n, s, f in rounds])
    yield Result(f"{REMOVED}/{key}_removed_{size}", removed, spread=spread, detail=shape,
                 cause=f"over {len(rounds)} rounds the interval reaches below {MOST:g}; {why}")
    if key == "layer":
        none = list(zip(times["none"], seconds["none"], strict=True))
        phases = [median_interval([100 * pair[i] / n for pair, n in none]) for i in range(2)]
        yield Result(f"figure8-{size}/layer_phases", tuple(m for m, _ in phases), detail=shape,
                     spread=tuple(s for _, s in phases), cause="the intervals of the two overlap")


def _timed(size: str, key: str, config, micro_batch: int, policies, rounds: int) -> Iterator[Result]:
    from papers.sequence_parallelism.layer_time import layer_times, median_interval

    times = layer_times(config, micro_batch, policies, rounds)
    none = 1e3 * median_interval([sum(pair) for pair in times["none"]])[0]
    shape = (f"one layer of hidden {config.hidden}, {config.heads} heads, sequence {config.sequence}, "
             f"micro-batch {micro_batch}, fp32, one thread, {rounds} alternated rounds; "
             f"none takes {none:.0f} ms")
    published = FACTS[f"table3-{size}"].config
    here = scores_per_flop(config.heads, config.sequence, config.hidden)
    there = scores_per_flop(published["heads"], published["seq"], published["hidden"])
    yield from _results(size, key, times, shape, here / there)


@produces(
    *(_total(size, "layer") for size in SIZES),
    *(_removed(size, "layer") for size in SIZES),
    *(measured(f"figure8-{size}", "layer_phases", Order(), _phases(size), unit="%",
               text="forward, backward without recomputation") for size in SIZES),
    minutes=0.25,
)
def layer_overhead(ask: Ask) -> Iterator[Result]:
    policies, rounds = (ALL, LONG_ROUNDS) if ask.full else (POLICIES, ROUNDS)
    for size in SIZES:
        if ask.wants(f"figure8-{size}/layer_*", f"{REMOVED}/layer_removed_{size}"):
            yield from _timed(size, "layer", *scaled(size), policies, rounds)


KEEPS_MEMORY = ", counterpart with the published 5as/h"


@produces(
    *(_total(size, "counterpart", KEEPS_MEMORY) for size in SIZES),
    *(_removed(size, "counterpart", KEEPS_MEMORY) for size in SIZES),
    minutes=8,
    full=True,
)
def counterpart_overhead(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.recipes import counterpart

    for size in SIZES:
        if ask.wants(f"figure8-{size}/counterpart_*", f"{REMOVED}/counterpart_removed_{size}"):
            recipe = counterpart(size)
            batch = recipe.training.micro_batch
            yield from _timed(size, "counterpart", recipe.model, batch, ALL, LONG_ROUNDS)


PRODUCERS = (layer_overhead, counterpart_overhead)
