"""A paper's series: its numbers, its recipes, its factor, without any of the papers."""

import tomllib

import pytest

from common.claims.published import load
from common.grid import Grid
from common.predict import series
from common.predict.series import Predicted, Series
from tests.common.predict.small import GPT, recipe

ONE, TWO = recipe(GPT, Grid(dp=2), batch=4), recipe(GPT, Grid(dp=2), batch=8)
PUBLISHED = """
[paper]
slug = "sample"
title = "Sandpiles"
arxiv = "0000.00000"
read_from = "the author's copy"

[[claim]]
id = "table1"
where = "Table 1"
what = "Time"
confidence = "read"
[claim.values]
seconds = 2
rates = [1.5, 3]
"""


@pytest.fixture
def facts(tmp_path):
    tomllib.loads(PUBLISHED)
    (tmp_path / "published.toml").write_text(PUBLISHED)
    return load(tmp_path / "published.toml")


def test_numbers_are_read_one_for_each_recipe(facts):
    single = Series("table1", "seconds", "Table 1", lambda: (ONE,), "s")
    several = Series("table1", "rates", "Table 1", lambda: (ONE, TWO), "sequences/s", several=True)
    assert single.id == "table1/seconds" and single.published(facts) == (2.0,)
    assert several.published(facts) == (1.5, 3.0) and several.recipes == (ONE, TWO)


def test_a_prediction_is_read_in_the_unit_of_the_series():
    """Of one recipe, the three units are the same time."""
    paper = Predicted("mt_nlg", "selene", ())
    (seconds,), (sequences,), (tera,) = (Series("x", "y", "t", lambda: (TWO,), unit).predicted(paper)
                                         for unit in ("s", "sequences/s", "TFLOP/s per GPU"))
    assert seconds > 0 and sequences * seconds == pytest.approx(8)
    assert tera * 1e12 * seconds * 2 == pytest.approx(paper.of(TWO).work.hardware)


def test_a_larger_factor_takes_longer_and_the_stored_one_is_the_default():
    paper = Predicted("mt_nlg", "selene", ())
    stored = paper.costs().software
    assert stored == series.constants().software["mt_nlg"] and paper.costs(1.0).software == 1.0
    assert paper.of(TWO).seconds == paper.of(TWO, stored).seconds
    assert paper.of(TWO, 1.0).seconds < paper.of(TWO, 2.0).seconds
    assert paper.of(TWO, 2.0) is paper.of(TWO, 2.0)


def test_the_fitted_row_is_that_of_the_paper():
    rows = {Predicted(paper, "selene", ()).fitted for paper in series.constants().software}
    assert len(rows) == len(series.constants().software)
