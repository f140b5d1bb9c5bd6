"""Drawings: cells and numbers against the simulated times, the text against one written by hand, the command's errors."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from common.pipeline.draw import draw, main, text
from common.pipeline.schedules import forward_only, gpipe, interleaved, one_f_one_b, zb_h1
from common.pipeline.simulate import simulate

COSTS = {"forward": 1, "backward": 2, "input_gradient": 1, "weight_gradient": 1}
ROOT = Path(__file__).resolve().parents[3]


def drawn(schedule, size=(12, 2)):
    ax = Figure(figsize=size).add_subplot()
    draw(schedule, COSTS, ax)
    return ax


@pytest.mark.parametrize("schedule", [gpipe(3, 4), interleaved(4, 2, 8), zb_h1(4, 8), forward_only(2, 3)],
                         ids=lambda schedule: schedule.name)
def test_cells_are_where_the_simulation_puts_them(schedule):
    ax, sim = drawn(schedule), simulate(schedule, COSTS)
    (cells,) = [c for c in ax.collections if isinstance(c, PolyCollection)]
    corners = [path.get_extents() for path in cells.get_paths()]
    found = sorted((round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in corners)
    expected = sorted((rank, start, end) for rank in range(schedule.ranks)
                      for start, end in zip(sim.start[rank], sim.end[rank], strict=True))
    np.testing.assert_allclose(found, expected)
    colours = {tuple(colour) for colour in cells.get_facecolors()}
    assert len(colours) == schedule.chunks * len({a.kind for a in schedule.of(0)})
    assert ax.get_xlim() == (0, sim.makespan)
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"Device {r + 1}" for r in range(schedule.ranks)]


def test_numbers_stand_in_the_cells_that_have_room():
    sim = simulate(one_f_one_b(2, 12), COSTS)
    ax = drawn(one_f_one_b(2, 12))
    expected = {((start + end) / 2, rank, str(a.micro_batch + 1)) for rank in range(2) for a, start, end in
                zip(one_f_one_b(2, 12).of(rank), sim.start[rank], sim.end[rank], strict=True)}
    assert {(*t.get_position(), t.get_text()) for t in ax.texts} == expected
    tight = drawn(one_f_one_b(2, 12), (3, 2))  # a forward pass gets 5 points: one digit, not two
    assert {t.get_text() for t in tight.texts} == {str(i + 1) for i in range(12)}
    assert sum(len(t.get_text()) == 2 for t in tight.texts) == 2 * 3  # those of backward passes
    assert not drawn(one_f_one_b(2, 12), (1, 1)).texts


def test_text():
    assert text(one_f_one_b(2, 2), COSTS) == (
        "1F1B: p=2, m=2; idle / ideal time 0.5\n"
        "device 1 | F1 F2 ......B1--- ...B2---\n"
        "device 2 | ...F1 B1--- F2 B2--- ......"
    )
    assert text(interleaved(2, 2, 2), {"forward": 1, "backward": 1}).splitlines()[1] == (
        "device 1 | F1a F2a F1b F2b ....B1b ....B2b B1a B2a")
    assert text(zb_h1(1, 1), COSTS).splitlines()[1] == "device 1 | F1 I1 W1"


@pytest.mark.parametrize("suffix,head", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_picture_files(tmp_path, suffix, head):
    path = tmp_path / f"schedules.{suffix}"
    draw([one_f_one_b(4, 8), interleaved(4, 2, 8)], [COSTS, {"forward": 0.5, "backward": 1}], path)
    assert path.read_bytes().startswith(head)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def test_the_command(tmp_path, capsys):
    path = tmp_path / "a.svg"
    assert run("interleaved", "-p", "2", "-v", "2", "-m", "4", "-o", str(path)) == 0
    assert path.exists() and capsys.readouterr().out == ""
    assert run("1f1b", "interleaved", "-p", "2", "-v", "2", "-m", "4", "--json") == 0
    plain, chunked = json.loads(capsys.readouterr().out)["schedules"]
    assert (plain["idle_over_ideal"], chunked["idle_over_ideal"]) == (1 / 4, 1 / 8)
    assert plain["ranks"][1][0] == {"kind": "forward", "chunk": 0, "micro_batch": 0, "flags": 0, "start": 1.0, "end": 2.0}
    assert run("zb-h1", "-p", "2", "-m", "2", "--backward", "3", "--weight", "2") == 0
    assert "W1" in capsys.readouterr().out


@pytest.mark.parametrize("arguments,words", [
    (["pipedream"], ["'pipedream'", "1f1b"]),
    (["interleaved", "-p", "4", "-m", "6"], ["6 micro-batches", "4 or 8"]),
    (["1f1b", "-v", "2"], ["chunks=2"]),
    (["1f1b", "-p", "0"], ["p=0"]),
    (["1f1b", "--backward", "1", "--weight", "2"], ["weight=2", "backward=1"]),
    (["1f1b", "--forward", "0"], ["forward=0", "above 0"]),
    (["1f1b", "--backward", "nan"], ["backward=nan", "above 0"]),
    (["1f1b", "--forward", "inf"], ["forward=inf"]),
    (["1f1b", "-o", "a.doc"], ["a.doc", ".png"]),
    (["1f1b", "-o", "nowhere/a.png"], ["no folder nowhere"]),
    (["1f1b", "-p", "20000"], ["p=20000", "1,315"]),
    (["1f1b", "gpipe", "-p", "700", "-o", "a.png"], ["1,400 rows", "1,315"]),
    (["1f1b", "-m", "2000"], ["m=2000", "6,009", "3,840"]),
    (["zb-h1", "-m", "100", "--forward", "0.01"], ["m=100", "3,840"]),
    ([], ["name a schedule"]),
])
def test_wrong_arguments_are_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and all(word in lines[0] for word in words), lines
    assert not list(tmp_path.iterdir())


def test_a_picture_is_replaced_only_when_asked(tmp_path, capsys):
    path = tmp_path / "a.svg"
    path.write_text("precious")
    assert run("1f1b", "-o", str(path)) == 2 and path.read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert run("1f1b", "-o", str(path), "--force") == 0 and path.read_text().startswith("<?xml")


def test_numbers_have_no_largest_size(capsys):
    """What no drawing shows is still counted: 1F1B's bubble is (p - 1) / m."""
    assert run("1f1b", "-p", "3", "-m", "2000", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["schedules"]
    assert one["idle_over_ideal"] == 2 / 2000


def test_the_largest_drawing_fits_its_picture(tmp_path):
    path = tmp_path / "a.png"
    assert run("1f1b", "-p", "1315", "-m", "1", "--backward", "1", "--weight", "0", "-o", str(path)) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_module_runs():
    done = subprocess.run([sys.executable, "-m", "common.pipeline.draw", "gpipe", "-p", "2", "-m", "2"],
                          cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "device 1 | F1 F2 .........B1--- B2---"
