"""python -m tests.benchmarks [NAME ...] [--store]: training steps and pipelines beside other libraries, checkpoints
beside training, in alternated pairs."""

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.claims.origin import origin_of
from tests.benchmarks import checkpoint, pipeline, training_step

SUITES = (training_step, pipeline, checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of contests' names; default all")
    parser.add_argument("--store", action="store_true", help="write the results to results/, with their origin")
    asked = parser.parse_args()
    chosen = {suite: [c for c in suite.CONTESTS if not asked.names or any(n in c.name for n in asked.names)]
              for suite in SUITES}
    if not any(chosen.values()):
        parser.error(f"no contest is named so: {', '.join(c.name for suite in SUITES for c in suite.CONTESTS)}")
    for suite, contests in chosen.items():
        results = []
        for contest in contests:
            print(f"{contest.name} ...", file=sys.stderr, flush=True)
            results.append(suite.run(contest))
        if results:
            Console(width=160).print(TABLES[suite](results))
        if results and asked.store:
            store(suite.__name__.rpartition(".")[2], results)


def store(name: str, results: list[dict]) -> None:
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    origin = asdict(origin_of("python -m tests.benchmarks --store"))
    path.write_text(json.dumps({"origin": origin, "results": results}, indent=1) + "\n")


def training_steps(results: list[dict]) -> Table:
    table = Table("contest", "peer", "kernels", "ours, s", "theirs, s", "theirs / ours", "interval", "to reach",
                  "of peak", "to reach", title="one training step, medians of alternated pairs")
    for r in results:
        low, high = r["interval"]
        least = "" if r["least"] is None else f"{r['least']:.2f}"
        wanted = "" if r["least_utilisation"] is None else f"{r['least_utilisation']:.0%}"
        table.add_row(r["contest"], r["peer"], r["kernels"], f"{statistics.median(r['ours_s']):.3f}",
                      f"{statistics.median(r['theirs_s']):.3f}", f"{r['ratio']:.2f}", f"{low:.2f} – {high:.2f}", least,
                      f"{r['utilisation']:.0%}", wanted)
    return table


def pipelines(results: list[dict]) -> Table:
    table = Table("contest", "peer", "p, v, m", "formula, s", "ours, s", "theirs, s", "ours / theirs", "interval",
                  "to reach, ends by", title="one iteration over exact waits, medians of alternated pairs")
    for r in results:
        low, high = r["interval"]
        wanted = "" if r["most"] is None else f"{r['most']:.2f}, {r['upper']:.2f}"
        table.add_row(r["contest"], r["peer"], f"{r['p']}, {r['v']}, {r['m']}", f"{r['formula_s']:.3f}",
                      f"{statistics.median(r['ours_s']):.4f}", f"{statistics.median(r['theirs_s']):.4f}",
                      f"{r['ratio']:.3f}", f"{low:.3f} – {high:.3f}", wanted)
    return table


def checkpoints(results: list[dict]) -> Table:
    table = Table("contest", "bytes", "pause, s", "whole save, s", "pause / save", "from", "to", "to reach",
                  title="what training waits for, medians of alternated pairs")
    for r in results:
        ratios = sorted(pause / wait for pause, wait in zip(r["pauses_s"], r["waits_s"], strict=True))
        table.add_row(r["contest"], f"{r['bytes']:,}", f"{statistics.median(r['pauses_s']):.3f}",
                      f"{statistics.median(r['waits_s']):.3f}", f"{statistics.median(ratios):.3f}", f"{ratios[0]:.3f}",
                      f"{ratios[-1]:.3f}", f"{r['most']:.2f}")
    return table


TABLES = {training_step: training_steps, pipeline: pipelines, checkpoint: checkpoints}

if __name__ == "__main__":
    main()
