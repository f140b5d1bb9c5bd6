"""Blocks between markers, and the tables that go there."""

from pathlib import Path

import pytest

from common.claims.readme import (
    claim_table,
    contradiction_table,
    fill,
    produced_by,
    samples,
    score_table,
    stale,
    waiting_table,
)
from common.claims.run import rows_of, run
from tests.common.claims.sample_paper import ORIGIN, make

BLOCKS = {"one": lambda: "1\n", "two": lambda: "2"}
TEXT = "a\n<!-- begin one -->\nold\n<!-- end one -->\nb\n<!-- begin two -->\n<!-- end two -->\nc\n"
FILLED = "a\n<!-- begin one -->\n1\n<!-- end one -->\nb\n<!-- begin two -->\n2\n<!-- end two -->\nc\n"


def test_blocks_are_filled_and_the_rest_is_kept() -> None:
    assert fill(TEXT, BLOCKS, "README.md") == FILLED
    assert fill(FILLED, BLOCKS, "README.md") == FILLED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no markers\n", "`<!-- begin one -->` and its end are missing"),
        (TEXT.replace("<!-- end two -->\n", ""), "`<!-- begin two -->` has no partner"),
        (TEXT.replace("<!-- end one -->\n", ""), "is followed by `<!-- begin two -->`"),
        (TEXT.replace("end one", "end two"), "is followed by `<!-- end two -->`"),
        (TEXT.replace(" one", " three"), "block 'three' is unknown; known: one, two"),
        (TEXT + "<!-- begin one -->\n<!-- end one -->\n", "block 'one' stands twice"),
        ("<!-- end one -->\n" + TEXT, "is followed by"),
    ],
)
def test_markers_that_do_not_fit_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="README.md") as caught:
        fill(text, BLOCKS, "README.md")
    assert message in str(caught.value)


def test_stale(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    with pytest.raises(ValueError, match="is missing; it needs the blocks one, two"):
        stale(path, BLOCKS)
    path.write_text(TEXT)
    assert stale(path, BLOCKS) == FILLED
    path.write_text(FILLED)
    assert stale(path, BLOCKS) is None


def test_the_sample_has_a_row_of_every_kind_and_verdict(tmp_path: Path) -> None:
    paper = make(tmp_path)
    rows = rows_of(paper, run(paper, ORIGIN, full=True).results)
    lines = samples([(paper, rows)]).splitlines()
    ends = [tuple(cell.strip() for cell in line.split("|")[6:8]) for line in lines if line.startswith("| [")]
    assert ends == [
        ("met", "exact"),
        ("met", "measured"),
        ("met", "predicted"),
        ("missed", "predicted"),
        ("unverified", "one-gpu"),
        ("waiting", "cluster"),
        ("paper-inconsistent", "derived"),
    ]
    assert "| 1,041.5 | 1,100.0 | GB | +5.62 % | missed |" in "\n".join(lines)
    assert "- missed, `table1-weight/large_gb`: the sieve lets stones through" in lines


def test_scores_are_per_table_without_a_total(tmp_path: Path) -> None:
    paper = make(tmp_path)
    rows = rows_of(paper, run(paper, ORIGIN, full=True).results)
    assert score_table(rows).splitlines() == [
        "| | met | missed | paper-inconsistent | unverified | waiting |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| Table 1 | 3 | 1 |  |  |  |",
        "| Table 2 | 2 |  | 1 |  |  |",
        "| Table 3 |  |  |  |  | 2 |",
        "| Figure 1 | 1 |  |  |  |  |",
        "| Figure 2 |  |  |  | 1 |  |",
    ]


def test_claim_table_shows_what_has_a_result(tmp_path: Path) -> None:
    paper = make(tmp_path)
    assert claim_table(rows_of(paper)) == "No results are stored yet."
    text = claim_table(rows_of(paper, run(paper, ORIGIN).results))
    assert "**Table 1**" in text and "Table 3" not in text
    assert "| Weight of a pile: small | 4.25 | 4.2512 | GB | +0.03 % | met | predicted |" in text


def test_contradictions_show_all_three_values(tmp_path: Path) -> None:
    paper = make(tmp_path)
    assert contradiction_table(rows_of(paper)) == "None among the claims that have a result."
    rows = rows_of(paper, run(paper, ORIGIN, full=True).results)
    lines = [line for line in contradiction_table(rows).splitlines() if "share" in line]
    assert lines == [
        "| Table 2 | Time to build it: share | 2.7 | 0.9 (Section 4: one extra shovel, not three) | 0.91 | % "
        "| paper-inconsistent |"
    ]


def test_what_waits_is_counted_by_its_reason(tmp_path: Path) -> None:
    paper = make(tmp_path)
    rows = rows_of(paper, run(paper, ORIGIN, full=True).results)
    assert waiting_table(rows).splitlines()[2:] == ["| needs the sea | 2 | `table3-wet` |"]
    assert waiting_table([row for row in rows if row.verdict != "waiting"]) == "Nothing."


def test_what_runs_now_and_what_is_stored(tmp_path: Path) -> None:
    paper = make(tmp_path)
    last = produced_by([(paper, rows_of(paper))]).splitlines()[-1]
    assert last == "| sample | 1 of 2 functions, 0.1 min | `building` (90 min) | 11 |"
