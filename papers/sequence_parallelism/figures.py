"""The figures of the report that show one layer. Published values are grey, ours are coloured."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.claims import Figure
from common.claims.drawing import (
    BLUE,
    EDGE,
    GREEN,
    ORANGE,
    OURS_LOOK,
    PUBLISHED,
    PUBLISHED_DARK,
    PUBLISHED_LIGHT,
    PUBLISHED_LOOK,
    SKY,
    VERMILION,
    YELLOW,
    drawing,
    label,
    legend,
)
from common.claims.judge import Row
from papers.sequence_parallelism.sizes import FACTS, GIB, NAMES, SIZES

LABELS = [NAMES[size] for size in SIZES]


def ours(rows: Mapping[str, Row], id: str):
    return rows[id].result.ours


def paired(axis, published: Sequence[float], found: Sequence[float], digits: int = 1) -> None:
    """Two bars for each model, published and ours, with their values."""
    for offset, values, colour, edge in ((-0.2, published, PUBLISHED, EDGE), (0.2, found, BLUE, BLUE)):
        places = [i + offset for i in range(len(values))]
        axis.bar(places, values, 0.36, color=colour, edgecolor=edge, linewidth=0.6)
        for x, value in zip(places, values, strict=True):
            label(axis, x, value, f"{value:.{digits}f}")
    axis.set_xticks(range(len(values)), LABELS)


FIGURE_7 = {
    "sequence-parallel": "sequence parallel",
    "selective": "selective",
    "both": "both",
    "full": "full recompute",
}


def figure7(path: Path, rows: Mapping[str, Row]) -> None:
    """One panel for each technique: percent of the tensor-parallel baseline."""
    with drawing(path, 2, (8, 5), rows=2, sharey=True) as (figure, axes):
        for axis, (name, title) in zip(axes, FIGURE_7.items(), strict=True):
            row = rows[f"figure7-{name}/percent_of_baseline"]
            paired(axis, row.claim.published, row.result.ours)
            axis.set_title(title)
        axes[0].set_ylim(0, 77)
        figure.supylabel("activation memory of one layer, % of baseline", fontsize=9)
        legend(figure, {"published": PUBLISHED_LOOK, "traced": OURS_LOOK}, 2)


GROUPS = {
    "softmax, its mask, dropout's output": (("softmax", "softmax_mask", "dropped"), BLUE),
    "queries, keys, values": (("q", "k", "v"), SKY),
    "inputs of linear layers": (("qkv_input", "output_input", "up_input", "down_input"), ORANGE),
    "input of GELU": (("activation_input",), YELLOW),
    "inputs of norms": (("norm_input",), GREEN),
    "dropout masks": (("dropout_mask",), VERMILION),
    "input of the layer": (("input",), "#222222"),
}
ROWS = {"tp": "tensor parallel", "tp-sp": "+ sequence parallel", "tp-selective": "+ selective",
        "tp-sp-selective": "+ both", "full": "full recompute"}


def tensors(path: Path, rows: Mapping[str, Row]) -> None:
    """Stacked bars of one layer's kept tensors under each technique, from the trace by name."""
    with drawing(path, 2, (9, 3.4), sharey=True) as (figure, axes):
        for axis, size in zip(axes, ("22b", "1t"), strict=True):
            for y, technique in enumerate(ROWS):
                _tensor_bar(axis, y, size, technique)
                total = ours(rows, f"table2-{technique}/{size}")
                offset = {"xytext": (3, 0), "textcoords": "offset points"}
                axis.annotate(f"{total:.2f}", (total, y), **offset, va="center", fontsize=8)
            axis.set_yticks(range(len(ROWS)), ROWS.values())
            axis.set(xlabel="GiB per layer and GPU, tp 8", title=NAMES[size])
            axis.grid(visible=False, axis="y")
            axis.grid(visible=True, axis="x")
            axis.margins(x=0.12)
        axes[0].invert_yaxis()
        legend(figure, {name: {"facecolor": colour} for name, (_, colour) in GROUPS.items()}, 4)


def _tensor_bar(axis, y: int, size: str, technique: str) -> None:
    from papers.sequence_parallelism.traces import layer

    saved = dict(layer(size, technique).saved)
    saved.pop("norm.statistics", None)
    left = 0.0
    for endings, colour in GROUPS.values():
        amount = sum(saved.pop(name) for name in list(saved) if name.partition(".")[2] in endings) / GIB
        axis.barh(y, amount, 0.62, left, color=colour, edgecolor="white", linewidth=0.5)
        left += amount
    if saved:
        raise ValueError(f"the figure has no place for {', '.join(saved)}")


