"""Schedules played at the published sizes: bubbles, figure 6, micro-batches in flight (sections 2.2 and 3).

The schedules are those that the executor runs (common/pipeline); each action takes its time, messages take none.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from common.claims import Ask, AtMost, Equal, Quantity, Reading, Relative, Result, Rounding, produces
from common.claims.quantities import exact
from papers.interleaved_pipelining.sizes import (
    FACTS,
    INTERLEAVED,
    PIPELINED,
    TABLE_1,
    Formula,
    at_rows,
    formula,
    names,
    value,
    variables,
)

SAME = Relative(1e-12)
FORWARD, BACKWARD = 1, 2
"""Time of one chunk of a micro-batch: backward takes twice as long as forward (Figure 3)."""


@cache
def played(name: str, p: int, m: int, v: int = 1):
    """One schedule, simulated; with v chunks a device takes v times FORWARD for a micro-batch's forward pass."""
    from common.pipeline.schedules import make
    from common.pipeline.simulate import simulate

    return simulate(make(name, p, v, m), {"forward": FORWARD, "backward": BACKWARD})


def bubble(name: str, p: int, m: int, v: int = 1) -> Fraction:
    """Idle over ideal time."""
    return played(name, p, m, v).idle_over_ideal


def sizes(row: str) -> tuple[int, int]:
    """p and m of a row of table 1."""
    found = variables(row)
    return found["p"], found["m"]


def described(rows) -> str:
    """Sizes of the schedules, in words."""
    found = map(variables, rows)
    return "; ".join(f"p {row['p']}, m {row['m']}, v {row['v']}" for row in found)


@produces(
    *(exact("eq-bubble-1f1b", name, SAME, at_rows("eq-bubble-1f1b", PIPELINED), unit="",
            text=f"{title}, {names(PIPELINED)}", headline=name == "1f1b")
      for name, title in (("gpipe", "GPipe"), ("1f1b", "1F1B"))),
    exact("eq-bubble-interleaved", "interleaved", SAME, at_rows("eq-bubble-interleaved", INTERLEAVED), unit="",
          text=f"interleaved 1F1B, {names(INTERLEAVED)}"),
    minutes=0.05,
)
def bubble_fractions(ask: Ask) -> Iterator[Result]:
    for name in ("gpipe", "1f1b"):
        yield Result(f"eq-bubble-1f1b/{name}", tuple(bubble(name, *sizes(row)) for row in PIPELINED),
                     detail=f"idle over ideal time; {described(PIPELINED)}, taken without interleaving")
    found = tuple(bubble("interleaved", *sizes(row), variables(row)["v"]) for row in INTERLEAVED)
    yield Result("eq-bubble-interleaved/interleaved", found, detail=described(INTERLEAVED))


def _lost(rows, chunks: bool) -> Formula:
    """t_pb by the text of section 2.2, in times of a chunk's forward pass."""
    def times(facts) -> tuple[float, ...]:
        found = [variables(row) for row in rows]
        whole = [(row["p"] - 1) * (FORWARD + BACKWARD) * (row["v"] if chunks else 1) for row in found]
        return tuple(time / row["v"] if chunks else time for time, row in zip(whole, found, strict=True))
    return times


def _ideal(facts) -> tuple[float, ...]:
    return tuple(sizes(row)[1] * (FORWARD + BACKWARD) for row in PIPELINED)


TIMES = "t_f = 1 and t_b = 2"


@produces(
    exact("eq-bubble-time", "default", SAME, _lost(PIPELINED, chunks=False), unit="",
          text=f"bubble of 1F1B, {TIMES}, {names(PIPELINED)}"),
    exact("eq-bubble-time", "ideal", SAME, _ideal, unit="", text=f"ideal time, {TIMES}, {names(PIPELINED)}"),
    exact("eq-bubble-time", "interleaved", SAME, _lost(INTERLEAVED, chunks=True), unit="",
          text=f"bubble of interleaved 1F1B, t_f = v and t_b = 2v, {names(INTERLEAVED)}"),
    exact("text-flush-share", "percent_of_time_up_to", Rounding(), text="idle share of 1F1B with p = m = 64"),
    minutes=0.01,
)
def bubble_times(ask: Ask) -> Iterator[Result]:
    plain = [played("1f1b", *sizes(row)) for row in PIPELINED]
    yield Result("eq-bubble-time/default", tuple(run.makespan - run.busy[0] for run in plain),
                 detail="makespan less what a rank computes")
    yield Result("eq-bubble-time/ideal", tuple(run.busy[0] for run in plain), detail="what a rank computes")
    runs = [played("interleaved", *sizes(row), variables(row)["v"]) for row in INTERLEAVED]
    yield Result("eq-bubble-time/interleaved", tuple(run.makespan - run.busy[0] for run in runs))
    share = played("1f1b", 64, 64).idle_share
    yield Result("text-flush-share/percent_of_time_up_to", 100 * share,
                 detail="with as many micro-batches as stages, the stages of the 1008B model")


