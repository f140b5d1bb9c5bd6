"""A small made-up paper in a temporary folder, with a claim of every kind and every verdict."""

from collections.abc import Iterator
from pathlib import Path

from common.claims import (
    Absolute,
    Ask,
    AtLeast,
    Contradiction,
    Figure,
    Order,
    Paper,
    Quantity,
    Reading,
    Relative,
    Result,
    Rounding,
    Row,
    Waits,
    produces,
)
from common.claims.schema import Origin

PUBLISHED = """
[paper]
slug = "sample"
title = "Sandpiles of Known Size"
arxiv = "0000.00000"
read_from = "the author's copy"

[[claim]]
id = "setup"
where = "Section 2"
what = "Grains"
confidence = "read"
[claim.values]
grain = "quartz"
grains_per_spoon = 12000

[[claim]]
id = "table1-height"
where = "Equation 1, Table 1"
what = "Height of a pile"
formula = "a*n^0.5 + max(b, 0)"
confidence = "cross-checked"
note = "Two authors, two rulers."
[claim.values]
shape = "cone"
[claim.config]
a = 1.5
b = 2

[[claim]]
id = "table1-weight"
where = "Table 1"
what = "Weight of a pile"
confidence = "read"
[claim.values]
small_gb = 4.25
large_gb = 1041.5

[[claim]]
id = "table2-speed"
where = "Table 2"
what = "Time to build it"
confidence = "cross-checked"
[claim.values]
experiment = "shovel, hand, spoon"
forward_ms = [7.7, 13.2, 19.5]
overhead_percent_over = 90
share_percent = 2.7

[[claim]]
id = "figure1-angle"
where = "Figure 1"
what = "Angle of repose"
confidence = "read"
read_method = "pixels"
read_error = 0.3
[claim.values]
percent = [33.1, 34.0, 35.2]

[[claim]]
id = "figure2-erosion"
where = "Figure 2"
what = "Erosion by wind"
confidence = "memory"
[claim.values]
loss_mb = 3

[[claim]]
id = "table3-wet"
where = "Table 3"
what = "Wet sand"
confidence = "read"
[claim.values]
gain_percent = 12.5
iteration_s_dp8 = 39.15
"""

OURS = {
    "table1-height/small": 17.003,
    "table1-height/large": 152.0,
    "table1-weight/small_gb": 4.2512,
    "table1-weight/large_gb": 1100.0,
    "table2-speed/forward_ms": (3.1, 5.0, 8.4),
    "table2-speed/overhead_percent_over": 96.0,
    "table2-speed/share_percent": 0.91,
    "figure1-angle/percent": (33.0, 34.2, 35.2),
    "figure2-erosion/loss_mb": 3.0,
}


def height(n: float):
    """The paper's formula for n grains, as Quantity.published wants it."""
    return lambda facts: facts["table1-height"].evaluate(n=n, **facts["table1-height"].config)


@produces(
    Quantity("table1-height", "small", "exact", Relative(0.001), height(100), unit="m", headline=True),
    Quantity("table1-height", "large", "exact", Relative(0.001), height(10000), unit="m"),
    Quantity("table1-weight", "small_gb", "predicted", Relative(0.01)),
    Quantity("table1-weight", "large_gb", "predicted", Relative(0.01)),
    minutes=0.1,
)
def piles(ask: Ask) -> Iterator[Result]:
    for id, ours in OURS.items():
        if ask.wants(id) and id.startswith("table1"):
            cause = "the sieve lets stones through" if id.endswith("large_gb") else ""
            yield Result(id, ours, cause=cause)


@produces(
    Quantity("table2-speed", "forward_ms", "measured", Order()),
    Quantity("table2-speed", "overhead_percent_over", "measured", AtLeast(50)),
    Quantity("table2-speed", "share_percent", "derived", Rounding()),
    Quantity("figure1-angle", "percent", "exact", Reading()),
    Quantity("figure2-erosion", "loss_mb", "one-gpu", Absolute(0.5)),
    minutes=90,
    full=True,
)
def building(ask: Ask) -> Iterator[Result]:
    slower = Contradiction("Section 4", 0.9, "one extra shovel, not three")
    for id, ours in OURS.items():
        if not id.startswith("table1"):
            spread = ((3.0, 3.2), (4.8, 5.1), (8.1, 8.8)) if id.endswith("forward_ms") else None
            other = slower if id.endswith("share_percent") else None
            yield Result(id, ours, spread=spread, contradiction=other, seeds=(0, 1, 2), detail="three piles")


def draw_angle(path: Path, rows: dict[str, Row]) -> None:
    ours = rows["figure1-angle/percent"].result.ours
    bars = "".join(
        f'<rect x="{40 * i}" y="{40 - y}" width="30" height="{y}" fill="#4a6fa5"/>'
        for i, y in enumerate(ours)
    )
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 40" width="480">{bars}</svg>')


def declare(home: Path, **changes) -> Paper:
    """The paper as its reproduce.py would declare it; keywords change what it declares."""
    declared = {
        "producers": (piles, building),
        "waits": (Waits(("table3-*",), "cluster", "needs the sea"),),
        "context": ("setup",),
        "figures": (Figure("angle", "Angle of repose, three piles.", ("figure1-*",), draw_angle),),
    }
    return Paper(home, **(declared | changes))


def make(folder: Path, **changes) -> Paper:
    """The paper in `folder`/sample with its published.toml, without results."""
    home = folder / "sample"
    home.mkdir(parents=True, exist_ok=True)
    (home / "published.toml").write_text(PUBLISHED)
    return declare(home, **changes)


ORIGIN = Origin(
    command="python -m papers.sample.reproduce",
    commit="0123456789ab",
    machine="2 cores",
    date="2026-01-31",
    versions={"python": "3.11.7"},
    run="now",
)