def utilisation(path: Path, rows: Mapping[str, Row]) -> None:
    """Percent of peak by model FLOPs and by hardware FLOPs, printed and counted."""
    with drawing(path, 2, (8, 3.3), sharey=True) as (figure, axes):
        for axis, key, title in zip(axes, ("mfu_percent", "hfu_percent"), (
                "model FLOPs", "hardware FLOPs: what recomputation runs included"), strict=True):
            found = [rows[f"table5-{size}/{key}"] for size in SIZES]
            paired(axis, [row.claim.published for row in found], [row.result.ours for row in found])
            axis.set_title(title)
        axes[0].set(ylabel="utilisation, % of 312 TFLOP/s per GPU", ylim=(0, 65))
        legend(figure, {"printed": PUBLISHED_LOOK, "counted operations over the printed time": OURS_LOOK}, 2)


GREYS, BLUES = (PUBLISHED_DARK, PUBLISHED, PUBLISHED_LIGHT), (BLUE, SKY, ORANGE)


def figure8(path: Path, rows: Mapping[str, Row]) -> None:
    """One panel for each model: three policies published, three measured, stacked by phase."""
    with drawing(path, len(SIZES), (9.5, 3.8), sharey=True) as (figure, axes):
        for axis, size in zip(axes, SIZES, strict=True):
            _stack(axis, (0, 1, 2), _published_phases(size), GREYS, EDGE)
            row = rows[f"figure8-{size}/layer_totals"]
            _stack(axis, (3.6, 4.6, 5.6), _measured_phases(rows, size), BLUES, "white")
            measured = zip((4.6, 5.6), row.result.ours[1:], row.result.spread[1:], strict=True)
            for x, total, (low, high) in measured:
                error = [[total - low], [high - total]]
                axis.errorbar(x, total, error, color="black", linewidth=1, capsize=2)
            axis.set_xticks((0, 1, 2, 3.6, 4.6, 5.6), ("none", "selective", "full") * 2, rotation=60,
                            ha="right", rotation_mode="anchor")
            axis.set_title(NAMES[size])
        axes[0].set(ylabel="time of one layer, % of none")
        entries = {}
        for phase, grey, blue in zip(("forward", "backward", "recomputation"), GREYS, BLUES, strict=True):
            entries[f"published: {phase}"] = {**PUBLISHED_LOOK, "facecolor": grey}
            entries[f"measured: {phase}"] = {"color": blue}
        legend(figure, entries, 3)


def _stack(axis, places: Sequence[float], bars: Sequence[Sequence[float]], colours, edge: str) -> None:
    for x, phases in zip(places, bars, strict=True):
        bottom = 0.0
        for amount, colour in zip(phases, colours, strict=True):
            axis.bar(x, amount, 0.8, bottom, color=colour, edgecolor=edge, linewidth=0.5)
            bottom += amount


def _published_phases(size: str) -> list[tuple[float, float, float]]:
    """Forward, backward and recomputation of none, the present work and full."""
    values = FACTS[f"figure8-{size}"].values
    full, present = (tuple(values[f"{bar}_{phase}_percent"] for phase in ("forward", "backward", "recompute"))
                     for bar in ("full", "present"))
    return [(*full[:2], 0.0), present, full]


def _measured_phases(rows: Mapping[str, Row], size: str) -> list[tuple[float, float, float]]:
    forward, backward = ours(rows, f"figure8-{size}/layer_phases")
    none, *others = ours(rows, f"figure8-{size}/layer_totals")
    return [(forward, backward, 0.0), *((forward, none - forward, total - none) for total in others)]


FIGURES = (
    Figure(
        "figure7",
        "Figure 7: activation memory of one layer against the tensor-parallel baseline, read and traced.",
        ("figure7-*/percent_of_baseline",),
        figure7,
    ),
    Figure(
        "tensors",
        "What one layer keeps on one rank, by tensor, traced at the published size.",
        ("table2-*/22b", "table2-*/1t"),
        tensors,
    ),
    Figure(
        "utilisation",
        "Table 5: utilisation by model FLOPs and by hardware FLOPs, as printed and from counted operations.",
        ("table5-*/mfu_percent", "table5-*/hfu_percent"),
        utilisation,
    ),
    Figure(
        "figure8",
        "Figure 8: time of one layer. Grey: as published, where selective runs with sequence parallelism. "
        "Coloured: measured here on a reduced layer, with the interval of each total.",
        ("figure8-*/layer_*",),
        figure8,
    ),
)
