"""The command of a paper, `python -m papers.<name>.reproduce`, and what it shares with `python -m papers`."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import tyro
from rich.console import Console

from common.claims.html import write_page
from common.claims.judge import Row
from common.claims.origin import origin_of
from common.claims.published import load
from common.claims.render import as_json, console, print_paper
from common.claims.run import Outcome, chosen_producers, run, select
from common.claims.run import rows_of as rows_of_paper
from common.claims.schema import Paper
from common.claims.target import check_folder, check_target

Options = TypeVar("Options")
PAGE = Path(__file__).resolve().parents[2] / "results" / "index.html"


@dataclass(frozen=True)
class Reproduce:
    """Produce a paper's tables and figures and show them beside the published ones.

    Long producers run only with --full or when they are named; their stored results are shown otherwise.
    """

    claims: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which to run: claim ids, tables or figures ("Table 2"), functions, or globs; all without any."""
    json: bool = False
    """Print JSON in place of tables."""
    store: bool = False
    """Keep the results under the paper's results/ folder."""
    full: bool = False
    """Also run the long ones."""
    html: Path | None = None
    """Also write the report, one page with its figures, to this file."""
    force: bool = False
    """Replace a report that exists; results/index.html is replaced in any case."""


def parse(options: type[Options], program: str, arguments: Sequence[str] | None) -> Options:
    """Options from the command line; flags have no --no- twins."""
    return tyro.cli(Annotated[options, tyro.conf.FlagCreatePairsOff], prog=program, args=arguments)


def main(paper: Paper, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line of one paper and exit: 0, 1 if something failed, 2 for a wrong argument."""
    program = f"python -m papers.{paper.name}.reproduce"
    options = parse(Reproduce, program, arguments)
    typed = sys.argv[1:] if arguments is None else arguments
    finish(lambda: reproduce(paper, options, shlex.join(["python", *program.split()[1:], *typed])))


def reproduce(paper: Paper, options: Reproduce, command: str) -> list[str]:
    """Run, then print the wanted rows; returns what failed."""
    check_report(options.html, options.force)
    notes = console(stderr=True)
    outcome = run_paper(paper, options, command, notes)
    rows = rows_of_paper(paper, outcome.results)
    wanted = {claim.id for claim in select([row.claim for row in rows], options.claims)}
    shown = [row for row in rows if row.claim.id in wanted]
    if options.json:
        print_json([(paper, shown)])
    else:
        print_paper(console(), load(paper.published), shown)
    return outcome.failures + report(options.html, [(paper, rows)], notes)


def run_paper(paper: Paper, options: Reproduce, command: str, notes: Console) -> Outcome:
    """Run what the options ask for, with a line of progress per producer on `notes`.

    What is stored already is read first, so that a broken file is named before a long run and not after.
    """
    if options.store:
        check_folder(paper.results, "--store")
    else:
        rows_of_paper(paper)
    if not chosen_producers(paper, options.claims, options.full):
        return Outcome()

    def progress(line: str) -> None:
        notes.print(f"{paper.name}: {line}", style="dim", markup=False)

    return run(paper, origin_of(command), options.claims, options.full, options.store, progress)


def check_report(path: Path | None, force: bool) -> None:
    """Raises ValueError for a page that cannot be written, and for one that would replace what this did not make."""
    if path is not None:
        check_target(path, "--html", force=force or path.resolve() == PAGE, new_folders=True)


def report(path: Path | None, papers: Sequence[tuple[Paper, Sequence[Row]]], notes: Console, first: str = "") -> list[str]:
    """Write the page if a path is given; returns what failed. first: a section before the papers."""
    if path is None:
        return []
    failures = write_page(path, papers, first)
    notes.print(f"report: {path}", style="dim", markup=False)
    return failures


def print_json(papers: Sequence[tuple[Paper, Sequence[Row]]]) -> None:
    """The listing for machines on standard output, which holds nothing else."""
    print(json.dumps(as_json(papers), indent=1, allow_nan=False, ensure_ascii=False))


def finish(work: Callable[[], list[str]]) -> NoReturn:
    """Do the work of a command and exit: a ValueError is one line and 2, failures are printed and 1."""
    try:
        failures = work()
    except ValueError as error:
        sys.exit(_complain(f"error: {error}", 2))
    sys.exit(_complain("\n".join(failures), 1) if failures else 0)


def _complain(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code
