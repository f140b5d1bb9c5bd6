"""The figures of the report: schedules as the paper draws them, and published values beside ours."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from common.claims import Figure
from common.claims.drawing import (
    BLUE,
    EDGE,
    GREEN,
    ORANGE,
    OURS_LOOK,
    PUBLISHED,
    PUBLISHED_LOOK,
    VERMILION,
    drawing,
    label,
    legend,
)
from common.claims.judge import Row
from papers.interleaved_pipelining.bubbles import FIGURE_6
from papers.interleaved_pipelining.microbatches import FIGURE_8, SIZES
from papers.interleaved_pipelining.recomputation import CHECKPOINTS, STAGE, memory, stated
from papers.interleaved_pipelining.sizes import FACTS, value

DEVICES = 4
EXAMPLE = FACTS["figure3-example"].values
CHUNKS = FACTS["figure4-example"].values["interleave"]
MICRO_BATCHES, RATIO = EXAMPLE["microbatches_per_batch"], EXAMPLE["backward_over_forward"]


def _schedules(path: Path, *names: str) -> None:
    """One above the other on one time axis; a chunk takes its part of a device's time."""
    from common.pipeline.draw import draw
    from common.pipeline.schedules import make

    chunks = {name: CHUNKS if name == "interleaved" else 1 for name in names}
    schedules = [make(name, DEVICES, v, MICRO_BATCHES) for name, v in chunks.items()]
    costs = [{"forward": Fraction(1, v), "backward": Fraction(RATIO) / v} for v in chunks.values()]
    draw(schedules, costs, path)


def figure3(path: Path, rows: Mapping[str, Row]) -> None:
    """GPipe."""
    _schedules(path, "gpipe")


def figure4(path: Path, rows: Mapping[str, Row]) -> None:
    """1F1B and interleaved 1F1B."""
    _schedules(path, "1f1b", "interleaved")


RING = {"linestyle": "none", "marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": EDGE,
        "markeredgewidth": 0.8}


def figure6(path: Path, rows: Mapping[str, Row]) -> None:
    """Bubble against data-parallel size: formula as a line, plotted values as rings, simulated ones as points."""
    with drawing(path, size=(7, 3.8)) as (figure, (axis,)):
        for name, colour in zip(FIGURE_6, (BLUE, ORANGE, GREEN, VERMILION), strict=True):
            config, row = FACTS[name].config, rows[f"{name}/bubble_fraction"]
            n, batch = config["gpus"], config["batch_over_microbatch"]
            ticks = sizes = FACTS[name].values["data_parallel"]
            fine = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 200) for i in range(201)]
            curve = [value("eq-bubble-vs-dp", n=n, d=d, b_prime=batch) for d in fine]
            axis.plot(fine, curve, color=colour, linewidth=1)
            axis.plot(sizes, row.claim.published, **RING)
            axis.plot(sizes, row.result.ours, "o", markersize=4, color=colour, label=f"n={n}, b'={batch}")
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, ticks)
        axis.set(xlabel="data-parallel size d", ylabel="bubble, idle over ideal time", ylim=(-0.03, 1.05))
        axis.plot([], [], **RING, label="plotted in the paper")
        axis.plot([], [], color=EDGE, linewidth=1, label="(n - d)/b'")
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, [f"{text}, simulated" if text.startswith("n=") else text for text in labels],
                      loc="outside right center")


def figure8(path: Path, rows: Mapping[str, Row]) -> None:
    """Normalised throughput against micro-batch size, plotted and from simulated schedules."""
    with drawing(path, 2, (8, 3.2), sharey=True) as (figure, axes):
        for axis, (batch, name) in zip(axes, FIGURE_8.items(), strict=True):
            row = rows[f"{name}/normalized_throughput"]
            pair = (-0.2, row.claim.published, PUBLISHED_LOOK), (0.2, row.result.ours, OURS_LOOK)
            for offset, values, look in pair:
                places = [i + offset for i in range(len(SIZES))]
                axis.bar(places, values, 0.36, **look)
                for x, height in zip(places, values, strict=True):
                    label(axis, x, height, f"{height:.2f}")
            axis.set_xticks(range(len(SIZES)), SIZES)
            axis.set(title=f"batch {batch}", xlabel="micro-batch size")
        axes[0].set(ylabel="throughput over that of micro-batch 1", ylim=(0, 1.35))
        legend(figure, {"plotted": PUBLISHED_LOOK, "from Figure 7's rates and the schedule played": OURS_LOOK}, 2)


def checkpoints(path: Path, rows: Mapping[str, Row]) -> None:
    """Memory of a stage against the number of checkpoints: the formula as a line, traced values as points."""
    row = rows["eq-checkpoint-memory/gpt3"]
    with drawing(path, size=(5.5, 3.2)) as (_, (axis,)):
        fine = [1 + i / 50 * (CHECKPOINTS[-1] - 1) for i in range(51)]
        axis.plot(fine, [memory(stated(STAGE), c) / 2**30 for c in fine], color=PUBLISHED, linewidth=3,
                  label="the paper's formula")
        axis.plot(CHECKPOINTS, row.result.ours, "o", color=BLUE, label="traced")
        for x, y in zip(CHECKPOINTS, row.result.ours, strict=True):
            axis.annotate(f"{y:.2f}", (x, y), xytext=(6, 5), textcoords="offset points", fontsize=8)
        axis.set_xticks(CHECKPOINTS)
        axis.set(xlabel="checkpoints in a stage of 8 layers", ylabel="activations, GiB per GPU", ylim=(0, 5))
        axis.legend()


FIGURES = (
    Figure(
        "figure3",
        f"Figure 3: the GPipe schedule, {DEVICES} devices and {MICRO_BATCHES} micro-batches, drawn from the object that "
        "the executor runs; grey is idle time.",
        (),
        figure3,
    ),
    Figure(
        "figure4",
        "Figure 4: 1F1B, and interleaved 1F1B with two chunks for each device, on one time axis; a chunk takes half of a "
        "device's time.",
        (),
        figure4,
    ),
    Figure(
        "figure6",
        "Figure 6: bubble against data-parallel size, as plotted, by the formula, and from schedules played event by "
        "event.",
        ("figure6-*/bubble_fraction",),
        figure6,
    ),
    Figure(
        "figure8",
        "Figure 8: estimated throughput against micro-batch size, 8 stages.",
        ("figure8-*/normalized_throughput",),
        figure8,
    ),
    Figure(
        "checkpoints",
        "Section 3.5: what a stage of GPT-3 keeps on one GPU, tensor-parallel size 8, by the number of groups of layers "
        "that are recomputed together.",
        ("eq-checkpoint-memory/gpt3",),
        checkpoints,
    ),
)
