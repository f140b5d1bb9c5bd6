"""Timelines: nothing on a lane overlaps, all lies in the iteration, and the trace is what viewers read."""

import json
from itertools import groupby, pairwise

import pytest
from matplotlib.image import imread

from common.grid import Grid
from common.predict.iteration import predict
from common.predict.memory import held
from common.predict.price import Costs
from common.predict.timeline import chrome_trace, events, write
from tests.common.predict.small import GPT, recipe, selene


@pytest.fixture(scope="module")
def found():
    base = recipe(
        GPT, Grid(tp=2, dp=2, pp=2), batch=8, schedule="interleaved", chunks=2, sharded_optimizer=True
    )
    return predict(base, selene(), Costs(selene()))


def test_lanes_do_not_overlap_and_reach_the_end(found):
    listed = list(events(found))
    for (rank, lane), lane_events in groupby(
        sorted(listed, key=lambda e: (e.rank, e.lane, e.start)), key=lambda e: (e.rank, e.lane)
    ):
        lane_events = list(lane_events)
        assert all(a.end <= b.start + 1e-12 for a, b in pairwise(lane_events)), (rank, lane)
        assert lane_events[0].start >= 0
        if lane == "passes":
            assert lane_events[-1].end == pytest.approx(found.seconds, rel=1e-12)
    assert max(e.end for e in listed if e.chunk is not None) == pytest.approx(found.played.makespan)


def test_every_pass_is_there_once(found):
    plan = found.played.schedule
    for rank in range(plan.ranks):
        mine = [
            (e.name, e.chunk, e.micro_batch) for e in events(found) if e.rank == rank and e.chunk is not None
        ]
        wanted = {
            (kind, c, m)
            for kind in ("forward", "backward")
            for c in range(2)
            for m in range(found.recipe.micro_batches)
        }
        assert len(mine) == len(wanted) and set(mine) == wanted


def test_a_pass_starts_after_the_one_it_needs(found):
    plan = found.played.schedule
    at = {
        (e.name, plan.stage(e.rank, e.chunk), e.micro_batch): e for e in events(found) if e.chunk is not None
    }
    for (name, stage, m), event in at.items():
        if name == "forward" and stage:
            assert event.start >= at["forward", stage - 1, m].end
        if name == "backward":
            before = at["backward", stage + 1, m] if stage < plan.stages - 1 else at["forward", stage, m]
            assert event.start >= before.end


def test_chrome_trace_has_the_fields_of_the_format(found, tmp_path):
    """Trace Event Format: ph, pid and name always; ts and dur in µs for complete events (X), ts and args of
    numbers for counters (C), args.name for metadata (M)."""
    write(found, tmp_path / "t.json")
    read = json.loads((tmp_path / "t.json").read_text())
    assert read == json.loads(json.dumps(chrome_trace(found)))
    kinds = {"X": 0, "C": 0, "M": 0}
    for record in read["traceEvents"]:
        kinds[record["ph"]] += 1
        assert isinstance(record["pid"], int) and record["name"]
        if record["ph"] == "X":
            assert record["ts"] >= 0 and record["dur"] >= 0 and record["tid"] in (0, 1, 2)
            assert record["ts"] + record["dur"] <= found.seconds * 1e6 * (1 + 1e-9)
        if record["ph"] == "C":
            assert all(isinstance(v, int) for v in record["args"].values())
        if record["ph"] == "M":
            assert record["name"] in ("process_name", "thread_name") and record["args"]["name"]
    passes = 2 * 2 * 2 * found.recipe.micro_batches
    assert kinds["C"] == passes and kinds["X"] > passes
    assert "layers 0-1, 2-3" in next(
        r["args"]["name"] for r in read["traceEvents"] if r["name"] == "process_name"
    )


def test_counters_are_the_bytes_kept(found):
    counters = [
        r["args"]["bytes"] for r in chrome_trace(found)["traceEvents"] if r["ph"] == "C" and r["pid"] == 0
    ]
    assert counters == held(found.played.schedule, found.stages, 0).tolist()
    assert max(counters) > 0 == counters[-1]


def test_picture_is_drawn(found, tmp_path):
    write(found, tmp_path / "t.png")
    pixels = imread(tmp_path / "t.png")[..., :3]
    assert pixels.shape[1] > 1000 and len({tuple(p) for p in pixels[::7, ::7].reshape(-1, 3).tolist()}) > 5
