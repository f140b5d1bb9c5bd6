"""Appendix C: recomputation chosen micro-batch by micro-batch, as far as memory goes.

How many micro-batches a rank may keep whole is what its device has left, over what a kept one adds.
"""

from collections.abc import Iterator
from functools import cache

from common.claims import Ask, AtLeast, Equal, Result, produces
from common.claims.published import Facts
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, NAMES, SIZES
from papers.sequence_parallelism.stage_memory import in_flight

EXAMPLE, WINDOW = "figure10-example", "text-microbatch-window"
GAINS = ("175b", "530b")
"""The models whose utilisation appendix C gives with this technique."""


def _stored(facts: Facts) -> tuple[int, ...]:
    """The first of each window, numbered from 1."""
    values = facts[EXAMPLE].values
    return tuple(i + 1 for i in range(values["microbatches"]) if i % values["window"] < values["stored_per_window"])


def _share(size: str):
    def implied(facts: Facts) -> float:
        """Percent of the recomputation gone, if that is where the gain in utilisation comes from.

        Utilisation goes as 1 / time; the times of one layer are those of figure 8, percent of its baseline. The gain is
        the least that rounds to the printed one.
        """
        gained, times = facts[f"text-microbatch-recompute-{size}"].values, facts[f"figure8-{size}"].values
        faster = (gained["mfu_gain_points"] - 0.05) / gained["mfu_percent"]
        return round(100 * faster * times["present_total_percent"] / times["present_recompute_percent"], 2)
    return implied


@produces(
    *(exact(WINDOW, size, Equal(), lambda facts, size=size: in_flight(facts, size), unit="",
            text=f"{NAMES[size]}, every stage, under 1F1B") for size in SIZES),
    exact(EXAMPLE, "window", Equal(), text="micro-batches in flight on the first stage"),
    exact(EXAMPLE, "stored_per_window", Equal(), text="kept whole among as many in a row, first stage"),
    exact(EXAMPLE, "stored", Equal(), _stored, unit="", text="micro-batches kept whole on the first stage"),
    *(exact(f"text-microbatch-recompute-{size}", "kept_percent", AtLeast(), _share(size), unit="%",
            text=f"{NAMES[size]}, recomputation that 80 GB make needless on the rank with the least room; the gain needs "
                 "this much by Figure 8's times") for size in GAINS),
    minutes=0.05,
)
def micro_batch_windows(ask: Ask) -> Iterator[Result]:
    from common.pipeline.simulate import peak_held
    from common.pipeline.windows import keep_some, recomputed
    from papers.sequence_parallelism.in_flight import schedule

    for size in SIZES:
        yield Result(f"{WINDOW}/{size}", peak_held(schedule(size, chunks=1)))
    example = kept_in_example()
    window, whole = example["window"], example["stored"]
    per_window = {sum(i + 1 in whole for i in range(first, first + window)) for first in range(example["runs"])}
    yield Result(f"{EXAMPLE}/window", window)
    yield Result(f"{EXAMPLE}/stored_per_window", *per_window, detail=f"in each of the {example['runs']} runs of {window}")
    yield Result(f"{EXAMPLE}/stored", whole)
    for size in GAINS:
        if ask.wants(id := f"text-microbatch-recompute-{size}/kept_percent"):
            plan, kept = schedule(size), windows(size)
            left = recomputed(keep_some(plan, kept))
            each = ", ".join(f"{some} of {most}" for some, most in zip(kept, peak_held(plan), strict=True))
            yield Result(id, float(100 * (1 - max(left))),
                         detail=f"passes kept whole of those in flight, rank by rank: {each}; left to recompute: "
                                f"{float(100 * sum(left) / len(left)):.1f} % of all passes, mean over ranks, and "
                                f"{float(100 * max(left)):.1f} % on the rank with the most; a framework's own memory is not counted")


def kept_in_example() -> dict:
    """Figure 10's pipeline: micro-batches in flight and those kept on its first stage, from 1; runs of that length."""
    from common.pipeline.schedule import KEEP
    from common.pipeline.schedules import one_f_one_b
    from common.pipeline.simulate import peak_held
    from common.pipeline.windows import keep_some

    values = FACTS[EXAMPLE].values
    plan = one_f_one_b(values["pp"], values["microbatches"])
    flagged = keep_some(plan, (values["stored_per_window"],) * plan.ranks)
    stored = tuple(a.micro_batch + 1 for a in flagged.of(0) if a.kind == "forward" and a.flags & KEEP)
    window = peak_held(plan)[0]
    return {"window": window, "stored": stored, "runs": values["microbatches"] - window + 1}


@cache
def windows(size: str) -> tuple[int, ...]:
    """Passes, each of a micro-batch through a chunk, that every rank can keep whole in 80 GB."""
    from common.pipeline.schedule import KEEP
    from common.pipeline.windows import largest_windows
    from papers.sequence_parallelism.in_flight import beyond_kept, schedule
    from papers.sequence_parallelism.traces import stage

    plan = schedule(size)
    device = FACTS["setup-cluster"].value("gpu_memory_gb") * 10**9

    def traced(number: int, technique: str):
        return stage(size, technique, number, plan.chunks)

    def passes(number: int, flags: int) -> int:
        return sum(traced(number, "tp-sp" if flags & KEEP else "tp-sp-selective").saved.values())

    room = []
    for rank in range(plan.ranks):
        mine = [traced(plan.stage(rank, chunk), technique) for chunk in range(plan.chunks)
                for technique in ("tp-sp", "tp-sp-selective")]
        state = sum(found.state_bytes for found in mine) / 2
        room.append(device - state - max(map(beyond_kept, mine)))
    return largest_windows(plan, room, passes)


PRODUCERS = (micro_batch_windows,)
