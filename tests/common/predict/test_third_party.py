"""The page of third-party points: its data against what their sources print of it, its sums against hand work."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch

from common.grid import Grid
from common.layers.context import Context
from common.models.language_model import LanguageModel
from common.pipeline.stages import cuts
from common.predict import third_party
from common.predict.hardware import cluster
from common.predict.memory import Memory, RankMemory, Term
from common.predict.third_party import Row, judge, summaries, summary
from common.predict.third_party_page import chart, markdown
from common.predict.third_party_points import BEYOND, _points, points
from common.trace.world import world

BY_ID = {point.id: point for point in points()}
# 10^9 parameters: of MPT as llm-foundry prints them for these runs, of Llama from the cards of its models, of GPT as named.
PARAMETERS = {"LF-002": 64.862, "LF-004": 29.975, "LF-006": 12.849, "LF-012": 12.864, "LF-014": 6.653, "LF-060": 6.919,
              "LF-026": 2.652, "LF-030": 1.316, "LF-034": 0.124, "LF-040": 0.149, "TT-03": 70.554, "TT-01": 8.030,
              "TT-05": 13.016, "TT-07": 68.977, "TT-25": 405.853}
# TFLOP/s per GPU that the source prints, by 96 B s l h^2 (1 + s / 6h + V / 16lh) FLOPs an iteration, of all that runs.
PRINTED = {"BL-55": 153.33, "BL-21": 140.24, "BL-37": 149.75}
POINT = replace(BY_ID["BL-55"], value=100.0, memory=50e9)


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_parameters_that_their_sources_print(name):
    point = replace(BY_ID[name], features=(), pp=1, tp=1, cp=1, batch=BY_ID[name].dp * BY_ID[name].micro_batch,
                    recompute="none")
    with world(Grid()) as layout:
        model = LanguageModel(point.recipe().model, Context(layout, "sdpa", dtype=torch.bfloat16, device="meta"))
    count = sum(p.numel() for p in set(model.parameters()))
    assert round(count / 1e9, 3) == pytest.approx(PARAMETERS[name], abs=0.0011)


def test_every_point_is_a_recipe_that_can_run_or_says_why_not():
    assert len(BY_ID) == len(points()) == 106
    for point in points():
        if point.features:
            with pytest.raises(ValueError, match=BEYOND[point.features[0]].replace("(", r"\(").replace(")", r"\)")):
                point.recipe()
            continue
        recipe = point.recipe()
        recipe.check()
        cluster(point.cluster).check_size(recipe.grid.world)
        assert point.fits == (point.value is not None), point.id
    assert sum(point.counted for point in points()) > 70


def test_accumulation_is_what_the_sources_print():
    """Micro-batches of an iteration: "ga" of llm-foundry."""
    printed = {"LF-002": 1, "LF-006": 16, "LF-014": 4, "LF-042": 16, "LF-044": 21, "LF-082": 3, "LF-118": 1}
    assert {name: BY_ID[name].recipe().micro_batches for name in printed} == printed


@pytest.mark.parametrize("name", PRINTED)
def test_work_and_time_make_the_rate_that_the_source_prints(name):
    point = BY_ID[name]
    row = judge(point)
    size = point.model
    s, layers, h = point.sequence, size["layers"], size["hidden"]
    work = 96 * point.batch * s * layers * h**2 * (1 + s / (6 * h) + size["vocab"] / (16 * layers * h))
    assert work / point.value / point.ranks / 1e12 == pytest.approx(PRINTED[name], rel=0.002)
    assert row.value > work / (312e12 * point.ranks)  # no faster than the peak
    assert row.error == pytest.approx(row.value / point.value - 1)


def test_layers_that_do_not_divide_leave_room_for_embedding_and_output():
    layers = BY_ID["BL-37"].recipe().model.layers  # 106 over 12 stages
    sizes = [last - first for first, last in cuts(layers, 12)]
    assert sizes == [8, *[9] * 10, 8]
    with pytest.raises(ValueError, match="neither"):
        replace(BY_ID["BL-37"], pp=7).recipe()


def test_gradients_in_16_bits_take_half():
    terms = (Term("s", "gradients", 8.0, "exact"), Term("s", "main weights", 4.0, "exact"))
    whole = Memory((RankMemory(0, (1,), terms, 1.0),), 10.0)
    narrow = third_party._narrow(whole)
    assert (whole.peak.needed, narrow.peak.needed) == (13.0, 9.0)
    assert (whole.fits, narrow.fits) == (False, True)


def rows() -> list[Row]:
    """Errors of 10 % and -30 %; one that ran and was said not to fit; one doubtful; one not covered; one out of memory."""
    return [Row(POINT, 110.0, 60e9, True), Row(replace(POINT, id="b"), 70.0, 40e9, False),
            Row(replace(POINT, quality="C"), 900.0, 1.0, False), Row(replace(POINT, features=("float8",))),
            Row(replace(POINT, fits=False, value=None, memory=None), 50.0, 90e9, False)]


def test_sums_by_hand():
    found = summary(rows())
    assert (found.points, found.verdicts) == (2, 3)
    assert found.median == pytest.approx(0.2) and found.worst == pytest.approx(0.3)
    assert found.close == 0.5
    assert found.right == pytest.approx(2 / 3)
    assert found.memory == pytest.approx(0.2)
    assert summary(rows()[2:4]) is None
    assert summaries(rows()).keys() == {"bloom", "all"}


def test_the_page_shows_every_row(tmp_path):
    """Those that are not covered with their reason, doubtful ones in brackets."""
    text = markdown(rows(), summaries(rows()))
    assert BEYOND["float8"] in text and f"({POINT.id})" in text and "out of memory" in text
    assert text.count(POINT.id) == 4
    chart(rows(), tmp_path / "points.svg")
    assert "predicted / measured" in (tmp_path / "points.svg").read_text() or (tmp_path / "points.svg").stat().st_size > 5000


def test_command(capsys):
    with pytest.raises(SystemExit) as ended:
        third_party.main(["LF-036", "LF-112", "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    row, beyond = found["rows"]
    assert row["predicted"] * (1 / (1 + row["error"])) == pytest.approx(row["measured"]) == 136334
    assert sum(row["time"].values()) * row["predicted"] == pytest.approx(row_tokens(row))
    assert beyond["predicted"] is None and beyond["not_covered"] == ["float8"]
    assert found["summary"]["all"]["points"] == 1


def row_tokens(row: dict) -> float:
    """Tokens of an iteration of each GPU: 624 sequences of 2048 over 8."""
    return 624 * 2048 / 8


def test_an_unknown_point_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        third_party.main(["LF-003"])
    assert ended.value.code == 2
    assert "'LF-003' is unknown: use some of BL-01" in capsys.readouterr().err


def test_a_feature_that_nothing_names_is_refused():
    text = (third_party.__file__.removesuffix(".py") + ".toml")
    with open(text, "rb") as file:
        data = tomllib.load(file)
    data["table"][2]["rows"][0][-1] = ["float3"]
    with pytest.raises(ValueError, match="LF-002: float3 is unknown"):
        list(_points(data))
