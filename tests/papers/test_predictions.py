"""All predictions of the papers: their series and recipes, the fit, and the page, held to the stored files
themselves."""

import json
import math
import re
import tomllib
from dataclasses import dataclass
from html import unescape
from types import SimpleNamespace

import pytest

from common.claims.published import load
from common.claims.run import rows_of
from common.predict import constants as stored
from common.predict.hardware import cluster
from common.predict.iteration import check
from common.predict.series import MEASURES, Series
from papers import FOLDER, find, fit, predictions
from papers.predictions import COLUMNS, Point, markdown, order_right, points, section, summary
from papers.series import ALL

NAMED = {paper.paper: paper for paper in ALL}
LISTED = [(paper, rows_of(paper)) for paper in find()]
FOUND = points(LISTED)


def published(paper: str) -> dict[str, dict]:
    """Values by claim, as the file has them."""
    return {
        claim["id"]: claim.get("values", {})
        for claim in tomllib.loads((FOLDER / paper / "published.toml").read_text(encoding="utf-8"))["claim"]
    }


def results(paper: str) -> dict[str, list[float]]:
    """Our numbers by claim, as the files of results have them."""
    found = {}
    for path in (FOLDER / paper / "results").glob("*.json"):
        for entry in json.loads(path.read_text(encoding="utf-8"))["results"]:
            found[entry["claim"]] = entry["ours"] if isinstance(entry["ours"], list) else [entry["ours"]]
    return found


def point(value: float, ours: float, unit: str = "s", table: str = "Table 1", **more) -> Point:
    settings = {
        "paper": "sample",
        "claim": "x",
        "fitted": False,
        "simple": (2 * value, 3 * value, 4 * value),
    } | more
    return Point(table=table, unit=unit, published=value, ours=ours, **settings)


@pytest.mark.parametrize("paper", NAMED)
def test_every_published_number_has_its_recipe(paper):
    values = published(paper)
    ids = [series.id for series in NAMED[paper]]
    assert len(set(ids)) == len(ids) and NAMED[paper].fitted in ids
    for series in NAMED[paper]:
        value = values[series.source][series.key]
        assert isinstance(value, list) == series.several and series.unit in MEASURES
        count = len(value) if series.several else 1
        assert len(series.recipes) == len(series.published(load(FOLDER / paper / "published.toml"))) == count


@pytest.mark.parametrize("paper", NAMED)
def test_every_recipe_runs_on_the_cluster_of_its_paper(paper):
    where = cluster(NAMED[paper].cluster)
    for series in NAMED[paper]:
        for recipe in series.recipes:
            check(recipe, where)
            assert recipe.execution.kernels == "paper" and recipe.grid.world <= where.size


@pytest.mark.parametrize("paper", NAMED)
def test_the_fitted_row_is_met_with_the_stored_factor(paper):
    mine = NAMED[paper]
    (series,) = (s for s in mine if s.id == mine.fitted)
    value = published(paper)[series.source][series.key]
    assert series.predicted(mine)[0] == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("paper", NAMED)
def test_stored_results_are_what_is_predicted_now(paper):
    """Of one number for each paper, another than the fitted one; to the digits that are shown."""
    mine, ours = NAMED[paper], results(paper)
    series = next(s for s in mine if s.id != mine.fitted and not s.several)
    assert series.predicted(mine)[0] == pytest.approx(ours[series.id][0], rel=1e-3)


@dataclass(frozen=True)
class Linear:
    """A paper whose one row takes `alone` seconds times the factor."""

    alone: float
    paper: str = "mt_nlg"
    unit: str = "s"
    key: str = "iteration_time_s"
    fitted: str = "throughput-280-nodes/iteration_time_s"

    def __iter__(self):
        yield Series("throughput-280-nodes", self.key, "t", lambda: (None,), self.unit)

    def of(self, recipe, software):
        return SimpleNamespace(
            seconds=software * self.alone, flops_per_second=lambda scope: 1e12 / (software * self.alone)
        )


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.234])
def test_fitting_finds_the_factor(factor):
    value = published("mt_nlg")["throughput-280-nodes"]
    assert fit.fit(Linear(value["iteration_time_s"] / factor)) == pytest.approx(factor, abs=1e-4)
    rate = Linear(
        1 / value["tflops_per_gpu"] / factor,
        unit="TFLOP/s per GPU",
        key="tflops_per_gpu",
        fitted="throughput-280-nodes/tflops_per_gpu",
    )
    assert fit.fit(rate) == pytest.approx(factor, abs=1e-4)


def test_errors_are_relative():
    value = published("mt_nlg")["throughput-280-nodes"]["iteration_time_s"]
    paper = Linear(value)
    assert fit.errors(paper, next(iter(paper)), 1.1) == [pytest.approx(0.1)]


def test_storing_changes_the_factors_alone(tmp_path, monkeypatch):
    copy = tmp_path / "constants.toml"
    before = stored.FILE.read_text(encoding="utf-8")
    copy.write_text(before, encoding="utf-8")
    monkeypatch.setattr(fit, "FILE", copy)
    fit.write({"mt_nlg": 1.5, "sequence_parallelism": 0.75})
    found = stored.constants(copy)
    assert found.software == dict(stored.constants().software) | {"mt_nlg": 1.5, "sequence_parallelism": 0.75}
    lines = zip(before.splitlines(), copy.read_text(encoding="utf-8").splitlines(), strict=True)
    assert len([1 for a, b in lines if a != b]) == 2


