"""Draws schedules as Figures 3 and 4 of arXiv:2104.04473 do: a row per device, a cell per action, grey where it idles.

    python -m common.pipeline.draw 1f1b interleaved zb-h1 -p 4 -v 2 -m 8 -o schedules.png

Devices, chunks and micro-batches are numbered from 1, as there. Without a file the drawing is text.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import numpy as np
import tyro

from common.claims.target import PICTURES, check_target
from common.pipeline.schedule import KINDS, NAMES, Schedule
from common.pipeline.schedules import TRAINING, make
from common.pipeline.simulate import Costs, Simulation, simulate

TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved 1F1B", "zb-h1": "ZB-H1",
          "forward_only": "Forward only"}
COLOURS = {"forward": "#0072b2", "backward": "#009e73", "input_gradient": "#009e73", "weight_gradient": "#e69f00"}
IDLE = "#d9d9d9"
PALEST = 0.62  # how much white the last chunk's colour holds
CELL, ROW, HEAD = 0.2, 0.3, 0.7  # inches: width of the shortest action, height of a device, of title and axis
NARROWEST, WIDEST = 7.5, 24.0  # inches
DPI = 160
DEVICES, COLUMNS = int(2**16 / DPI / ROW) - 50, int(WIDEST * DPI)
"""Most devices, whose rows fit the 2^16 pixels of matplotlib's pictures, and most times the shortest action, a pixel each."""
LARGEST, SMALLEST = 9.0, 4.5  # points
DIGIT = 0.64  # a digit's width over the size of its font
AIR, INCH = 2.5, 72  # points: beside a number in its cell; in an inch


def draw(schedules: Schedule | Sequence[Schedule], costs: Costs | list[Costs], target) -> None:
    """Draws schedules, one above the other, on one time axis.

    costs: as `simulate` takes them, one for all schedules, or a list with one for each (so those of single actions
    are a tuple). target: the file to write, its format by its suffix, or, for one schedule, matplotlib axes.
    """
    schedules = [schedules] if isinstance(schedules, Schedule) else list(schedules)
    costs = costs if isinstance(costs, list) else [costs] * len(schedules)
    played = [simulate(schedule, cost) for schedule, cost in zip(schedules, costs, strict=True)]
    if isinstance(target, str | Path):
        _write(played, Path(target))
    else:
        (one,) = played
        cells = _cells(one)
        _rows(target, one, cells, float(one.makespan))
        _numbers(target, cells)


def text(schedule: Schedule, costs: Costs) -> str:
    """One line per device for a terminal. F3b is the forward pass of micro-batch 3 through chunk 2 (b).

    The shortest action has room for its name; longer ones go on with dashes, and a device that idles shows dots.
    """
    return _text(simulate(schedule, costs))


class Cells(NamedTuple):
    """Arrays (n,): time at which each action starts and how long it takes, its rank, kind code, chunk, micro-batch."""

    start: np.ndarray
    time: np.ndarray
    rank: np.ndarray
    kind: np.ndarray
    chunk: np.ndarray
    micro_batch: np.ndarray


def _cells(one: Simulation) -> Cells:
    """The actions that take any time."""
    start, end = (np.concatenate(times).astype(float) for times in (one.start, one.end))
    actions = np.concatenate(one.schedule.actions)
    rank = np.repeat(np.arange(one.schedule.ranks), [len(times) for times in one.start])
    shown = end > start
    return Cells(*(part[shown] for part in (start, end - start, rank, *actions.T[:3])))


def _write(played: list[Simulation], path: Path) -> None:
    from matplotlib.figure import Figure

    longest = max(float(one.makespan) for one in played)
    cells, rows = [_cells(one) for one in played], [one.schedule.ranks for one in played]
    shortest = min((float(part.time.min()) for part in cells if len(part.time)), default=1.0)
    width = min(max(longest / shortest * CELL + 1, NARROWEST), WIDEST)
    figure = Figure(figsize=(width, sum(rows) * ROW + HEAD * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), squeeze=False, height_ratios=rows)[:, 0]
    for ax, one, part in zip(axes, played, cells, strict=True):
        _rows(ax, one, part, longest)
    for ax in axes[:-1]:
        ax.set_xlabel("")
    figure.draw_without_rendering()  # settles how wide the axes are
    for ax, part in zip(axes, cells, strict=True):
        _numbers(ax, part)
    figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _shade(kind: str, chunk: int, chunks: int) -> tuple[float, ...]:
    """Red, green and blue from 0 to 1: dark for the first chunk, pale for the last."""
    pale = PALEST * chunk / max(chunks - 1, 1)
    return tuple((1 - pale) * int(COLOURS[kind][i:i + 2], 16) / 255 + pale for i in (1, 3, 5))


