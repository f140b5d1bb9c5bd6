"""Metrics on disk survive a kill and a resume; progress suits a terminal and a file."""

import errno
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.training import progress
from common.training.metrics import MetricsLog, StepMetrics, drop_after, read_metrics
from common.training.progress import clock

ROOT = Path(__file__).resolve().parents[3]


def metrics(step, **changes):
    values = {"loss": 3.5, "lr": 1e-3, "grad_norm": 0.5, "tokens": 256, "tokens_per_s": 1500.0}
    return StepMetrics(step, **(values | changes))


def write(path, steps, **options):
    with MetricsLog(path, stream=io.StringIO(), **options) as log:
        for step in steps:
            log.step(metrics(step))


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_each_step_is_one_line_with_every_field(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, stream=io.StringIO()) as log:
        log.step(metrics(1, mfu=0.4, loss_scale=65536.0, times={"forward": 0.25}))
        log.evaluation(1, "validation", {"loss": 3.25, "perplexity": 25.8})
        log.step(metrics(2, skipped=True))
        lines = path.read_text().splitlines()  # before the log is closed
    assert json.loads(lines[0]) == {
        "step": 1, "loss": 3.5, "lr": 1e-3, "grad_norm": 0.5, "tokens": 256, "tokens_per_s": 1500.0,
        "mfu": 0.4, "loss_scale": 65536.0, "skipped": False, "times": {"forward": 0.25}}
    assert json.loads(lines[1]) == {"step": 1, "evaluation": "validation", "loss": 3.25, "perplexity": 25.8}
    assert json.loads(lines[2])["skipped"] is True and json.loads(lines[2])["mfu"] is None
    assert read_metrics(path) == [json.loads(line) for line in lines]


def test_numbers_that_are_not_finite_are_strict_json_and_come_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, stream=io.StringIO()) as log:
        log.step(metrics(1, loss=math.nan, grad_norm=math.inf, times={"x": -math.inf}))

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    row = read_metrics(path)[0]
    assert math.isnan(row["loss"]) and row["grad_norm"] == math.inf and row["times"]["x"] == -math.inf


def test_only_rank_0_writes(tmp_path, capsys):
    write(tmp_path / "metrics.jsonl", [1, 2], rank=3)
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


def test_a_killed_writer_loses_nothing_but_what_it_was_writing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = ("import io, sys, os, signal; from pathlib import Path; "
            "from common.training.metrics import MetricsLog, StepMetrics\n"
            "log = MetricsLog(Path(sys.argv[1]), stream=io.StringIO())\n"
            "for step in range(1, 501): log.step(StepMetrics(step, 1.0, 1.0, 1.0, 1, 1.0))\n"
            "os.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(path)] == list(range(1, 501))


@pytest.mark.parametrize("cut", [1, 2, 20, 10_000])
def test_an_unfinished_last_line_is_left_out_and_removed_on_resume(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3])
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[:-min(cut, last - 1)])
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    write(path, [3, 4], resume_at=2)
    assert steps_in(path) == [1, 2, 3, 4]


def test_lines_after_the_checkpoint_are_dropped_on_resume_and_those_before_keep_their_bytes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 11))
    before = path.read_bytes().splitlines(keepends=True)
    write(path, [7, 8], resume_at=6)
    assert steps_in(path) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert path.read_bytes().splitlines(keepends=True)[:6] == before[:6]
    write(path, [1], resume_at=0)
    assert steps_in(path) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_resume_that_is_stopped_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3])
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        drop_after(path, 1)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_new_run_does_not_write_into_anothers_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1])
    with pytest.raises(ValueError, match="has metrics already: resume that run or start another"):
        MetricsLog(path)
    assert steps_in(path) == [1]