@pytest.mark.parametrize(
    "pairs, right",
    [
        ([(1, 1), (2, 2), (3, 3)], (3, 3)),
        ([(1, 3), (2, 2), (3, 1)], (0, 3)),
        ([(1, 1), (2, 3), (3, 2)], (2, 3)),
        ([(100, 2), (104, 1), (200, 3)], (2, 2)),  # the first two are published within 5 %
        ([(100, 1), (106, 1)], (0, 1)),  # the same for both is not an order
        ([(1, 1)], (0, 0)),
    ],
)
def test_order_of_pairs(pairs, right):
    assert order_right([point(*pair) for pair in pairs]) == right


def test_order_is_not_asked_across_units():
    assert order_right([point(1, 2), point(2, 1, "sequences/s")]) == (0, 0)


def test_summary_by_hand():
    """Errors 10, 20, 40 %, the fitted row left out; the baselines are off by 100, 200 and 300 %."""
    chosen = [
        point(1, 1.1),
        point(2, 1.6),
        point(4, 5.6),
        point(10, 99, fitted=True),
        point(3, 3, table="Table 2"),
    ]
    first, second, all_of_it = summary(chosen)
    assert first == [
        "sample",
        "Table 1",
        "3",
        "20.0",
        "40.0",
        *(["100.0"] * 2),
        *(["200.0"] * 2),
        *(["300.0"] * 2),
        "6 of 6",
    ]
    assert second[:5] == ["sample", "Table 2", "1", "0.0", "0.0"] and second[-1] == ""
    assert all_of_it[:5] == ["sample", "all", "4", "15.0", "40.0"]


def test_order_of_figures_is_asked_within_each():
    """Across the two figures it is wrong twice; within them never."""
    chosen = [
        point(a, b, table=f"Figure 1{i}")
        for i, rows in enumerate([[(1, 1), (2, 2)], [(1.5, 5), (3, 6)]], 1)
        for a, b in rows
    ]
    assert [line for line in summary(chosen) if line[1] == "Figures 11 to 18"][0][-1] == "2 of 2"


def test_points_are_the_numbers_of_the_files():
    """As many as are published, each with what is stored for it."""
    for paper in ALL:
        mine = [p for p in FOUND if p.paper == paper.paper]
        values, ours = published(paper.paper), results(paper.paper)
        wanted = []
        for series in paper:
            if series.id in ours:
                value = values[series.source][series.key]
                wanted += zip(value if series.several else [value], ours[series.id], strict=True)
        assert len(wanted) > 2 and [(p.published, p.ours) for p in mine] == wanted
        assert [p.claim for p in mine if p.fitted] == [paper.fitted]


def test_baselines_err_as_little_as_they_can():
    """Errors of a constant have zero mean in logarithms over what it is fitted to; a rate for each table errs
    less than one for the paper, and so does a power law."""
    for paper in ALL:
        mine = [p for p in FOUND if p.paper == paper.paper]
        by_table, whole, law = ([_log(p, which) for p in mine] for which in range(3))
        for table in {p.table for p in mine}:
            assert sum(e for e, p in zip(by_table, mine, strict=True) if p.table == table) == pytest.approx(
                0, abs=1e-9
            )
        assert sum(whole) == pytest.approx(0, abs=1e-9)
        squares = [sum(e * e for e in errors) for errors in (by_table, whole, law)]
        assert squares[0] <= squares[1] + 1e-12 and squares[2] <= squares[1] + 1e-12


def _log(found: Point, which: int) -> float:
    """Of the rate that a baseline says over the published one; times go the other way."""
    ratio = found.simple[which] / found.published
    return math.log(1 / ratio if found.unit == "s" else ratio)


def test_the_page_has_every_paper_and_every_miss():
    page = unescape(section(LISTED))
    shown = re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td><td[^>]*>(\d+)</td>", page)
    assert {name for name, _, _ in shown} == set(NAMED)
    for paper, rows in LISTED:
        for row in rows:
            if row.claim.kind == "predicted" and row.verdict == "missed":
                assert f"{paper.name}, {row.claim.group}: {row.claim.what}" in page and row.cause in page
    assert page.count('class="finding missed"') == sum(
        row.claim.kind == "predicted" and row.verdict == "missed" for _, rows in LISTED for row in rows
    )
    assert "<img" in page and all(name in page for name in COLUMNS)


def test_the_block_of_the_readme_is_the_table():
    text = markdown(FOUND)
    head, rule, *lines = text.split("\n\n")[0].splitlines()
    assert head.split(" | ")[1] == COLUMNS[1] and rule.count("---") == len(COLUMNS)
    assert [re.split(r" ?\| ?", line)[1:-1] for line in lines] == [
        [c for c in line] for line in summary(FOUND)
    ]
    assert markdown([]) == "Not run yet." and section([]) == ""


def test_the_picture_is_drawn(tmp_path):
    predictions.draw(tmp_path / "x.png", FOUND)
    assert (tmp_path / "x.png").stat().st_size > 20000