def _rows(ax, one: Simulation, cells: Cells, longest: float) -> None:
    """Cells, bubbles, title and legend."""
    from matplotlib.collections import PolyCollection
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    ranks, chunks = one.schedule.ranks, one.schedule.chunks
    ax.barh(range(ranks), float(one.makespan), 0.92, color=IDLE, linewidth=0)
    left, right, low, high = cells.start, cells.start + cells.time, cells.rank - 0.46, cells.rank + 0.46
    corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
    kinds = np.unique(cells.kind).tolist()
    shades = {(kind, c): _shade(NAMES[kind], c, chunks) for kind in kinds for c in range(chunks)}
    colours = [shades[pair] for pair in zip(cells.kind.tolist(), cells.chunk.tolist(), strict=True)]
    narrowest = ax.figure.get_figwidth() * INCH * cells.time.min(initial=longest) / longest
    ax.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white",
                                     linewidths=0.4 if narrowest > 3 else 0))

    numbers = f", chunks 1–{chunks}" if chunks > 1 else ""
    entries = [(tuple(Patch(color=shades[kind, c]) for c in range(chunks)), NAMES[kind].replace("_", " ") + numbers)
               for kind in kinds]
    entries.append(((Patch(color=IDLE),), "idle"))
    ax.legend(*zip(*entries, strict=True), loc="lower right", bbox_to_anchor=(1, 1), ncols=len(entries),
              borderaxespad=0.1, fontsize=8, frameon=False, handlelength=1.2 + 0.5 * (chunks - 1), handleheight=0.9, columnspacing=1.2,
              handletextpad=0.5, borderpad=0.2, handler_map={tuple: HandlerTuple(ndivide=None, pad=0)})
    ax.set_title(_title(one), loc="left", fontsize=9, pad=5)
    ax.set(xlim=(0, longest), ylim=(ranks - 0.5, -0.5))
    ax.set_yticks(range(ranks), [f"Device {rank + 1}" for rank in range(ranks)], fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=8)
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.set_xlabel("time", fontsize=8, loc="right", labelpad=-2)


def _title(one: Simulation) -> str:
    s = one.schedule
    chunks = f", v={s.chunks}" if s.chunks > 1 else ""
    return f"{TITLES.get(s.name, s.name)}: p={s.ranks}{chunks}, m={s.micro_batches}; idle / ideal time {float(one.idle_over_ideal):.3g}"


def _numbers(ax, cells: Cells) -> None:
    """Micro-batch numbers, all of one size, in the cells that have room for theirs."""
    if not len(cells.time):
        return
    box = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    row = box.height / abs(top - bottom) * INCH
    labels = [str(number + 1) for number in cells.micro_batch.tolist()]
    width = cells.time * box.width / (right - left) * INCH - AIR
    fits = width / (DIGIT * np.array([len(label) for label in labels]))
    shown = (fits >= SMALLEST) & (row >= SMALLEST)
    if not shown.any():
        return
    size = min(LARGEST, float(fits[shown].min()), 0.7 * row)
    chunks = int(cells.chunk.max()) + 1
    for i in np.flatnonzero(shown).tolist():
        red, green, blue = _shade(NAMES[cells.kind[i]], int(cells.chunk[i]), chunks)
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.58 else "black"
        ax.text(cells.start[i] + cells.time[i] / 2, cells.rank[i], labels[i], fontsize=size, color=ink, ha="center",
                va="center_baseline", clip_on=True).set_in_layout(False)


def _text(one: Simulation) -> str:
    cells = _cells(one)
    letters = [kind.letter for kind in KINDS.values()]
    labels = [f"{letters[kind]}{i + 1}{chr(ord('a') + c) if one.schedule.chunks > 1 else ''}" for kind, c, i in
              zip(cells.kind.tolist(), cells.chunk.tolist(), cells.micro_batch.tolist(), strict=True)]
    scale = (max(map(len, labels)) + 1) / cells.time.min() if labels else 1
    columns = np.rint(np.stack([cells.start, cells.start + cells.time]) * scale).astype(int)
    lines = [["."] * round(float(one.makespan) * scale) for _ in range(one.schedule.ranks)]
    for label, rank, left, right in zip(labels, cells.rank.tolist(), *columns.tolist(), strict=True):
        lines[rank][left:right] = label.ljust(right - left - 1, "-") + " "
    width = len(str(len(lines)))
    rows = [f"device {rank + 1:>{width}} | {''.join(line)}".rstrip() for rank, line in enumerate(lines)]
    return "\n".join([_title(one), *rows])


