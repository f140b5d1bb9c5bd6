"""The figures of the report that show whole pipeline ranks. Published values are grey, ours are coloured."""

from collections.abc import Mapping
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
    drawing,
    label,
    legend,
)
from common.claims.judge import Row
from papers.sequence_parallelism.figures import LABELS, ours
from papers.sequence_parallelism.itemised import items
from papers.sequence_parallelism.micro_batch_windows import GAINS
from papers.sequence_parallelism.rank_memory import STATE
from papers.sequence_parallelism.sizes import FACTS, GIB, NAMES, SIZES
from papers.sequence_parallelism.stage_memory import CURVES, RANKS


def figure1(path: Path, rows: Mapping[str, Row]) -> None:
    """Stacked memory of one GPU: for each model baseline and present work, published then ours."""
    with drawing(path, size=(8, 4.4)) as (figure, (axis,)):
        for i, size in enumerate(SIZES):
            for j, bar in enumerate(("baseline", "present_work")):
                x = 3 * i + 1.3 * j
                _published_bar(axis, x, size, bar)
                _traced_bar(axis, x + 0.5, rows, size, bar)
                axis.text(x + 0.25, -4, ("baseline", "present\nwork")[j], ha="center", va="top", fontsize=8)
        line = FACTS["figure1-22b"].values["gpu_memory_line_gb"] * 1e9 / GIB
        axis.axhline(line, color=VERMILION, linestyle="--", linewidth=1)
        axis.text(1.55, line + 1, "A100, 80 GB", color=VERMILION, ha="center", fontsize=8)
        axis.set_xticks([3 * i + 0.9 for i in range(len(SIZES))], LABELS, fontweight="bold")
        axis.tick_params(axis="x", pad=26)
        axis.set(ylabel="memory per GPU, GiB", ylim=(0, 185), xlim=(-0.6, 11.2))
        legend(figure, {
            "published: parameters, optimizer (mean over ranks)": PUBLISHED_LOOK,
            "published: activations": {**PUBLISHED_LOOK, "facecolor": PUBLISHED_LIGHT},
            "traced, first stage: parameters, optimizer": OURS_LOOK,
            "traced, first stage: layers": {"color": SKY},
            "traced, first stage: outside the layers": {"color": ORANGE},
        }, 2)


def _published_bar(axis, x: float, size: str, bar: str) -> None:
    values = FACTS[f"figure1-{size}"].values
    state, total = values["params_optimizer_gib"], values[f"total_{bar}_gib"]
    axis.bar(x, state, 0.44, color=PUBLISHED, edgecolor=EDGE, linewidth=0.6)
    axis.bar(x, total - state, 0.44, state, color=PUBLISHED_LIGHT, edgecolor=EDGE, linewidth=0.6)
    label(axis, x, total, f"{total:.0f}")


def _traced_bar(axis, x: float, rows: Mapping[str, Row], size: str, bar: str) -> None:
    parts = items(rows[f"figure1-{size}/rank_{bar}"].result.detail)
    state, layers = sum(parts[kind] for kind in STATE), parts["layers"]
    whole = ours(rows, f"figure1-{size}/rank_{bar}")
    axis.bar(x, state, 0.44, color=BLUE)
    axis.bar(x, layers, 0.44, state, color=SKY)
    axis.bar(x, whole - state - layers, 0.44, state + layers, color=ORANGE)
    label(axis, x, whole, f"{whole:.0f}")


def figure9(path: Path, rows: Mapping[str, Row]) -> None:
    """Two curves over the pipeline ranks, read and traced, and what lies between them."""
    looks = {"no-dealloc": ("without deallocation", ORANGE, "s"), "dealloc": ("with deallocation", BLUE, "o")}
    with drawing(path, 2, (9, 3.9)) as (figure, (curves, gap)):
        for name in CURVES:
            text, colour, marker = looks[name]
            row = rows[f"figure9-{name}/memory_gib"]
            curves.plot(RANKS, row.result.ours, color=colour, linewidth=1.5, label=f"traced, {text}")
            curves.plot(RANKS, row.claim.published, marker, color=PUBLISHED_DARK, markersize=4.5, markeredgecolor=EDGE,
                        label=f"published, {text}")
        row = rows["figure9-no-dealloc/gap"]
        gap.plot(RANKS, row.result.ours, color=GREEN, linewidth=1.5, label="traced")
        gap.plot(RANKS, row.claim.published, "D", color=PUBLISHED_DARK, markersize=4.5, markeredgecolor=EDGE,
                 label="published")
        curves.set(title="530B, full recomputation", xlabel="pipeline rank", ylabel="activation memory, GiB", ylim=(0, None))
        gap.set(title="what letting go of output tensors saves", xlabel="pipeline rank", ylabel="GiB", ylim=(0, None))
        for axis in (curves, gap):
            axis.legend(fontsize=8)


def windows(path: Path, rows: Mapping[str, Row]) -> None:
    """For each rank, what is in flight at its peak: passes that may keep everything, and those recomputed."""
    from common.pipeline.simulate import peak_held
    from papers.sequence_parallelism import micro_batch_windows
    from papers.sequence_parallelism.in_flight import schedule

    with drawing(path, len(GAINS), (9, 3.6)) as (figure, axes):
        for axis, size in zip(axes, GAINS, strict=True):
            kept, most = micro_batch_windows.windows(size), peak_held(schedule(size))
            axis.bar(range(len(kept)), kept, 0.8, color=SKY)
            axis.bar(range(len(kept)), [n - k for n, k in zip(most, kept, strict=True)], 0.8, kept, color=VERMILION)
            axis.set(title=f"{NAMES[size]}, {schedule(size).chunks} chunks per rank", xlabel="pipeline rank")
        axes[0].set_ylabel("passes in flight")
        legend(figure, {"kept whole": {"color": SKY}, "recomputed": {"color": VERMILION}}, 2)


PIPELINE_FIGURES = (
    Figure(
        "figure1",
        "Figure 1: memory per GPU, as published beside the traced rank of the first stage. The published bars take the mean "
        "of parameters and optimizer over ranks; the first stage holds the embedding as well.",
        ("figure1-*/rank_*",),
        figure1,
    ),
    Figure(
        "figure9",
        "Figure 9: memory of each pipeline rank of the 530B with output tensors held and let go, as read and as traced. "
        "Ours falls a little less per rank, by the size of an attention mask.",
        ("figure9-*/memory_gib", "figure9-no-dealloc/gap"),
        figure9,
    ),
    Figure(
        "windows",
        "Appendix C: passes of micro-batches through chunks that are in flight at each rank's peak, and how many of them 80 "
        "GB let it keep whole, by traced bytes. No values are published.",
        ("text-microbatch-recompute-*/kept_percent",),
        windows,
    ),
)