FIGURE_6 = tuple(entry.id for entry in FACTS if entry.id.startswith("figure6-"))


def _figure6(source: str) -> tuple[float, ...]:
    """The simulated bubble at each data-parallel size that is plotted."""
    config = FACTS[source].config
    n, batch = config["gpus"], config["batch_over_microbatch"]
    return tuple(bubble("1f1b", n // d, batch // d) for d in FACTS[source].values["data_parallel"])


FIGURE_14, FIGURE_13 = ("figure14-b32", "figure14-b512"), ("figure13-b32", "figure13-b128")


def _against(axis: str) -> Formula:
    """The bubble by section 3 at the points of figure 13 (tensor size) or 14 (data size)."""
    def points(facts) -> tuple[float, ...]:
        if axis == "dp":
            return tuple(value("eq-bubble-vs-dp", n=64, d=d, b_prime=facts[name].config["global_batch"])
                         for name in FIGURE_14 for d in facts[name].values["dp"])
        return tuple(value("eq-bubble-vs-tp", n=64, t=t, m=facts[name].config["global_batch"])
                     for name in FIGURE_13 for t in facts[name].values["tp"])
    return points


@produces(
    *(exact(name, "bubble_fraction", Reading(), unit="", text="at each data-parallel size") for name in FIGURE_6),
    exact("eq-bubble-vs-dp", "figure14", SAME, _against("dp"), unit="", text="at the points of Figure 14, b 1"),
    exact("eq-bubble-vs-tp", "figure13", SAME, _against("tp"), unit="", text="at the points of Figure 13, b 1"),
    minutes=0.05,
)
def figure6(ask: Ask) -> Iterator[Result]:
    for name in FIGURE_6:
        yield Result(f"{name}/bubble_fraction", _figure6(name), detail="1F1B with p = n/d and m = b'/d")
    for axis, rows in (("dp", FIGURE_14), ("tp", FIGURE_13)):
        found = tuple(bubble("1f1b", p, FACTS[name].config["global_batch"] // (64 // p if axis == "dp" else 1))
                      for name in rows for p in FACTS[name].values["pp"])
        yield Result(f"eq-bubble-vs-{axis}/figure{rows[0][6:8]}", found)


LIMITS = range(1, 25)


def _stashed(key: str) -> Quantity:
    title, tolerance, which = {"gpipe": ("GPipe: m", Equal(), 1), "1f1b": ("1F1B: at most p", AtMost(), 0)}[key]
    return exact("rule-stash-1f1b", key, tolerance, lambda facts: tuple(sizes(row)[which] for row in PIPELINED),
                 unit="", text=f"{title}, {names(PIPELINED)}")


@produces(
    _stashed("gpipe"),
    _stashed("1f1b"),
    exact("rule-interleaved-divisibility", "accepted", Equal(),
          lambda facts: tuple(int(m % 4 == 0) for m in LIMITS), unit="",
          text=f"schedules for p 4, v 2 and m 1 to {LIMITS[-1]} (1 made, 0 refused)"),
    minutes=0.01,
)
def in_flight(ask: Ask) -> Iterator[Result]:
    from common.pipeline.schedules import interleaved

    for name in ("gpipe", "1f1b"):
        peaks = [played(name, *sizes(row)).peak_in_flight for row in PIPELINED]
        yield Result(f"rule-stash-1f1b/{name}", tuple(map(max, peaks)),
                     detail="most of any device; by device, "
                            f"{TABLE_1[PIPELINED[1]]}: {', '.join(map(str, peaks[1]))}")

    def made(m: int) -> bool:
        try:
            return interleaved(4, 2, m).micro_batches == m
        except ValueError:
            return False

    yield Result("rule-interleaved-divisibility/accepted", tuple(int(made(m)) for m in LIMITS),
                 detail=f"rule: {formula('rule-interleaved-divisibility', 0)} = 0")


PRODUCERS = (bubble_fractions, bubble_times, figure6, in_flight)
