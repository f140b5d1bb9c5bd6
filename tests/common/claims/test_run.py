"""Running, selecting, storing and merging results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.claims import Paper, Quantity, Relative, Result, produces
from common.claims.run import rows_of, run, scores, select
from common.claims.store import load_results, read, write_text
from tests.common.claims.sample_paper import ORIGIN, OURS, building, make, piles

STORED = {"origins", "results"}


def verdicts(rows) -> dict[str, str]:
    return {row.claim.id: row.verdict for row in rows}


def test_a_run_at_laptop_scale_leaves_out_the_long_ones(tmp_path: Path) -> None:
    paper = make(tmp_path)
    outcome = run(paper, ORIGIN)
    assert set(outcome.results) == {id for id in OURS if id.startswith("table1")} and not outcome.failures
    assert set(run(paper, ORIGIN, full=True).results) == set(OURS)
    assert set(run(paper, ORIGIN, ["figure1-angle"]).results) == {"figure1-angle/percent"}


def test_every_verdict_and_the_score_of_each_table(tmp_path: Path) -> None:
    paper = make(tmp_path)
    rows = rows_of(paper, run(paper, ORIGIN, full=True).results)
    assert verdicts(rows)["table1-weight/large_gb"] == "missed"
    assert verdicts(rows)["table2-speed/share_percent"] == "paper-inconsistent"
    assert scores(rows) == {
        "Table 1": {"met": 3, "missed": 1},
        "Table 2": {"met": 2, "paper-inconsistent": 1},
        "Figure 1": {"met": 1},
        "Figure 2": {"unverified": 1},
        "Table 3": {"waiting": 2},
    }


def test_stored_results_keep_their_origin_beside_fresh_ones(tmp_path: Path) -> None:
    paper = make(tmp_path)
    run(paper, ORIGIN, full=True, store=True)
    later = replace(ORIGIN, commit="ba9876543210", date="2026-02-01")
    fresh = run(paper, later, ["table1-height/small"]).results
    rows = {row.claim.id: row for row in rows_of(paper, fresh)}
    new, old = rows["table1-height/small"].result.origin, rows["table1-height/large"].result.origin
    assert (new.run, new.commit) == ("now", "ba9876543210")
    assert (old.run, old.commit) == ("stored", "0123456789ab")
    assert rows["table2-speed/forward_ms"].result.seeds == (0, 1, 2)
    assert rows["table2-speed/share_percent"].verdict == "paper-inconsistent"


def test_storing_one_claim_keeps_the_others_of_its_function(tmp_path: Path) -> None:
    paper = make(tmp_path)
    run(paper, ORIGIN, store=True)
    later = replace(ORIGIN, commit="ba9876543210")
    run(paper, later, ["table1-height/small"], store=True)
    stored = load_results(paper)
    assert stored["table1-height/small"].origin.commit == "ba9876543210"
    assert stored["table1-height/large"].origin.commit == "0123456789ab"
    assert len(stored) == 4
    document = json.loads((paper.results / "piles.json").read_text())
    assert document.keys() == STORED and len(document["origins"]) == 2
    assert [path.name for path in paper.results.iterdir()] == ["piles.json"]


def test_storing_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    paper = make(tmp_path)
    run(paper, ORIGIN, store=True)
    first = (paper.results / "piles.json").read_bytes()
    run(paper, ORIGIN, store=True)
    assert (paper.results / "piles.json").read_bytes() == first


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("table1-height/small", {"table1-height/small"}),
        ("table1-height", {"table1-height/small", "table1-height/large"}),
        ("Table 1", {id for id in OURS if id.startswith("table1")}),
        ("table 3", {"table3-wet/gain_percent", "table3-wet/iteration_s_dp8"}),
        ("*/*_gb", {"table1-weight/small_gb", "table1-weight/large_gb"}),
        ("building", {id for id in OURS if not id.startswith("table1")}),
    ],
)
def test_what_a_pattern_names(tmp_path: Path, pattern: str, ids: set[str]) -> None:
    claims = [row.claim for row in rows_of(make(tmp_path))]
    assert {claim.id for claim in select(claims, [pattern])} == ids


def test_an_unknown_claim_is_one_line_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="no claim is named 'table1-hight'; near it: table1-height"
    ) as caught:
        run(make(tmp_path), ORIGIN, ["table1-hight"])
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="`python -m papers` lists all"):
        run(make(tmp_path), ORIGIN, ["zzzz"])


def declaring(folder: Path, function) -> Paper:
    """The sample paper with another function in place of `piles`."""
    return make(folder, producers=(produces(*piles.quantities, minutes=1)(function), building))


def with_one(results):
    return lambda ask: [
        *results,
        *(result for result in piles(ask) if result.claim not in {r.claim for r in results}),
    ]


BAD = [
    (lambda ask: [], "yields no result for table1-height/large"),
    (lambda ask: [*piles(ask), *piles(ask)], "two results for 'table1-height/small'"),
    (lambda ask: [Result("table9/x", 1.0)], "a result for 'table9/x', not declared"),
    (lambda ask: [Result("table1-height/small", float("nan"))], "ours is nan, not a finite number"),
    (lambda ask: 1 / 0, "ZeroDivisionError"),
]


@pytest.mark.parametrize(("function", "message"), BAD)
def test_a_function_that_fails_is_reported_and_the_others_run(tmp_path: Path, function, message: str) -> None:
    def wrong(ask):
        return function(ask)

    paper = declaring(tmp_path, wrong)
    outcome = run(paper, ORIGIN, full=True, store=True)
    assert len(outcome.failures) == 1 and message in outcome.failures[0] and "wrong" in outcome.failures[0]
    assert set(outcome.results) == {id for id in OURS if not id.startswith("table1")}
    assert [path.stem for path in paper.results.iterdir()] == ["building"]


def test_a_miss_without_a_cause_fails_alone(tmp_path: Path) -> None:
    def careless(ask):
        return with_one([Result("table1-height/small", 99.0)])(ask)

    paper = declaring(tmp_path, careless)
    outcome = run(paper, ORIGIN, store=True)
    assert len(outcome.failures) == 1 and "careless states no cause" in outcome.failures[0]
    assert set(load_results(paper)) == {id for id in OURS if id.startswith("table1")} - {
        "table1-height/small"
    }


def test_a_stored_miss_whose_cause_was_removed_is_an_error(tmp_path: Path) -> None:
    paper = make(tmp_path)
    run(paper, ORIGIN, store=True)
    path = paper.results / "piles.json"
    path.write_text(path.read_text().replace("the sieve lets stones through", ""))
    with pytest.raises(ValueError, match="table1-weight/large_gb: missed"):
        rows_of(paper)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{", "{{"),
        ('"ours": 152.0', '"ours": NaN'),
        ('"ours": 152.0', '"ours": null'),
        ('"ours": 152.0', '"theirs": 152.0'),
        ('"origin": 0', '"origin": 7'),
        ('"machine"', '"hostname"'),
        ('"results"', '"rows"'),
    ],
)
def test_a_broken_store_is_named(tmp_path: Path, old: str, new: str) -> None:
    paper = make(tmp_path)
    run(paper, ORIGIN, store=True)
    path = paper.results / "piles.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match="is not a file of results") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_results_that_nothing_declares_any_more_are_named(tmp_path: Path) -> None:
    paper = make(tmp_path)
    run(paper, ORIGIN, store=True)
    (paper.results / "gone.json").write_text("{}")
    with pytest.raises(ValueError, match="no producer 'gone'; remove the file"):
        rows_of(paper)
    (paper.results / "gone.json").unlink()
    path = paper.results / "piles.json"
    path.write_text(path.read_text().replace("table1-height/small", "table1-height/tiny"))
    with pytest.raises(ValueError, match="piles no longer declares 'table1-height/tiny'"):
        rows_of(paper)
    run(paper, ORIGIN, ["piles"], store=True)
    assert "table1-height/tiny" not in load_results(paper)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \udc80")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_producer_is_told_what_is_wanted(tmp_path: Path) -> None:
    asked = []

    @produces(Quantity("table1-height", "small", "exact", Relative(0.1), lambda facts: 1.0), minutes=1)
    def curious(ask):
        asked.append((ask.wanted, ask.full, ask.wants("table1-*"), ask.wants("table2-*")))
        return [Result("table1-height/small", 1.0)]

    run(
        make(tmp_path, producers=(curious, building), context=("setup", "table1-weight")), ORIGIN, ["curious"]
    )
    assert asked == [(frozenset({"table1-height/small"}), False, True, False)]
