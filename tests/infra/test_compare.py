"""Steps measured beside predicted ones: what is measured is real training, and what is drawn is both."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from common.claims.origin import origin_of
from common.grid import Grid
from common.predict.hardware_file import dumps
from infra.compare import Compare, Compared, as_json, compare, table, work
from infra.compare_page import draw, section
from infra.launch import run_local
from infra.measure import measure
from infra.timed_steps import on_rank
from papers.interleaved_pipelining.recipes import laptop_figure16


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("record") / "here.toml"
    path.write_text(dumps(measure("cpu", quick=True)))
    return str(path)


def test_every_rank_runs_the_actions_of_its_stage_in_order():
    recipe = replace(laptop_figure16(), grid=Grid(pp=2))
    ranks = run_local(on_rank, 2, recipe, 2)
    for rank in ranks:
        assert len(rank.spans) == 2 and all(start < end for start, end in rank.spans)
        assert [kind for kind, *_ in rank.actions].count("backward") == recipe.micro_batches
        assert all(a[-1] <= b[-2] for a, b in zip(rank.actions, rank.actions[1:], strict=False))
        assert rank.actions[-1][-1] <= rank.spans[-1][1] - rank.spans[-1][0]


def test_measured_and_predicted_stand_side_by_side_and_are_drawn(record, tmp_path: Path):
    found = compare("interleaved_pipelining:laptop_figure16", record, 2)
    assert isinstance(found, Compared) and len(found.ranks) == 2 and len(found.seconds) == 2
    assert found.error == pytest.approx(found.predicted.seconds / found.measured - 1)
    result = as_json(found)
    assert [len(lane) for lane in result["measured lanes"]] == [len(lane) for lane in result["predicted lanes"]]
    assert table([result]).row_count == 1
    draw(tmp_path / "steps.png", result)
    assert (tmp_path / "steps.png").stat().st_size > 10_000
    stored = tmp_path / "steps.json"
    assert section(stored) == ""
    stored.write_text(json.dumps({"origin": asdict(origin_of("a test")), "results": [result]}))
    assert "interleaved_pipelining:laptop_figure16" in section(stored) and "<img" in section(stored)


@pytest.mark.parametrize("options, message", [
    (Compare(("nothing:here",), "selene"), "'nothing:here' is unknown"),
    (Compare(("mt_nlg:laptop",), "no_such"), "'no_such' is unknown.*infra.measure"),
    (Compare((), "selene", steps=0), "--steps 0: needs at least 1"),
])
def test_what_cannot_be_compared_is_refused_before_any_rank(options, message):
    with pytest.raises(ValueError, match=message):
        work(options)
