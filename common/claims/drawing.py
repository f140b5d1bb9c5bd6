"""The look of the report's figures: published values grey, ours coloured, what waits hatched.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; they differ in lightness as well, for grey
print.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PUBLISHED, PUBLISHED_DARK, PUBLISHED_LIGHT, EDGE = "#bdbdbd", "#8a8a8a", "#e3e3e3", "#555555"
BLUE, SKY, ORANGE, GREEN, VERMILION, YELLOW = "#0072b2", "#56b4e9", "#e69f00", "#009e73", "#d55e00", "#f0e442"
STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e6e6e6",
    "legend.frameon": False, "hatch.linewidth": 0.6, "xtick.bottom": False, "svg.hashsalt": "figures",
}  # fmt: skip
OURS_LOOK, PUBLISHED_LOOK = {"color": BLUE}, {"facecolor": PUBLISHED, "edgecolor": EDGE, "linewidth": 0.6}
WAITING_LOOK = {"facecolor": "white", "edgecolor": PUBLISHED_DARK, "hatch": "////", "linewidth": 0.6}


@contextmanager
def drawing(path: Path, columns: int = 1, size: tuple[float, float] = (8, 3.6), rows: int = 1,
            **settings) -> Iterator[tuple]:
    """A figure and its axes, row by row, in the style of the report; written to `path` at the end.

    size: inches. settings: of matplotlib's subplots.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        settings |= {"figsize": size, "layout": "constrained", "squeeze": False}
        figure, axes = pyplot.subplots(rows, columns, **settings)
        try:
            yield figure, axes.flatten()
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        finally:
            pyplot.close(figure)


def label(axis, x: float, y: float, text: str) -> None:
    """A value above a bar or a point."""
    offset = {"xytext": (0, 2), "textcoords": "offset points"}
    axis.annotate(text, (x, y), **offset, ha="center", va="bottom", fontsize=7)


def legend(figure, entries: Mapping[str, dict], columns: int) -> None:
    """Below the axes: the look of each kind of bar by its name."""
    from matplotlib.patches import Patch

    patches = [Patch(label=name, **look) for name, look in entries.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=columns)
