"""Predicted: times of one layer and of whole iterations on the cluster that the paper used, from traces priced on its record.

One constant is fitted to this paper, on one row of table 5 (common/predict/constants.toml); every other row is a test.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from common.claims import Absolute, Ask, Relative, Result, produces
from common.claims.quantities import predicted
from common.predict.series import Predicted, Series
from papers.sequence_parallelism.sizes import SIZES

LAYER, ITERATION, POINTS = Relative(0.07), Relative(0.09), 4
POLICIES = {"baseline": (False, "none"), "sequence-parallel": (True, "none"), "full-recompute": (False, "full"),
            "selective": (False, "selective"), "selective-sequence": (True, "selective")}
"""Rows of table 4: sequence parallelism and recomputation."""
FULL, PRESENT = (False, "full"), (True, "selective")
ITERATIONS = {"iteration_s_full_recompute": FULL, "iteration_s_present_work": PRESENT}
BARS = {"full": FULL, "present": PRESENT}
PARTS = ("forward", "backward", "recompute", "total")
DP8, ABSTRACT, KEPT = "text-dp8-530b", "text-abstract-530b", "text-microbatch-recompute"
REPLICAS = 8


def _published(size: str, policy: tuple[bool, str], replicas: int = 1):
    """The recipe of a model, or of several replicas each with its own batch (section 6.3)."""
    from papers.sequence_parallelism.recipes import published

    one = published(size, *policy)
    return replace(one, grid=replace(one.grid, dp=replicas), training=replace(one.training, batch=replicas * one.training.batch))


def _series(source: str, key: str, table: str, *made) -> Series:
    return Series(source, key, table, lambda: (_published(*made),), "s")


PREDICTED = Predicted("sequence_parallelism", "selene", (
    *(_series(f"table5-{size}", key, "Table 5", size, policy)
      for size in SIZES for key, policy in ITERATIONS.items()),
    _series(DP8, "iteration_s_dp8", "Section 6.3", "530b", PRESENT, REPLICAS),
))


@cache
def layer(size: str, sequence_parallel: bool, recompute: str) -> tuple[float, float]:
    """Milliseconds of one layer's forward and backward, recomputation with the latter."""
    from common.predict.pieces import Way, pieces
    from common.predict.stages import Timer

    recipe = _published(size, (sequence_parallel, recompute))
    way = Way.of(recipe.execution, recipe.grid.tp, recipe.training.micro_batch, recompute)
    timer = Timer(PREDICTED.costs(), recipe.grid)
    one = pieces(recipe.model, recipe.model.layers.units[0], way).layer
    return tuple(1e3 * timer.spent(each).total for each in (one.forward, one.backward))


@produces(
    *(predicted(f"table4-{row}", f"{part}_ms", LAYER) for row in POLICIES for part in ("forward", "backward", "combined")),
    minutes=0.05,
)
def table4_times(ask: Ask) -> Iterator[Result]:
    for row, policy in POLICIES.items():
        forward, backward = layer("22b", *policy)
        for part, time in (("forward", forward), ("backward", backward), ("combined", forward + backward)):
            published = ask.facts[f"table4-{row}"].values[f"{part}_ms"]
            yield Result(f"table4-{row}/{part}_ms", time, cause=f"{time - published:+.2f} ms on the record's rates")


@produces(
    *(predicted(f"figure8-{size}", f"{bar}_{part}_percent", Absolute(POINTS, f"{POINTS} points of the baseline's time"))
      for size in SIZES for bar in BARS for part in PARTS),
    minutes=0.1,
)
def figure8_times(ask: Ask) -> Iterator[Result]:
    for size in SIZES:
        whole = sum(layer(size, False, "none"))
        for bar, (sequence_parallel, recompute) in BARS.items():
            forward, kept = layer(size, sequence_parallel, "none")
            again = layer(size, sequence_parallel, recompute)[1] - kept
            for part, time in zip(PARTS, (forward, kept, again, forward + kept + again), strict=True):
                id, ours = f"figure8-{size}/{bar}_{part}_percent", 100 * time / whole
                apart = ours - ask.facts[f"figure8-{size}"].values[f"{bar}_{part}_percent"]
                yield Result(id, ours, cause=f"{apart:+.1f} points; one layer's baseline takes {whole:.1f} ms here")


@produces(
    *(predicted(series.source, series.key, ITERATION,
                text={"iteration_s_full_recompute": "iteration with full recomputation"}.get(
                    series.key, "iteration of the present work")) for series in PREDICTED),
    predicted(ABSTRACT, "mfu_percent_full_recompute", ITERATION),
    minutes=0.4,
)
def iteration_times(ask: Ask) -> Iterator[Result]:
    for series in PREDICTED:
        if ask.wants(series.id):
            (ours,), (published,) = series.predicted(PREDICTED), series.published(ask.facts)
            yield Result(series.id, ours, detail=PREDICTED.note(series),
                         cause=f"{ours - published:+.2f} s: {PREDICTED.of(*series.recipes).longest()}")
    if ask.wants(f"{ABSTRACT}/mfu_percent_full_recompute"):
        found = PREDICTED.of(_published("530b", FULL, REPLICAS))
        yield Result(f"{ABSTRACT}/mfu_percent_full_recompute", 100 * found.utilisation(),
                     detail="model FLOPs, attention whole, of 312 TFLOP/s", cause=found.longest())


GAINS = ("175b", "530b")


@produces(
    *(predicted(f"{KEPT}-{size}", "mfu_percent", ITERATION) for size in GAINS),
    *(predicted(f"{KEPT}-{size}", "gain_points", Absolute(0.5, "half a point"),
                lambda facts, size=size: facts[f"{KEPT}-{size}"].values["mfu_gain_points"], unit="points",
                text="gain in MFU from micro-batches that keep everything") for size in GAINS),
    minutes=0.1,
)
def kept_micro_batches(ask: Ask) -> Iterator[Result]:
    from common.pipeline.simulate import simulate
    from common.pipeline.windows import keep_some
    from papers.sequence_parallelism.micro_batch_windows import windows

    for size in GAINS:
        found, kept = (PREDICTED.of(_published(size, (True, policy))) for policy in ("selective", "none"))
        plan = keep_some(found.played.schedule, windows(size))
        seconds = found.seconds - found.played.makespan + simulate(plan, _costs(plan, found, kept)).makespan
        ours = 100 * found.work.model / seconds / found.ranks / found.peak
        gain = ours - 100 * found.utilisation()
        yield Result(f"{KEPT}-{size}/mfu_percent", ours, cause=f"{found.seconds:.2f} s without it, {seconds:.2f} s with it")
        yield Result(f"{KEPT}-{size}/gain_points", gain,
                     cause="windows as large as 80 GB allow by this project's own count of bytes")


def _costs(plan, found, kept) -> list[list[float]]:
    """Seconds of each action: backward of what was kept does without recomputation."""
    from common.pipeline.schedule import KEEP

    times = []
    for rank in range(plan.ranks):
        whole, mine = set(), []
        for action in plan.of(rank):
            stage, key = plan.stage(rank, action.chunk), (action.chunk, action.micro_batch)
            if action.flags & KEEP:
                whole.add(key)
            mine.append((kept if key in whole else found).times[stage].of(action.kind))
        times.append(mine)
    return times


PRODUCERS = (table4_times, figure8_times, iteration_times, kept_micro_batches)
