"""What a search over layouts found: the best, why the rest fell out, and time against memory of them all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from common.claims.drawing import BLUE, PUBLISHED, VERMILION, drawing
from common.predict.iteration import Prediction
from common.predict.machine import Cluster
from common.predict.search import SHOWN, Search, describe
from common.training.config_json import to_json


def page(found: Search) -> Iterator[RenderableType]:
    fitting = sum(e.breaks is None for e in found.estimates)
    yield Text(
        f"\nSearch: {len(found.estimates):,} layouts can be, {fitting:,} of them fit by closed form; "
        f"the best {min(fitting, found.simulated)} were simulated, {len(found.best)} of which fit",
        style="bold",
    )
    yield _best(found)
    yield _refused(found)


def _best(found: Search) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("s", "MFU", "GB", "tp", "pp", "dp", "batch"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("schedule", "cut", "recompute"):
        table.add_column(name, overflow="fold")
    for p in found.best[:SHOWN]:
        grid, execution = p.recipe.grid, p.recipe.execution
        table.add_row(
            f"{p.seconds:.4g}",
            f"{p.utilisation():.1%}",
            f"{p.memory.peak.needed / 1e9:.1f}",
            str(grid.tp),
            str(grid.pp),
            str(grid.dp),
            str(p.recipe.training.micro_batch),
            execution.schedule + (f" x {execution.chunks}" if execution.chunks > 1 else ""),
            " and ".join(
                ["sequence"] * execution.sequence_parallel + ["optimizer"] * execution.sharded_optimizer
            ),
            escape(execution.recompute),
        )
    return table


def _refused(found: Search) -> Table:
    table = Table(
        title="\nWhy others fell out",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    table.add_column("reason")
    table.add_column("layouts", justify="right")
    table.add_column("such as")
    for reason, count in sorted(found.refused.counts.items(), key=lambda item: -item[1]):
        table.add_row(escape(reason), f"{count:,}", escape(found.refused.examples[reason]))
    return table


def as_json(found: Search) -> dict[str, Any]:
    return {
        "layouts": len(found.estimates),
        "fitting": sum(e.breaks is None for e in found.estimates),
        "best": [_layout(p) for p in found.best[:SHOWN]],
        "refused": [
            {"reason": reason, "count": count, "example": found.refused.examples[reason]}
            for reason, count in found.refused.counts.items()
        ],
    }


def _layout(p: Prediction) -> dict[str, Any]:
    return {
        "seconds": p.seconds,
        "utilisation": p.utilisation(),
        "needed": p.memory.peak.needed,
        "layout": describe(p.recipe),
        "grid": to_json(p.recipe.grid),
        "execution": to_json(p.recipe.execution),
        "micro_batch": p.recipe.training.micro_batch,
    }


def draw(found: Search, known: Cluster, path: Path) -> None:
    """Seconds against bytes of every layout, by closed form; those simulated as they were simulated."""
    estimates = found.estimates
    with drawing(path, size=(8, 4.5)) as (_, (ax,)):
        for fits, colour, name in ((False, PUBLISHED, "does not fit"), (True, BLUE, "fits")):
            chosen = [e for e in estimates if (e.breaks is None) == fits]
            ax.scatter(
                [e.needed / 1e9 for e in chosen],
                [e.seconds for e in chosen],
                s=3,
                color=colour,
                linewidths=0,
                label=f"{name}, {len(chosen):,}",
                rasterized=True,
            )
        ax.axvline(found.limit / 1e9, color="black", linewidth=0.8, linestyle=":")
        edge = frontier([(e.needed, e.seconds) for e in estimates])
        ax.step(
            [x / 1e9 for x, _ in edge],
            [y for _, y in edge],
            where="post",
            color=VERMILION,
            linewidth=1,
            label="the least time for so much memory",
        )
        best = found.best[:SHOWN]
        ax.scatter(
            [p.memory.peak.needed / 1e9 for p in best],
            [p.seconds for p in best],
            s=30,
            facecolors="none",
            edgecolors="black",
            linewidths=0.8,
            label=f"the best {len(best)}, simulated",
        )
        ax.set(
            xscale="log",
            yscale="log",
            xlabel=f"GB that a rank needs (dotted: {found.limit / 1e9:.0f} on {known.name})",
            ylabel="seconds an iteration",
            title=f"{len(estimates):,} layouts of {estimates[0].recipe.name}",
        )
        ax.legend(loc="upper left", fontsize=8, markerscale=2)


def frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(needed, seconds) of those that no other beats in both, by rising memory."""
    found: list[tuple[float, float]] = []
    for needed, seconds in sorted(points):
        if not found or seconds < found[-1][1]:
            found.append((needed, seconds))
    return found
