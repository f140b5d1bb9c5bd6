"""The page of third-party points: its data against what their sources print of it, its sums against hand
work."""

import json
import re
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from common.grid import Grid
from common.layers.context import Context
from common.models.language_model import LanguageModel
from common.pipeline.stages import cuts
from common.predict import fully_sharded, third_party, third_party_software
from common.predict.hardware import cluster
from common.predict.memory import Memory, RankMemory, Term
from common.predict.price import Costs
from common.predict.third_party import Row, judge, summaries, summary
from common.predict.third_party_page import chart, markdown
from common.predict.third_party_points import BEYOND, Point, _points, points
from common.trace.world import world

BY_ID = {point.id: point for point in points()}
# 10^9 parameters: of MPT as llm-foundry prints them for these runs, of Llama from the cards of its models.
PARAMETERS = {"LF-002": 64.862, "LF-004": 29.975, "LF-006": 12.849, "LF-012": 12.864, "LF-014": 6.653,
              "LF-060": 6.919, "LF-026": 2.652, "LF-030": 1.316, "LF-034": 0.124, "LF-040": 0.149,
              "TT-03": 70.554, "TT-01": 8.030, "TT-05": 13.016, "TT-07": 68.977, "TT-25": 405.853}
# TFLOP/s per GPU that the source prints, by 96 B s l h^2 (1 + s / 6h + V / 16lh) FLOPs an iteration.
PRINTED = {"BL-55": 153.33, "BL-21": 140.24, "BL-37": 149.75}
POINT = replace(BY_ID["BL-55"], value=100.0, memory=50e9)


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_parameters_that_their_sources_print(name):
    point = replace(BY_ID[name], features=(), pp=1, tp=1, cp=1, batch=1, recompute="none")
    with world(Grid()) as layout:
        context = Context(layout, "sdpa", dtype=torch.bfloat16, device="meta")
        model = LanguageModel(point.recipe().model, context)
    count = sum(p.numel() for p in set(model.parameters()))
    assert round(count / 1e9, 3) == pytest.approx(PARAMETERS[name], abs=0.0011)


def test_every_point_is_a_recipe_that_can_run_or_says_why_not():
    assert len(BY_ID) == len(points()) == 106
    for point in points():
        if point.features:
            with pytest.raises(ValueError, match=re.escape(BEYOND[point.features[0]])):
                point.recipe()
            continue
        for recipe in point.recipes():
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


def test_every_second_layer_recomputed_lies_between_all_and_none():
    point = replace(BY_ID["TT-01"], model=BY_ID["TT-01"].model | {"layers": 8})
    policies = ("every second layer", "full", "none")
    some, every, none = (judge(replace(point, recompute=name)) for name in policies)
    assert 1 / some.value == pytest.approx((1 / every.value + 1 / none.value) / 2)
    assert some.needed == pytest.approx((every.needed + none.needed) / 2)
    assert every.needed < some.needed < none.needed and every.value < some.value < none.value


def test_software_that_is_known_is_priced():
    """A run with long sequences on a Triton kernel: its attention takes 1.4 to 2 times as long."""
    plain, told = (judge(BY_ID["LF-040"], plain) for plain in (True, False))
    times = [row.time["attention core"] for row in (plain, told)]
    assert 1.4 < times[1] / times[0] < 2
    assert plain.time["matrix products"] == pytest.approx(told.time["matrix products"])
    assert judge(BY_ID["TT-05"], True) == judge(BY_ID["TT-05"])


def test_layers_that_do_not_divide_leave_room_for_embedding_and_output():
    layers = BY_ID["BL-37"].recipe().model.layers  # 106 over 12 stages
    sizes = [last - first for first, last in cuts(layers, 12)]
    assert sizes == [8, *[9] * 10, 8]
    with pytest.raises(ValueError, match="neither"):
        replace(BY_ID["BL-37"], pp=7).recipe()


def kept(point: Point) -> Memory:
    """What the software of a point keeps of 2 bytes a weight, 8 of main weights and 4 a gradient, with 1
    apart."""
    terms = (("weights", 2.0), ("main weights", 8.0), ("gradients", 4.0))
    rank = RankMemory(0, (1,), tuple(Term("s", name, size, "exact") for name, size in terms), 1.0)
    return third_party_software.memory(point, SimpleNamespace(memory=Memory((rank,), 14.0)))


def test_gradients_are_kept_as_the_sources_keep_them():
    """In 16 bits, in 32 with those of a pass beside them, and as here."""
    assert kept(BY_ID["BL-21"]).peak.needed == 13 and kept(BY_ID["BL-21"]).fits
    assert kept(BY_ID["BL-55"]).peak.needed == 17 and not kept(BY_ID["BL-55"]).fits
    assert kept(BY_ID["TT-03"]).peak.needed == 15


def test_a_fused_loss_keeps_the_logits_in_16_bits():
    """Of the page's smallest model, 26 sequences of 2048 tokens over 50,368 words; no other tensor is as
    large."""
    recipe, where = BY_ID["LF-036"].recipe(), cluster("roce_a100_40gb")
    found = fully_sharded.predict(recipe, where, Costs(where))
    fused = third_party_software.fused_loss(found)
    logits = 26 * 2048 * 50_368
    saved = found.memory.peak.total - fused.peak.total
    assert 2 * logits + 4 * logits <= saved < 2 * logits + 12 * logits  # and what its gradient took
    assert found.memory.peak.needed - fused.peak.needed == pytest.approx(1.05 * saved)


def rows() -> list[Row]:
    """Errors of 10 % and -30 %; one that ran and was said not to fit; one doubtful; one not covered; one out
    of memory."""
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
    text = markdown(rows(), summaries(rows()), third_party_software.NOTES)
    assert all(note in text for note in third_party_software.NOTES.values())
    assert BEYOND["float8"] in text and f"({POINT.id})" in text and "out of memory" in text
    assert text.count(POINT.id) == 4
    chart(rows(), tmp_path / "points.svg")
    drawn = (tmp_path / "points.svg").read_text()
    assert drawn.count("<use ") > 5  # ticks, and the marks of the rows with a value


def test_what_is_stored_comes_back_and_stands_in_the_report(tmp_path):
    path = tmp_path / "kept.json"
    assert third_party.section(path) == ""
    kept = [Row(BY_ID["BL-55"], 100.0, 50e9, True, {"matrix products": 100.0}), Row(BY_ID["LF-112"])]
    third_party.store(kept, path)
    found, origin = third_party.stored(path)
    assert found == kept and origin["command"].endswith("--store")
    page = third_party.section(path)
    assert "BL-55" in page and "LF-112" in page and "<img" in page and origin["commit"] in page
    with pytest.raises(SystemExit) as ended:
        third_party.main(["LF-036", "--store"])
    assert ended.value.code == 2


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
