"""Measured here: iterations of the real executor whose stages wait exactly 20 ms and more, against section 2.2's formulas.

Published values are iteration times: t_id + t_pb of the formulas at the waits and sizes that run. Equal stages all end
their waits at once, so ranks that share a core hold each other up for what an action takes of it, a millisecond and
more after a sleep: eight ranks wait twice as long as four, for the two cores that this is made for.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from common.claims import Absolute, Ask, AtMost, Quantity, Relative, Result, produces
from common.claims.quantities import measured
from papers.interleaved_pipelining.sizes import value

FORWARD, BACKWARD = 0.02, 0.04
"""Seconds of one chunk's wait: backward takes twice as long as forward (Figure 3)."""
MANY = 4
"""Pipeline ranks from which on waits grow with their number."""
PLAIN, CHUNKED = "eq-bubble-1f1b", "eq-bubble-interleaved"
MICRO_BATCHES = (2, 4, 8, 16, 32)
GRID = {(name, p, v): tuple(m for m in MICRO_BATCHES if v == 1 or m % p == 0)
        for v, name in ((1, "1f1b"), (2, "interleaved"), (4, "interleaved")) for p in (2, 4, 8)}
GRID |= {("gpipe", 4, 1): MICRO_BATCHES}
QUICK = {("1f1b", 4, 1): (4, 8), ("interleaved", 4, 2): (4, 8)}
REPEATS = 3
WITHIN = 0.05
EQUAL_WORK = 0.08
"""Seconds of a rank's forward in the runs that do the same work in one, two and four chunks."""

Case = tuple[str, int, int]


def bubble(case: Case, m: int) -> float:
    """Idle over ideal time by the paper's formula."""
    _, p, v = case
    return value(PLAIN, p=p, m=m) if v == 1 else value(CHUNKED, p=p, m=m, v=v)


def waits(p: int) -> tuple[float, float]:
    """Forward and backward of one chunk on p ranks, seconds."""
    times = max(p / MANY, 1)
    return times * FORWARD, times * BACKWARD


def formula_ms(case: Case, m: int) -> float:
    """t_id (1 + bubble), milliseconds."""
    return 1e3 * m * case[2] * sum(waits(case[1])) * (1 + bubble(case, m))


def key_of(case: Case, quick: bool) -> str:
    name, p, v = case
    return f"executor_{name}_p{p}_v{v}" + ("_quick" if quick else "")


def source_of(case: Case) -> str:
    return PLAIN if case[2] == 1 else CHUNKED


def _quantity(case: Case, ms: Sequence[int], quick: bool = False) -> Quantity:
    name, p, v = case
    chunks = f", v {v}" if v > 1 else ""
    return measured(source_of(case), key_of(case, quick), Relative(WITHIN),
                    lambda facts: tuple(formula_ms(case, m) for m in ms), unit="ms",
                    text=f"iteration of the executor, {name}, p {p}{chunks}, m {', '.join(map(str, ms))}, waits of "
                         "{:g} and {:g} ms".format(*(1e3 * wait for wait in waits(p))))


def points(grid: Mapping[Case, Sequence[int]]):
    from papers.interleaved_pipelining.exact_wait import Point

    return {case: [Point(*case, m, *waits(case[1])) for m in ms] for case, ms in grid.items()}


def _cause(found: Mapping) -> str:
    """Where the time of iterations went that took longer than the formula says."""
    from common.device import physical_cores

    each = [(point, iteration) for point, times in found.items() for iteration in times]
    overran = statistics.mean(iteration.waited / point.ideal - 1 for point, iteration in each)
    busy = statistics.mean(1e6 * iteration.processor / point.actions for point, iteration in each)
    ranks = max(point.p for point in found)
    return (f"the waits themselves were {100 * overran:.1f} % too long, and each action took {busy:.0f} µs of a processor; "
            f"the rest passed while messages were on their way between {ranks} ranks on {physical_cores()} cores")


def wanted(grid: Mapping[Case, Sequence[int]], ask: Ask, quick: bool) -> dict[Case, list]:
    return {case: at for case, at in points(grid).items() if ask.wants(f"{source_of(case)}/{key_of(case, quick)}")}


def _results(cases: Mapping[Case, list], found: Mapping, quick: bool) -> Iterator[Result]:
    for case, at in cases.items():
        times = [[1e3 * iteration.seconds for iteration in found[point]] for point in at]
        bubbles = ", ".join(f"{statistics.median(t) / (1e3 * point.ideal) - 1:.3f} ({bubble(case, point.m):.3f})"
                            for t, point in zip(times, at, strict=True))
        yield Result(f"{source_of(case)}/{key_of(case, quick)}", tuple(map(statistics.median, times)),
                     spread=tuple((min(t), max(t)) for t in times),
                     detail=f"bubble, by formula in brackets: {bubbles}; median of {len(times[0])}",
                     cause=_cause({point: found[point] for point in at}))


