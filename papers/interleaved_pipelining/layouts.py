"""Measured here: the loss of the laptop model under every layout, with the same data and seed.

Section 3 chooses sizes of tensor, pipeline and data parallelism for speed and memory alone: the layout must not change
what is learnt.

    python -m papers.interleaved_pipelining.layouts --store       every layout of recipes.py, a few minutes
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.claims import Ask, AtMost, Figure, Result, produces
from common.claims.command import finish, parse
from common.claims.drawing import BLUE, EDGE, GREEN, ORANGE, SKY, VERMILION, YELLOW, drawing
from common.claims.origin import origin_of
from common.claims.quantities import measured
from common.claims.store import write_text
from common.claims.target import check_folder

STORED = Path(__file__).parent / "results" / "training" / "layouts.json"
COMMAND = "python -m papers.interleaved_pipelining.layouts --store"
STEPS, QUICK_STEPS = 100, 20
WITHIN = 1e-4
"""Largest difference of losses, nats: fp32 sums in another order, through as many updates."""
ALONE = "one process"
QUICK = (ALONE, "dp 4, sharded optimizer", "tp 2 with sequence parallelism, dp 2, selective recomputation",
         "pp 4, zero bubble", "tp 2, pp 2 in 2 chunks, interleaved")
RULE = "takeaway-2"

def apart(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Layout -> its largest distance from one process at any step, nats."""
    return {name: max(abs(a - b) for a, b in zip(losses, found[ALONE], strict=True))
            for name, losses in found.items() if name != ALONE}


@produces(
    measured(RULE, "loss_by_layout", AtMost(WITHIN), lambda facts: 0.0, unit="nats",
             text=f"largest difference of the laptop model's loss from one process, {len(QUICK) - 1} layouts of 4 ranks, "
                  f"{QUICK_STEPS} steps"),
    minutes=0.3,
)
def loss_by_layout(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.layout_losses import curves

    found = curves(QUICK, QUICK_STEPS)
    differences = apart(found)
    yield Result(f"{RULE}/loss_by_layout", max(differences.values()),
                 detail=f"loss from {found[ALONE][0]:.3f} to {found[ALONE][-1]:.3f}, dropout 0.1; "
                        + "; ".join(f"{name}: {largest:.1e}" for name, largest in differences.items()),
                 cause=f"the loss of {max(differences, key=differences.get)} leaves that of one process")


def block(_rows) -> str:
    """The README's table, from the stored run."""
    if not STORED.exists():
        return "Not run yet."
    stored = json.loads(STORED.read_text())
    found, origin = stored["curves"], stored["origin"]
    lines = ["| layout | last loss | largest difference at any step |", "| --- | ---: | ---: |",
             f"| {ALONE} | {found[ALONE][-1]:.5f} | |"]
    lines += [f"| {name} | {found[name][-1]:.5f} | {largest:.1e} |" for name, largest in apart(found).items()]
    verdict = "met" if max(apart(found).values()) <= WITHIN else "missed"
    return "\n".join([*lines, "", f"Nats per token, fp32, dropout 0.1, {len(found[ALONE])} steps. To reach, {WITHIN:g} at "
                      f"every step: {verdict}. Stored: commit {origin['commit']}, {origin['machine']}, {origin['date']}."])


def draw(path: Path, _rows) -> None:
    """Every curve on one plot, and below how far each lies from one process."""
    found = json.loads(STORED.read_text())["curves"]
    colours = (EDGE, BLUE, SKY, ORANGE, GREEN, VERMILION, YELLOW, BLUE, ORANGE, GREEN)
    with drawing(path, size=(7, 5.2), rows=2, sharex=True, height_ratios=(2, 1)) as (figure, (top, bottom)):
        for i, ((name, losses), colour) in enumerate(zip(found.items(), colours, strict=True)):
            steps = range(1, len(losses) + 1)
            look = {"color": colour, "linestyle": "-" if i < 7 else "--"}
            top.plot(steps, losses, label=name, linewidth=1 + 0.6 * (len(found) - 1 - i), **look)
            if name != ALONE:
                away = [max(abs(a - b), 1e-8) for a, b in zip(losses, found[ALONE], strict=True)]
                bottom.semilogy(steps, away, linewidth=1, **look)
        bottom.axhline(WITHIN, color=EDGE, linewidth=0.8, linestyle=":")
        top.set(ylabel="loss, nats per token")
        bottom.set(ylabel="distance from\none process, nats", xlabel="step", ylim=(1e-8, 1e-2))
        figure.legend(loc="outside lower center", ncols=2, fontsize=7)


PRODUCERS = (loss_by_layout,)
FIGURE = Figure("layouts", f"The laptop model under ten layouts, same data and seed: every curve, the widest line first, and "
                f"how far each is from one process (dotted: {WITHIN:g} nats). From the stored run.", (), draw)


@dataclass(frozen=True)
class LayoutsRun:
    """steps: of each layout. store: keep the curves for the report."""

    steps: int = STEPS
    store: bool = False


def work(asked: LayoutsRun) -> list[str]:
    from papers.interleaved_pipelining.layout_losses import curves
    from papers.interleaved_pipelining.recipes import LAYOUTS

    if asked.store:
        check_folder(STORED.parent, "--store")
    found = curves(tuple(LAYOUTS), asked.steps)
    for name, largest in apart(found).items():
        print(f"{name}: last loss {found[name][-1]:.5f}, at most {largest:.1e} from one process")
    if asked.store:
        origin = asdict(origin_of(COMMAND))
        write_text(STORED, json.dumps({"origin": origin, "curves": found}, indent=1) + "\n")
    return []


if __name__ == "__main__":
    given = parse(LayoutsRun, "python -m papers.interleaved_pipelining.layouts", None)
    finish(lambda: work(given))
