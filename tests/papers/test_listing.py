"""`python -m papers`: on the papers of this repository, and on a made-up one in a folder of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import papers
from common.claims.published import load
from common.claims.run import rows_of
from infra.setup import load_costs
from papers.__main__ import stale_readmes
from tests.common.claims.sample_paper import PUBLISHED
from tests.common.claims.test_render import KEYS

ROOT = papers.FOLDER.parent
REPRODUCE = """
from pathlib import Path

from common.claims import main
from tests.common.claims.sample_paper import declare

PAPER = declare(Path(__file__).parent)

if __name__ == "__main__":
    main(PAPER)
"""
README = "# Sample\n" + "".join(
    f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in ("scores", "claims")
)
FRONT = "# Front\n" + "".join(
    f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in ("claims", "costs", "runs", "features", "predictions")
)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m ...` in `folder`, whose packages come before those of the repository."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "140", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the sample paper alone."""
    home = tmp_path / "papers" / "sample"
    home.mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "predictions.py", "series.py"):
        shutil.copy(ROOT / "papers" / name, tmp_path / "papers" / name)
    (tmp_path / "infra").mkdir()
    for name in ("costs.toml", "features.toml"):
        shutil.copy(ROOT / "infra" / name, tmp_path / "infra" / name)
    (home / "__init__.py").touch()
    (home / "published.toml").write_text(PUBLISHED)
    (home / "reproduce.py").write_text(REPRODUCE)
    (home / "README.md").write_text(README)
    (tmp_path / "README.md").write_text(FRONT)
    return tmp_path


def claims_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["claims"] and all(list(claim) == KEYS for claim in document["claims"])
    return {claim["id"]: claim for claim in document["claims"]}


def test_every_published_claim_of_this_repository_stands_somewhere() -> None:
    found = papers.find()
    assert "sequence_parallelism" in [paper.name for paper in found]
    for paper in found:
        listed = {row.claim.source for row in rows_of(paper)}
        assert listed == {entry.id for entry in load(paper.published)}


def test_the_readmes_of_this_repository_are_up_to_date() -> None:
    stale = stale_readmes(papers.find())
    assert not stale, f"run `python -m papers --readme`: {', '.join(map(str, stale))}"


def test_the_papers_keep_within_the_minutes_announced() -> None:
    commands = load_costs(ROOT / "infra" / "costs.toml")["commands"]
    producers = [producer for paper in papers.find() for producer in paper.producers]
    assert sum(item.minutes for item in producers if not item.full) <= commands["reproduce"]["minutes"]
    assert sum(item.minutes for item in producers) <= commands["reproduce-full"]["minutes"]


def test_listing_the_papers_of_this_repository_imports_no_torch() -> None:
    code = "import sys, papers; papers.find(); import papers.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_json_for_machines(tree: Path) -> None:
    claims = claims_of(python(tree, "papers", "--json"))
    assert claims["table3-wet/gain_percent"]["verdict"] == "waiting"
    assert {claim["verdict"] for claim in claims.values()} == {"waiting", "context"}


def test_one_paper_reproduced_stored_and_listed(tree: Path) -> None:
    done = python(tree, "papers.sample.reproduce", "table1-weight", "--json", "--store", "--html", "a.html")
    claims = claims_of(done)
    assert list(claims) == ["table1-weight/small_gb", "table1-weight/large_gb"]
    origin = claims["table1-weight/large_gb"]["origin"]
    assert origin["run"] == "now"
    assert origin["command"] == "python -m papers.sample.reproduce table1-weight --json --store --html a.html"
    assert (tree / "a.html").exists()
    assert "piles: 2 claims" in done.stderr
    listed = claims_of(python(tree, "papers", "sample", "--json"))["table1-weight/large_gb"]
    assert (listed["verdict"], listed["origin"]) == ("missed", origin | {"run": "stored"})


def test_all_papers_reproduced_with_a_page_and_readmes(tree: Path) -> None:
    done = python(tree, "papers", "--reproduce", "--full", "--store", "--html", "results/index.html")
    assert done.returncode == 0, done.stderr
    assert "2 functions, about 90 minutes in all" in done.stderr
    assert "Table 1: 3 met, 1 missed" in done.stdout and "paper-inconsistent" in done.stdout
    assert "<h1>Megaline</h1>" in (tree / "results" / "index.html").read_text()
    assert sorted(path.name for path in (tree / "papers/sample/results").iterdir()) == [
        "building.json",
        "piles.json",
    ]
    done = python(tree, "papers", "--readme")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["updated README.md", "updated papers/sample/README.md"],
    )
    assert "| missed | predicted |" in (tree / "README.md").read_text()
    assert "never" in (tree / "README.md").read_text()
    assert python(tree, "papers", "--readme").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["papers", "smaple"], "there is no paper 'smaple'; there are sample"),
        (["papers", "--full"], "give --reproduce as well"),
        (
            ["papers.sample.reproduce", "tabel1-height"],
            "no claim is named 'tabel1-height'; near it: table1-height",
        ),
    ],
)
def test_wrong_arguments_are_one_line(tree: Path, arguments: list[str], message: str) -> None:
    done = python(tree, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


WRONG_FILES = [
    ("published.toml", "[paper", "is not TOML"),
    ("reproduce.py", "PAPER = 3\n", "papers/sample/reproduce.py needs PAPER = Paper("),
    ("reproduce.py", None, "no reproduce.py with a PAPER"),
    ("results/piles.json", "{}", "is not a file of results"),
]


@pytest.mark.parametrize(("name", "text", "message"), WRONG_FILES)
def test_a_broken_paper_is_one_line(tree: Path, name: str, text: str | None, message: str) -> None:
    path = tree / "papers" / "sample" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink() if text is None else path.write_text(text)
    done = python(tree, "papers")
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_readme_without_its_markers_is_one_line(tree: Path) -> None:
    (tree / "papers/sample/README.md").write_text("# Sample\n")
    done = python(tree, "papers", "--readme")
    assert done.returncode == 2 and "`<!-- begin scores -->` and its end are missing" in done.stderr


def test_a_paper_has_readme_blocks_of_its_own(tree: Path) -> None:
    home = tree / "papers" / "sample"
    blocks = 'blocks={"count": lambda rows: f"{len(rows)} rows"}'
    (home / "reproduce.py").write_text(REPRODUCE.replace("parent)\n", f"parent, {blocks})\n", 1))
    done = python(tree, "papers", "--readme")
    assert done.returncode == 2 and "`<!-- begin count -->` and its end are missing" in done.stderr
    (home / "README.md").write_text(README + "<!-- begin count -->\n<!-- end count -->\n")
    assert python(tree, "papers", "--readme").returncode == 0
    assert "<!-- begin count -->\n12 rows\n<!-- end count -->" in (home / "README.md").read_text()


def test_a_failing_function_is_an_exit_code_of_1_after_the_tables(tree: Path) -> None:
    path = tree / "papers/sample/reproduce.py"
    text = REPRODUCE.replace("declare\n", "declare, piles\nfrom dataclasses import replace\n")
    broken = "replace(piles, function=lambda ask: 1 / 0)"
    path.write_text(
        text.replace("parent)\n", f"parent, producers=({broken}, building))\n").replace(
            "piles\n", "piles, building\n"
        )
    )
    done = python(tree, "papers.sample.reproduce")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "Table 1: 4 waiting" in done.stdout