LOST = "eq-bubble-time"
WORK_P, WORK_M, WORK_V = 4, 4, (1, 2, 4)


def _equal_work(v: int):
    from papers.interleaved_pipelining.exact_wait import Point

    name = "1f1b" if v == 1 else "interleaved"
    return Point(name, WORK_P, v, WORK_M, EQUAL_WORK / v, EQUAL_WORK * BACKWARD / FORWARD / v)


def _lost_ms(facts) -> tuple[float, ...]:
    """t_pb = (p - 1)(t_f + t_b)/v."""
    both = 1e3 * EQUAL_WORK * (1 + BACKWARD / FORWARD)
    return tuple((WORK_P - 1) * both / v for v in WORK_V)


SHORTEST_MS = 1e3 * EQUAL_WORK * (1 + BACKWARD / FORWARD) * (WORK_M + (WORK_P - 1) / WORK_V[-1])


@produces(
    *(_quantity(case, ms, quick=True) for case, ms in QUICK.items()),
    measured(LOST, "executor_lost", Absolute(WITHIN * SHORTEST_MS, "5 % of the shortest iteration"), _lost_ms, unit="ms",
             text=f"lost to the bubble, the same work of a rank in {', '.join(map(str, WORK_V))} chunks, p {WORK_P}, "
                  f"m {WORK_M}", headline=True),
    minutes=0.25,
)
def executor_bubble(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.exact_wait import iterations

    cases, at = wanted(QUICK, ask, quick=True), [_equal_work(v) for v in WORK_V]
    asked = ask.wants(f"{LOST}/executor_lost")
    found = iterations([*(point for some in cases.values() for point in some), *(at if asked else [])],
                       REPEATS if ask.full else 1)
    yield from _results(cases, found, quick=True)
    if asked:
        lost = [[1e3 * (iteration.seconds - point.ideal) for iteration in found[point]] for point in at]
        yield Result(f"{LOST}/executor_lost", tuple(map(statistics.median, lost)),
                     spread=tuple((min(t), max(t)) for t in lost),
                     detail=f"iteration less {1e3 * at[0].ideal:g} ms of waits; a chunk's forward waits "
                            f"{', '.join(f'{1e3 * point.forward:g}' for point in at)} ms",
                     cause=_cause({point: found[point] for point in at}))


@produces(*(_quantity(case, ms) for case, ms in GRID.items()), minutes=8, full=True)
def executor_bubbles(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.exact_wait import iterations

    cases = wanted(GRID, ask, quick=False)
    yield from _results(cases, iterations([point for at in cases.values() for point in at], REPEATS), quick=False)


COST = "eq-batch-time"
MOST_US = WITHIN * 1e6 * FORWARD
"""Microseconds: more than this for each action, and the shortest waits here would be 5 % too long."""
BUSY = ("1f1b", 4, 1, 64)


@produces(
    measured(COST, "executor_action", AtMost(MOST_US), lambda facts: 0.0, unit="µs",
             text="what the executor itself takes of a processor for an action, messages included; the formula "
                  "has none"),
    measured(COST, "executor_bookkeeping", AtMost(MOST_US), lambda facts: 0.0, unit="µs",
             text="the same on one rank, without messages, over calling the stages by hand"),
    minutes=0.1,
)
def executor_cost(ask: Ask) -> Iterator[Result]:
    from common.layout import SERIAL
    from papers.interleaved_pipelining.exact_wait import Point, Waiting, iterations

    rounds = 31 if ask.full else 11
    busy = Point(*BUSY, 0.0, 0.0)
    times = iterations([busy], rounds)[busy]
    each = [1e6 * iteration.processor / busy.actions for iteration in times]
    wall = statistics.median(1e6 * iteration.seconds / busy.actions for iteration in times)
    yield Result(f"{COST}/executor_action", statistics.median(each), spread=(min(each), max(each)),
                 detail=f"stages without waits, p {busy.p}, m {busy.m}, mean of the ranks, median of {rounds} "
                        f"iterations; with the ways of messages {wall:.0f} µs of the clock",
                 cause="the processor time of ranks that wake each other up grows when other programs run")
    alone, point = Waiting(SERIAL, 1), Point("1f1b", 1, 1, 64, 0.0, 0.0)
    pairs = [(alone.run(point), alone.plainly(point)) for _ in range(3 * rounds)][3:]
    more = [1e6 * (run.processor - plain.processor) / point.actions for run, plain in pairs]
    plain = statistics.median(1e6 * one.processor / point.actions for _, one in pairs)
    yield Result(f"{COST}/executor_bookkeeping", statistics.median(more), spread=(min(more), max(more)),
                 detail=f"m {point.m}, {len(pairs)} alternated pairs; by hand an action takes {plain:.0f} µs",
                 cause="the processor time of single actions was disturbed by other programs")


PRODUCERS = (executor_bubble, executor_cost, executor_bubbles)
