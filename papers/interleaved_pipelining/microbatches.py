"""Micro-batch sizes: equation 1, and figure 8 as it follows from figure 7 (section 3.4)."""

from collections.abc import Iterator
from functools import cache

from common.claims import Absolute, Ask, Equal, Relative, Result, Rounding, produces
from common.claims.published import Facts
from common.claims.quantities import derived, exact
from papers.interleaved_pipelining.sizes import FACTS, TABLE_1, at_rows, names

FIGURE_7 = FACTS["figure7-microbatch"]
SIZES = FIGURE_7.values["micro_batch"]
FIGURE_8 = {128: "figure8-b128", 512: "figure8-b512"}
PIPELINE = FACTS["figure8-b128"].config["pp"]


def pass_time(b: int) -> float:
    """t_f + t_b of a micro-batch of b sequences on figure 7's GPU, up to a factor common to all b."""
    return b / FIGURE_7.values["tflops_per_gpu"][SIZES.index(b)]


@cache
def batch_time(batch: int, b: int) -> float:
    """Makespan of the 1F1B schedule on 8 devices whose stages take figure 7's time, backward twice the forward."""
    from common.pipeline.schedules import one_f_one_b
    from common.pipeline.simulate import simulate

    third = pass_time(b) / 3
    return float(simulate(one_f_one_b(PIPELINE, batch // b), {"forward": third, "backward": 2 * third}).makespan)


def _equation_1(batch: int):
    def times(facts: Facts) -> tuple[float, ...]:
        return tuple((batch / b + PIPELINE - 1) * pass_time(b) for b in SIZES)
    return times


def _plotted(name: str) -> Absolute:
    """Figure 8 cuts its values off after two decimals; figure 7's were read off it."""
    rates = FIGURE_7.values["tflops_per_gpu"]
    error = FIGURE_7.read_error * (1 / min(rates) + 1 / max(rates))
    room = 0.01 + error * max(FACTS[name].values["normalized_throughput"])
    return Absolute(room, "cut off after two decimals, and the reading of Figure 7")


@produces(
    *(exact("eq-batch-time", f"b{batch}", Relative(1e-9), _equation_1(batch), unit="",
            text=f"batch {batch}, p 8, micro-batches {', '.join(map(str, SIZES))}, t_f + t_b from Figure 7")
      for batch in FIGURE_8),
    *(derived(name, "normalized_throughput", _plotted(name), unit="", text="from Figure 7's throughputs")
      for name in FIGURE_8.values()),
    derived("text-figure8-optimum", "micro_batch", Equal(), lambda facts: (4, 4), unit="",
            text="best of Figure 8 as recomputed, batch 128 and 512"),
    derived("text-microbatch-gain-single", "throughput_factor_up_to", Rounding(), text="best over micro-batch 1"),
    exact("eq-microbatches", "table1", Equal(), at_rows("eq-microbatches", tuple(TABLE_1)), unit="",
          text=f"micro-batches of the recipes, {names(tuple(TABLE_1))}"),
    minutes=0.03,
)
def figure8(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.traces import recipe

    best = []
    for batch, name in FIGURE_8.items():
        times = [batch_time(batch, b) for b in SIZES]
        yield Result(f"eq-batch-time/b{batch}", tuple(times), detail="makespan of the schedule played")
        relative = tuple(times[0] / time for time in times)
        best.append(SIZES[relative.index(max(relative))])
        yield Result(f"{name}/normalized_throughput", relative,
                     detail="makespans of the schedule whose stages take Figure 7's times")
    yield Result("text-figure8-optimum/micro_batch", tuple(best))
    rates = FIGURE_7.values["tflops_per_gpu"]
    yield Result("text-microbatch-gain-single/throughput_factor_up_to", max(rates) / rates[0])
    yield Result("eq-microbatches/table1", tuple(recipe(row).micro_batches for row in TABLE_1),
                 detail="of what one data rank's pipeline runs in a step")


PRODUCERS = (figure8,)
