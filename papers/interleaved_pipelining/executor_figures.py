"""Bubbles of the real executor beside the formula: a figure of the report, and a table of the README."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.claims import Figure
from common.claims.drawing import BLUE, EDGE, GREEN, ORANGE, drawing
from common.claims.judge import Row
from papers.interleaved_pipelining.executor_bubble import (
    BACKWARD,
    COST,
    FORWARD,
    GRID,
    Case,
    bubble,
    formula_ms,
    key_of,
    source_of,
    waits,
)

COLOURS = {1: BLUE, 2: ORANGE, 4: GREEN}
DRAWN = tuple(case for case in GRID if case[0] != "gpipe")
NOT_RUN = "Not run yet."


def id_of(case: Case) -> str:
    return f"{source_of(case)}/{key_of(case, quick=False)}"


def bubbles(case: Case, ours: Sequence[float]) -> list[float]:
    """Idle over ideal time at each m, from iteration times in ms."""
    unit = 1e3 * case[2] * sum(waits(case[1]))
    return [time / (m * unit) - 1 for m, time in zip(GRID[case], ours, strict=True)]


def draw(path: Path, rows: Mapping[str, Row]) -> None:
    """One panel for each pipeline size: the formula as lines, what the executor took as points with their spread."""
    sizes = sorted({p for _, p, _ in DRAWN})
    with drawing(path, len(sizes), (8, 3.4), sharey=True) as (figure, axes):
        for axis, p in zip(axes, sizes, strict=True):
            for case in (case for case in DRAWN if case[1] == p):
                result, v, ms = rows[id_of(case)].result, case[2], GRID[case]
                fine = [ms[0] * (ms[-1] / ms[0]) ** (i / 100) for i in range(101)]
                axis.plot(fine, [bubble(case, m) for m in fine], color=COLOURS[v], linewidth=1)
                found = bubbles(case, result.ours)
                low, high = (bubbles(case, ends) for ends in zip(*result.spread, strict=True))
                errors = [[y - a for y, a in zip(found, low, strict=True)], [b - y for y, b in zip(found, high, strict=True)]]
                axis.errorbar(ms, found, errors, fmt="o", markersize=4, color=COLOURS[v],
                              label=f"v = {v}" if p == sizes[-1] else None)
            axis.set_xscale("log", base=2)
            axis.set_xticks((2, 4, 8, 16, 32), (2, 4, 8, 16, 32))
            axis.set(title=f"p = {p}", xlabel="micro-batches m", yscale="log")
        axes[0].set(ylabel="bubble, idle over ideal time")
        axes[-1].plot([], [], color=EDGE, linewidth=1, label="(p - 1)/(v m)")
        axes[-1].legend()


FIGURE = Figure(
    "executor_bubble",
    f"Section 2.2: the bubble of the real executor, on gloo ranks of one machine whose stages wait exactly "
    f"{1e3 * FORWARD:g} and {1e3 * BACKWARD:g} ms, twice that on eight ranks (points: median and range), against the formula (lines).",
    tuple(id_of(case) for case in DRAWN),
    draw,
)


def block(rows: Sequence[Row]) -> str:
    """Iterations over the formula's at every point, and what the executor takes for an action."""
    found = {row.claim.id: row for row in rows if row.result is not None}
    if any(id_of(case) not in found for case in GRID):
        return NOT_RUN
    micro_batches = sorted({m for ms in GRID.values() for m in ms})
    lines = ["| schedule | p | v | " + " | ".join(f"m = {m}" for m in micro_batches) + " |",
             "| --- | ---: | ---: |" + " ---: |" * len(micro_batches)]
    for case, ms in GRID.items():
        over = {m: time / formula_ms(case, m) for m, time in zip(ms, found[id_of(case)].result.ours, strict=True)}
        cells = [f"{100 * (over[m] - 1):+.1f} %" if m in over else "" for m in micro_batches]
        lines.append(f"| {case[0]} | {case[1]} | {case[2]} | " + " | ".join(cells) + " |")
    costs = [found.get(f"{COST}/{key}") for key in ("executor_action", "executor_bookkeeping")]
    if all(costs):
        own, alone = (row.result.ours for row in costs)
        lines += ["", f"The executor's own cost: {own:.0f} µs of a processor for an action, messages included; {alone:.0f} µs "
                      "without messages, over calling the stages by hand."]
    return "\n".join(lines)