@pytest.mark.parametrize("line", ["{\"step\": 2", "", "[1]", "\x00\x00"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(ValueError, match="metrics.jsonl', line 2 is damaged"):
        read_metrics(path)


def test_lines_that_a_full_disk_refuses_wait_for_room(tmp_path, monkeypatch):
    """The file has whole lines at any time."""
    path = tmp_path / "metrics.jsonl"
    real = os.write
    with MetricsLog(path, stream=io.StringIO()) as log:
        log.step(metrics(1))
        monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
        log.step(metrics(2))
        assert steps_in(path) == [1] and path.read_bytes().endswith(b"\n")
        log.step(metrics(3))
        monkeypatch.undo()
        log.step(metrics(4))
    assert steps_in(path) == [1, 2, 3, 4]


def test_lines_that_find_no_room_to_the_end_are_an_error(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, stream=io.StringIO())
    log.step(metrics(1))

    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    log.step(metrics(2))
    with pytest.raises(OSError, match="the last 1 lines of metrics could not be written: make room"):
        log.close()
    assert steps_in(path) == [1]


def test_losses_of_the_steps_before_come_back_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, stream=io.StringIO()) as log:
        assert log.losses_before(5) == []
        for step in range(1, 6):
            log.step(metrics(step))
        log.evaluation(5, "valid", {"loss": 9.0})
    with MetricsLog(path, resume_at=4, stream=io.StringIO()) as log:
        assert log.losses_before(2) == [metrics(3).loss, metrics(4).loss]


def test_without_a_terminal_there_is_a_line_now_and_then(tmp_path, monkeypatch):
    clock_now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock_now[0])
    out = io.StringIO()
    with MetricsLog(tmp_path / "m", stream=out, total_steps=100) as log:
        for step in range(1, 26):
            clock_now[0] += 1.0
            log.step(metrics(step, mfu=0.413, loss=3.0 + step / 100))
    assert out.getvalue().splitlines() == [
        "step 1/100  loss 3.0100  1,500 tokens/s  MFU 41.3 %  1:39 left",
        "step 11/100  loss 3.1100  1,500 tokens/s  MFU 41.3 %  1:29 left",
        "step 21/100  loss 3.2100  1,500 tokens/s  MFU 41.3 %  1:19 left",
        "step 25/100  loss 3.2500  1,500 tokens/s  MFU 41.3 %  1:15 left",
    ]


def test_the_time_left_after_a_resume_counts_only_this_process(tmp_path, monkeypatch):
    clock_now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock_now[0])
    out = io.StringIO()
    with MetricsLog(tmp_path / "m", stream=out, total_steps=100, resume_at=90) as log:
        clock_now[0] += 2.0
        log.step(metrics(91))
    assert "0:18 left" in out.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_line_that_is_redrawn(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    clock_now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock_now[0])
    terminal = Terminal()
    with MetricsLog(tmp_path / "m", stream=terminal, total_steps=3) as log:
        for step in range(1, 4):
            clock_now[0] += 1.0
            log.step(metrics(step))
            if step == 2:
                log.evaluation(2, "validation", {"loss": 3.25})
    screen = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rpartition("\r")[2]
              for line in terminal.getvalue().split("\n")]
    shown = [line.strip() for line in screen if line.strip()]
    assert shown == ["step 2  validation: loss 3.25", "step 3/3  loss 3.5000  1,500 tokens/s  0:00 left"]
    assert "step 1/3" in terminal.getvalue()


def test_tensorboard_has_the_same_numbers_and_forgets_what_came_after_the_checkpoint(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "tb"
    with MetricsLog(tmp_path / "m", stream=io.StringIO(), tensorboard=folder) as log:
        for step in (1, 2, 3):
            log.step(metrics(step, loss=float(step), times={"forward": 0.5}))
        log.evaluation(3, "validation", {"loss": 9.0})
    with MetricsLog(tmp_path / "m", stream=io.StringIO(), tensorboard=folder, resume_at=2) as log:
        log.step(metrics(3, loss=33.0))
    events = EventAccumulator(str(folder)).Reload()
    points = {tag: [(event.step, event.value) for event in events.Scalars(tag)]
              for tag in events.Tags()["scalars"]}
    assert points["train/loss"] == [(1, 1.0), (2, 2.0), (3, 33.0)]
    assert points["train/times/forward"] == [(1, 0.5), (2, 0.5)]
    assert "train/mfu" not in points


def test_tensorboard_is_not_imported_unless_it_is_asked_for(tmp_path):
    code = ("import io, sys; from pathlib import Path; from common.training.metrics import MetricsLog\n"
            "MetricsLog(Path(sys.argv[1]), stream=io.StringIO()).close()\n"
            "print([name for name in sys.modules if name.startswith(('tensorboard', 'torch'))])")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("seconds, text", [(0, "0:00"), (59.6, "1:00"), (187, "3:07"), (7387, "2:03:07"),
                                           (93787, "1 d 2:03:07")])
def test_the_clock(seconds, text):
    assert clock(seconds) == text
