"""python -m tests.benchmarks [NAME ...] [--store]: training steps beside other libraries, in alternated pairs."""

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.claims.origin import origin_of
from tests.benchmarks.training_step import CONTESTS, run

STORED = Path(__file__).parent / "results" / "training_step.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of contests' names; default all")
    parser.add_argument("--store", action="store_true", help=f"write the results to {STORED.name}, with their origin")
    asked = parser.parse_args()
    chosen = [c for c in CONTESTS if not asked.names or any(n in c.name for n in asked.names)]
    if not chosen:
        parser.error(f"no contest is named so: {', '.join(c.name for c in CONTESTS)}")
    results = []
    for contest in chosen:
        print(f"{contest.name} ...", file=sys.stderr, flush=True)
        results.append(run(contest))
    show(results)
    if asked.store:
        STORED.parent.mkdir(exist_ok=True)
        origin = asdict(origin_of("python -m tests.benchmarks --store"))
        STORED.write_text(json.dumps({"origin": origin, "results": results}, indent=1) + "\n")


def show(results: list[dict]) -> None:
    table = Table("contest", "peer", "kernels", "ours, s", "theirs, s", "theirs / ours", "interval", "to reach",
                  "of peak", "to reach", title="one training step, medians of alternated pairs")
    for r in results:
        low, high = r["interval"]
        least = "" if r["least"] is None else f"{r['least']:.2f}"
        wanted = "" if r["least_utilisation"] is None else f"{r['least_utilisation']:.0%}"
        table.add_row(r["contest"], r["peer"], r["kernels"], f"{statistics.median(r['ours_s']):.3f}",
                      f"{statistics.median(r['theirs_s']):.3f}", f"{r['ratio']:.2f}", f"{low:.2f} – {high:.2f}", least,
                      f"{r['utilisation']:.0%}", wanted)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