@dataclass(frozen=True)
class Draw:
    """Draw pipeline schedules: as text, or as a picture with -o."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """gpipe, 1f1b, interleaved, zb-h1; several are drawn one above the other."""
    p: Annotated[int, tyro.conf.arg(aliases=["-p"])] = 4
    """Pipeline size: how many devices."""
    v: Annotated[int, tyro.conf.arg(aliases=["-v"])] = 1
    """Chunks per device, for interleaved."""
    m: Annotated[int, tyro.conf.arg(aliases=["-m"])] = 8
    """Micro-batches."""
    forward: float = 1
    """Time of a forward pass through all the layers of a device; a chunk takes its v-th part."""
    backward: float = 2
    """Time of a backward pass through them."""
    weight: float = 1
    """The part of it that zb-h1 gives to the weight gradient."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The picture to write (.png, .svg, .pdf)."""
    force: bool = False
    """Replace a picture that exists."""
    json: bool = False
    """Print every action with its start and end, and the bubble, as JSON."""

    def check(self) -> None:
        if not self.names:
            raise ValueError(f"name a schedule: {', '.join(TRAINING)}")
        for what in ("forward", "backward"):
            if not 0 < (time := getattr(self, what)) < inf:
                raise ValueError(f"{what}={time:g}: a time, so a number above 0")
        if not 0 <= self.weight <= self.backward:
            raise ValueError(f"weight={self.weight:g}: a part of backward={self.backward:g}, so from 0 to that")
        if self.output:
            check_target(self.output, "--output", PICTURES, self.force)
        if self.output or not self.json:
            self._check_size()

    def _check_size(self) -> None:
        """Before any schedule is made; its length is that of a filled pipeline."""
        if (devices := self.p * len(self.names)) > DEVICES:
            raise ValueError(f"p={self.p}: {devices:,} rows are more than a drawing shows, {DEVICES:,}: use fewer devices, "
                             "or --json without a picture")
        split = (self.backward - self.weight, self.weight) if "zb-h1" in self.names else (self.backward,)
        shortest = min(time for time in (self.forward, *split) if time > 0)
        whole = self.m * self.v + self.p - 1 if "interleaved" in self.names else self.m + self.p - 1
        if (columns := whole * (self.forward + self.backward) / shortest) > COLUMNS:
            raise ValueError(f"m={self.m}, p={self.p}, v={self.v}: {columns:,.0f} times the shortest action are more than a "
                             f"drawing shows, {COLUMNS:,}: use fewer micro-batches or devices, or --json without a picture")

    def schedules(self) -> list[Schedule]:
        """v > 1 is for those that have chunks; a single schedule without is refused."""
        alone = len(self.names) == 1
        return [make(name, self.p, self.v if alone or name == "interleaved" else 1, self.m) for name in self.names]

    def costs(self, schedule: Schedule) -> dict[str, Fraction]:
        forward, backward, weight = (Fraction(str(time)) / schedule.chunks
                                     for time in (self.forward, self.backward, self.weight))
        return {"forward": forward, "backward": backward, "input_gradient": backward - weight,
                "weight_gradient": weight}

    def run(self) -> None:
        self.check()
        schedules = self.schedules()
        costs = [self.costs(schedule) for schedule in schedules]
        if self.output:
            draw(schedules, costs, self.output)
        played = [simulate(*pair) for pair in zip(schedules, costs, strict=True)]
        if self.json:
            print(json.dumps({"schedules": [_as_json(one) for one in played]}, indent=1))
        elif not self.output:
            print("\n\n".join(_text(one) for one in played))


def _as_json(one: Simulation) -> dict:
    s = one.schedule
    ranks = [[action._asdict() | {"start": float(start), "end": float(end)} for action, start, end
              in zip(s.of(rank), one.start[rank], one.end[rank], strict=True)] for rank in range(s.ranks)]
    return {"name": s.name, "p": s.ranks, "v": s.chunks, "m": s.micro_batches, "buffers": s.buffers,
            "makespan": float(one.makespan), "idle_over_ideal": float(one.idle_over_ideal),
            "idle_share": float(one.idle_share), "peak_in_flight": one.peak_in_flight, "ranks": ranks}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command: exit status 0, or 2 and one line for a wrong argument."""
    try:
        tyro.cli(Annotated[Draw, tyro.conf.FlagCreatePairsOff], prog="python -m common.pipeline.draw",
                 args=arguments).run()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
