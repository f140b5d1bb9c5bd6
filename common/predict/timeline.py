"""The timeline of a predicted iteration: every action of every pipeline rank, and what follows the passes.

As a Chrome trace it opens in Perfetto or chrome://tracing: a process for each rank, with its passes, its sums of gradients
and the bytes it keeps. As a picture it has the look of common/pipeline/draw.py.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.claims.target import PICTURES
from common.pipeline.draw import COLOURS, IDLE, PALEST
from common.pipeline.stages import cuts
from common.predict.iteration import Prediction
from common.predict.memory import held
from common.predict.update import DATA, TIED

UPDATE, GATHER = "norm, clipping and update", "gathering of parameters"
SHADES = {DATA: "#cc79a7", TIED: "#d55e00", UPDATE: "#56b4e9", GATHER: "#f0e442"}
PASSES = "passes"
LANES = (PASSES, DATA, TIED)
MICRO = 1e6
TRACE = ".json"
ENDINGS = (TRACE, *PICTURES)


@dataclass(frozen=True)
class Event:
    """Seconds from the start of the iteration. lane: one of LANES; those of gradients run beside the passes and each other.
    chunk and micro_batch: of an action."""

    rank: int
    lane: str
    name: str
    start: float
    end: float
    chunk: int | None = None
    micro_batch: int | None = None


def events(found: Prediction) -> Iterator[Event]:
    """Rank after rank, each lane in order."""
    plan, ending = found.played.schedule, found.ending
    for rank in range(plan.ranks):
        for action, start, end in zip(plan.of(rank), found.played.start[rank], found.played.end[rank], strict=True):
            yield Event(rank, PASSES, action.kind, float(start), float(end), action.chunk, action.micro_batch)
        for span in ending.sums[rank]:
            yield Event(rank, span.name, span.name, span.start, span.end)
        yield Event(rank, PASSES, UPDATE, ending.ready, ending.ready + ending.update)
        if ending.gather:
            yield Event(rank, PASSES, GATHER, ending.ready + ending.update, ending.end)


def chrome_trace(found: Prediction) -> dict:
    """The object to write as JSON (Trace Event Format); times in microseconds, memory in bytes."""
    grid, plan, records = found.recipe.grid, found.played.schedule, []
    borders = cuts(found.recipe.model.layers, plan.stages)
    for rank in range(plan.ranks):
        layers = ", ".join("{}-{}".format(*borders[plan.stage(rank, c)]) for c in range(plan.chunks))
        records.append({"ph": "M", "name": "process_name", "pid": rank,
                        "args": {"name": f"pipeline rank {rank} (global {grid.rank(pp=rank)}), layers {layers}"}})
        records += [{"ph": "M", "name": "thread_name", "pid": rank, "tid": i, "args": {"name": lane}}
                    for i, lane in enumerate(LANES)]
        kept = held(plan, found.stages, rank)
        records += [{"ph": "C", "name": "kept for backward", "pid": rank, "ts": float(end) * MICRO, "args": {"bytes": int(size)}}
                    for end, size in zip(found.played.end[rank], kept, strict=True)]
    records += [_record(event) for event in events(found)]
    return {"traceEvents": records, "displayTimeUnit": "ms",
            "otherData": {"recipe": found.recipe.name, "cluster": found.cluster, "seconds": found.seconds}}


def _record(event: Event) -> dict:
    shown = event.name if event.chunk is None else f"{event.name} {event.micro_batch}"
    args = {} if event.chunk is None else {"chunk": event.chunk, "micro_batch": event.micro_batch}
    return {"ph": "X", "name": shown, "cat": event.lane, "pid": event.rank, "tid": LANES.index(event.lane),
            "ts": event.start * MICRO, "dur": (event.end - event.start) * MICRO, "args": args}


def write(found: Prediction, path: Path) -> None:
    """A Chrome trace where the name ends in .json, else a picture."""
    if path.suffix == TRACE:
        path.write_text(json.dumps(chrome_trace(found), separators=(",", ":")))
    else:
        draw(found, path)


def draw(found: Prediction, path: Path) -> None:
    """A row for each pipeline rank; sums of gradients as a thin line below its passes."""
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    plan = found.played.schedule
    figure = Figure(figsize=(14, min(1.7 + 0.3 * plan.ranks, 30)), layout="constrained")
    ax = figure.subplots()
    ax.barh(range(plan.ranks), found.seconds, 0.92, color=IDLE, linewidth=0)
    boxes, colours, used = [], [], {}
    for event in events(found):
        if event.end == event.start:
            continue
        low, high = (-0.46, 0.46) if event.lane == PASSES else (0.3, 0.46)
        boxes.append([(event.start, event.rank + low), (event.start, event.rank + high),
                      (event.end, event.rank + high), (event.end, event.rank + low)])
        colours.append(used.setdefault((event.name, event.chunk), _colour(event, plan.chunks)))
    ax.add_collection(PolyCollection(boxes, facecolors=colours, linewidths=0))
    named = {name.replace("_", " "): colour for (name, chunk), colour in used.items() if not chunk}
    figure.legend(handles=[Patch(color=colour, label=name) for name, colour in {**named, "idle": IDLE}.items()],
                  loc="outside lower center", ncols=len(named) + 1, fontsize=8, frameon=False)
    ax.set_title(f"{found.recipe.name} on {found.cluster}: predicted {found.seconds:.3g} s", loc="left", fontsize=9)
    ax.set(xlim=(0, found.seconds), ylim=(plan.ranks - 0.5, -0.5), xlabel="seconds", ylabel="pipeline rank")
    ax.spines[["top", "left", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _colour(event: Event, chunks: int) -> tuple[float, ...] | str:
    """Dark for the first chunk, pale for the last."""
    if event.chunk is None:
        return SHADES[event.name]
    pale = PALEST * event.chunk / max(chunks - 1, 1)
    return tuple((1 - pale) * int(COLOURS[event.name][i:i + 2], 16) / 255 + pale for i in (1, 3, 5))
