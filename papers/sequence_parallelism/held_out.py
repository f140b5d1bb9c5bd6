"""The laptop model beside a 5-gram model of the same corpus, on packages that neither has seen.

    python -m papers.sequence_parallelism.held_out --run runs/<id>     scores a run of laptop_long; --store keeps it
    python -m papers.sequence_parallelism.held_out                     trains it first, about half an hour on two cores
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from common.checkpoint.files import write_text
from common.claims import Figure
from common.claims.command import finish, parse
from common.claims.drawing import BLUE, EDGE, ORANGE, drawing
from common.claims.origin import origin_of
from common.claims.target import check_folder

STORED = Path(__file__).parent / "results" / "training" / "laptop_long.json"
ORDER = 5
MARGIN = 0.05  # bits per byte, what the recipe says that it reaches


@dataclass(frozen=True)
class HeldOutRun:
    """run: the directory of a finished run of laptop_long; trained anew without one. store: keep the result."""

    run: Path | None = None
    store: bool = False


def work(asked: HeldOutRun) -> list[str]:
    if asked.store:
        check_folder(STORED.parent, "--store")
    found = measure(asked.run or train())
    print(table(found))
    if asked.store:
        write_text(STORED, json.dumps(found, indent=1) + "\n")
    return []


def train() -> Path:
    """A run of laptop_long, in a directory of its own."""
    from common.training.command import main as train_command
    from common.training.run_directory import new_id
    from papers.sequence_parallelism import recipes

    id = new_id("laptop_long")
    train_command(recipes, ["laptop_long", "--id", id])
    return Path("runs") / id


def measure(run: Path) -> dict:
    """Scores on both held-out splits and the curve of the run, with the origin of each."""
    from common.training.metrics import read_metrics
    from common.training.recipe import Recipe
    from common.training.run_directory import RunDirectory
    from evals.held_out import HeldOut, scores

    directory = RunDirectory.open(run)
    recipe = directory.load_config(Recipe)
    rows = read_metrics(directory.metrics)
    steps = [r for r in rows if "evaluation" not in r]
    tokens = recipe.training.batch * recipe.model.sequence
    every = max(1, len(steps) // 200)
    return {
        "recipe": recipe.name,
        "steps": steps[-1]["step"],
        "tokens": steps[-1]["step"] * tokens,
        "train": [[chunk[-1]["step"] * tokens, sum(r["loss"] for r in chunk) / len(chunk)]
                  for chunk in (steps[i:i + every] for i in range(0, len(steps), every))],
        "valid": [[r["step"] * tokens, r["loss"]] for r in rows if "evaluation" in r],
        "scores": {split: {name: asdict(score) for name, score in
                           scores(recipe, HeldOut(run, split, ORDER)).items()} for split in ("valid", "test")},
        "trained": json.loads(directory.environment.read_text()),
        "scored": asdict(origin_of("python -m papers.sequence_parallelism.held_out --run RUN --store")),
    }


def table(found: dict) -> str:
    """Markdown: both models on both splits, and the margin."""
    lines = ["| held-out packages | tokens | model | perplexity | bits per byte |", "| --- | ---: | --- | ---: | ---: |"]
    names = {"valid": "matplotlib", "test": "pandas"}
    for split, models in found["scores"].items():
        for name, s in models.items():
            shown = "laptop model" if name == "model" else name
            lines.append(f"| {names[split]} ({split}) | {s['tokens']:,} | {shown} | {s['perplexity']:.2f} | "
                         f"{s['bits_per_byte']:.4f} |")
    margins = [m[f"{ORDER}-gram"]["bits_per_byte"] - m["model"]["bits_per_byte"] for m in found["scores"].values()]
    verdict = "met" if min(margins) >= MARGIN else "missed"
    origin = found["trained"]
    return "\n".join([*lines, "", f"Margin over the {ORDER}-gram model: {margins[0]:.3f} and {margins[1]:.3f} bits per byte; "
                      f"to reach, {MARGIN}: {verdict}. Stored: {found['tokens'] / 1e6:.1f} M tokens, seed {origin['seed']}, "
                      f"commit {str(origin['commit'])[:12]}, {origin['machine']['name']}, {origin['date'][:10]}; "
                      f"the {ORDER}-gram model saw the whole training split."])


def block(_rows) -> str:
    """The README's block, from the stored result."""
    return table(json.loads(STORED.read_text())) if STORED.exists() else "Not run yet."


def draw(path: Path, _rows) -> None:
    """Training and held-out loss against tokens, with the 5-gram model's held-out loss as a line."""
    found = json.loads(STORED.read_text())
    with drawing(path, size=(7, 3.6)) as (_, (axis,)):
        for name, colour, marker in (("train", BLUE, None), ("valid", ORANGE, "o")):
            x, y = zip(*found[name], strict=True)
            axis.plot([t / 1e6 for t in x], y, color=colour, marker=marker, markersize=4, linewidth=1.2,
                      label={"train": "training batches", "valid": "held-out package (64 sequences)"}[name])
        loss = found["scores"]["valid"][f"{ORDER}-gram"]["loss"]
        axis.axhline(loss, color=EDGE, linestyle="--", linewidth=1, label=f"{ORDER}-gram model, held-out package")
        axis.set(xlabel="training tokens, millions", ylabel="loss, nats per token", xlim=(0, None), ylim=(None, 7))
        axis.legend()


FIGURE = Figure("held_out", "Training of the laptop model (`laptop_long`), from its stored run: loss on training batches and on "
                "a held-out package, and that of a 5-gram model of the same corpus.", (), draw)

if __name__ == "__main__":
    given = parse(HeldOutRun, "python -m papers.sequence_parallelism.held_out", None)
    finish(lambda: work(given))
