"""`python -m papers`: the papers, their claims and where each stands; the report and the README blocks."""

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

from common.claims.command import Reproduce, check_report, finish, parse, print_json, report, run_paper
from common.claims.features import load_features
from common.claims.judge import Row
from common.claims.published import load
from common.claims.readme import claim_table, produced_by, samples, score_table, stale
from common.claims.render import console, print_paper
from common.claims.run import rows_of
from common.claims.schema import Paper
from common.claims.store import write_text
from infra.setup import costs_markdown, load_costs
from papers import FOLDER, find

ROOT = FOLDER.parent


@dataclass(frozen=True)
class Papers:
    """List the papers, their claims and where each stands, from stored results."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which papers; all without any."""
    json: bool = False
    """Print JSON in place of tables."""
    reproduce: bool = False
    """First run each paper's reproduction at laptop scale."""
    full: bool = False
    """With --reproduce: also run the long ones."""
    store: bool = False
    """With --reproduce: keep the results under each paper's results/ folder."""
    html: Path | None = None
    """Also write the report, one page with its figures, to this file."""
    force: bool = False
    """Replace a report that exists; results/index.html is replaced in any case."""
    readme: bool = False
    """Only bring the generated blocks of the README files up to date."""


def chosen(names: tuple[str, ...]) -> tuple[Paper, ...]:
    """The papers named, or all; ValueError listing those there are."""
    papers = find()
    known = [paper.name for paper in papers]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no paper {name!r}; there are {', '.join(known)}")
    return tuple(paper for paper in papers if not names or paper.name in names)


def work(options: Papers, command: str) -> list[str]:
    """Do what the options ask for; returns what failed."""
    if options.readme:
        return write_readmes(find())
    papers = chosen(options.names)
    if (options.full or options.store) and not options.reproduce:
        raise ValueError("--full and --store say how to run: give --reproduce as well")
    check_report(options.html, options.force)
    notes = console(stderr=True)
    if options.reproduce:
        running = [item for paper in papers for item in paper.producers if options.full or not item.full]
        minutes = sum(item.minutes for item in running)
        notes.print(f"{len(running)} functions, about {minutes:.0f} minutes in all", style="dim")
    failures: list[str] = []
    listed: list[tuple[Paper, tuple[Row, ...]]] = []
    for paper in papers:
        fresh = {}
        if options.reproduce:
            asked = Reproduce(store=options.store, full=options.full)
            outcome = run_paper(paper, asked, command, notes)
            failures += outcome.failures
            fresh = outcome.results
        listed.append((paper, rows_of(paper, fresh)))
    if options.json:
        print_json(listed)
    else:
        out = console()
        for paper, rows in listed:
            print_paper(out, load(paper.published), rows)
    first = ""
    if options.html is not None:
        from common.predict.third_party import section as elsewhere
        from infra.compare_page import section as steps
        from papers.predictions import section

        first = section(listed) + steps() + elsewhere()
    return failures + report(options.html, listed, notes, first)


def stale_readmes(papers: tuple[Paper, ...]) -> dict[Path, str]:
    """README files whose generated blocks are out of date, with the text that they should have."""
    listed = [(paper, rows_of(paper)) for paper in papers]
    found = {
        ROOT / "README.md": stale(
            ROOT / "README.md",
            {
                "claims": lambda: samples(listed),
                "costs": lambda: costs_markdown(load_costs(ROOT / "infra" / "costs.toml")),
                "runs": lambda: produced_by(listed),
                "features": lambda: load_features(ROOT / "infra" / "features.toml").markdown(),
                "predictions": lambda: _predictions(listed),
            },
        )
    }
    for paper, rows in listed:
        makers = {"scores": score_table, "claims": claim_table, **paper.blocks}
        blocks = {name: partial(make, rows) for name, make in makers.items()}
        found[paper.folder / "README.md"] = stale(paper.folder / "README.md", blocks)
    return {path: text for path, text in found.items() if text is not None}


def _predictions(listed) -> str:
    from papers.predictions import markdown, points

    return markdown(points(listed))


def write_readmes(papers: tuple[Paper, ...]) -> list[str]:
    """Write the README files that are out of date and name them."""
    for path, text in stale_readmes(papers).items():
        write_text(path, text)
        print(f"updated {path.relative_to(ROOT)}")
    return []


if __name__ == "__main__":
    given = parse(Papers, "python -m papers", None)
    finish(lambda: work(given, shlex.join(["python", "-m", "papers", *sys.argv[1:]])))
