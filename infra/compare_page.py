"""Steps that were measured beside what was predicted for them, from what `python -m infra.compare --store` wrote."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from common.claims.drawing import drawing
from common.predict import timeline

STORED = Path(__file__).parent / "results" / "steps.json"
HEADS = ("recipe", "ranks", "measured, ms", "from", "to", "predicted, ms", "error, %")


def cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    """One row, in the order of HEADS."""
    times = (result["measured"], min(result["seconds"]), max(result["seconds"]), result["predicted"])
    return (result["recipe"], str(result["ranks"]), *(f"{1e3 * x:.1f}" for x in times), f"{100 * result['error']:+.1f}")


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Passes of every pipeline rank, measured above and predicted below, on one scale."""
    lanes = result["measured lanes"], result["predicted lanes"]
    titles = f"measured: {1e3 * result['seconds'][-1]:.1f} ms", f"predicted: {1e3 * result['predicted']:.1f} ms"
    with drawing(path, 1, (10, 1.6 + 0.9 * len(lanes[0])), rows=2, sharex=True) as (_, axes):
        for axis, ranks, title in zip(axes, lanes, titles, strict=True):
            for lane, actions in enumerate(ranks):
                for kind, micro_batch, start, end in actions:
                    axis.barh(lane, 1e3 * (end - start), 0.8, 1e3 * start, color=timeline.COLOURS[kind],
                              edgecolor="white", linewidth=0.5)
                    axis.text(1e3 * (start + end) / 2, lane, str(micro_batch + 1), ha="center", va="center", fontsize=6,
                              color="white")
            axis.set_yticks(range(len(ranks)), [f"rank {i}" for i in range(len(ranks))])
            axis.invert_yaxis()
            axis.set_title(f"{result['recipe']}, {title}", loc="left", fontsize=9)
            axis.spines[["top", "left", "right"]].set_visible(False)
        axes[1].set_xlabel("ms")


def section(path: Path = STORED) -> str:
    """The part of the report on this project's own steps; nothing where none are stored."""
    from common.claims.html import embedded

    if not path.is_file():
        return ""
    stored = json.loads(path.read_text())
    origin, results = stored["origin"], stored["results"]
    head = "".join(f'<th{" class=n" if i else ""}>{escape(name)}</th>' for i, name in enumerate(HEADS))
    body = "".join("<tr>" + "".join(f'<td{" class=n" if i else ""}>{escape(cell)}</td>' for i, cell in enumerate(cells(one)))
                   + "</tr>\n" for one in results)
    longest = max(results, key=lambda one: one["ranks"])
    return ('<section id="steps">\n<h2>Steps of laptop recipes, measured and predicted</h2>\n'
            f'{embedded(lambda at: draw(at, longest), "Forward blue, backward green; numbers are micro-batches.")}'
            f"<table>\n<tr>{head}</tr>\n{body}</table>\n"
            f'<p class="meta">{escape(origin["machine"])}, {escape(origin["date"])}, commit {escape(origin["commit"])}: '
            f"{escape(origin['command'])}</p>\n</section>\n")
