"""One rank fails: all end at once, with that rank's own error. Each case is a real failure of a process."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from infra.launch import run_local
from infra.local_ranks import LocalRanks
from infra.rank_failure import RankFailure, RankReport, RankTimeout, root_cause
from tests.infra import rank_functions as functions


@pytest.fixture(scope="module", autouse=True)
def fork_server():
    run_local(functions.place, 1)


def failure(function, count, *arguments):
    """The failure that the launcher raises, which must come within seconds."""
    start = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        run_local(function, count, *arguments)
    assert time.monotonic() - start < 8.0
    assert caught.value.size == count
    return caught.value


@pytest.mark.parametrize("rank", [0, 2])
def test_an_exception_is_reported_with_its_rank_and_traceback(rank):
    found = failure(functions.raise_on, 4, rank)
    assert (found.rank, found.error) == (rank, "ValueError")
    assert found.message == f"rank {rank} does not like its data"
    assert "in raise_on" in found.traceback and "rank_process.py" not in found.traceback
    assert str(found).startswith(f"rank {rank} of 4 failed: ValueError: rank {rank} does not like its data")


def test_the_cause_wins_over_lost_connections_that_were_reported_before_it():
    found = failure(functions.raise_after_peers, 4, 2)
    assert (found.rank, found.error, found.message) == (2, "ValueError", "the cause")


def test_an_error_raised_because_of_a_lost_connection_is_not_the_cause():
    found = failure(functions.wrap_lost_connection, 4, 1)
    assert (found.rank, found.error, found.exit_code) == (1, None, 7)
    assert "exited with code 7" in str(found)


def test_the_earliest_of_several_real_errors_wins(tmp_path):
    found = failure(functions.raise_in_turn, 4, str(tmp_path))
    assert (found.rank, found.message) == (3, "first")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_killed_in_a_collective_is_named_with_its_signal(number):
    found = failure(functions.kill_on, 4, 3, number)
    assert (found.rank, found.exit_code) == (3, -number)
    assert number.name in str(found)


@pytest.mark.parametrize("code", [0, 3])
def test_leaving_by_sys_exit_is_a_failure(code):
    found = failure(functions.exit_on, 3, 1, code)
    assert (found.rank, found.error, found.message) == (1, "SystemExit", str(code))


def test_leaving_by_os_exit_is_a_failure_even_with_code_0():
    found = failure(functions.leave_without_a_word, 2, 1)
    assert (found.rank, found.error, found.exit_code) == (1, None, 0)


def test_out_of_memory_is_reported_by_the_rank_that_met_it():
    found = failure(functions.exhaust_memory, 3, 1, 8 * 2**30)
    assert found.rank == 1 and "can't allocate memory" in found.message


def test_a_crash_in_native_code_shows_where():
    found = failure(functions.crash_on, 3, 1)
    assert (found.rank, found.exit_code) == (1, -signal.SIGSEGV)
    assert "in crash_on" in found.traceback and "multiprocessing" not in found.traceback


def test_a_result_that_cannot_be_sent_is_that_ranks_error():
    found = failure(functions.return_unpicklable, 2)
    assert "return_unpicklable" in found.message


def test_a_rank_that_returned_too_early_is_named(monkeypatch):
    start = time.monotonic()
    with pytest.raises(RankFailure, match="returned already: 0") as caught:
        run_local(functions.leave_early, 3)
    assert time.monotonic() - start < 15
    assert caught.value.rank in (1, 2)


def test_a_timeout_names_the_ranks_and_where_they_stand():
    start = time.monotonic()
    with pytest.raises(RankTimeout, match="ranks 0, 1 had not returned after 1 s") as caught:
        run_local(functions.wait_for_nobody, 2, 0, timeout=1.0)
    assert time.monotonic() - start < 4
    on_rank_0, on_rank_1 = str(caught.value).split("On rank 1:")
    assert "in recv" in on_rank_0 and "in wait_for_nobody" in on_rank_0
    assert "in wait_for_nobody" in on_rank_1 and "in recv" not in on_rank_1


def test_new_ranks_work_after_a_failure_and_the_failed_ones_are_gone():
    group = LocalRanks(3)
    pids = [place[2] for place in group.call(functions.place)]
    with pytest.raises(RankFailure):
        group.call(functions.raise_on, 0)
    assert not any(functions.is_alive(pid) for pid in pids)
    with pytest.raises(ValueError, match="have ended"):
        group.call(functions.place)
    assert run_local(functions.all_sum, 3, 0) == [3.0] * 3


def test_ranks_killed_between_two_calls_are_reported_by_the_next():
    with LocalRanks(3) as group:
        os.kill(group.call(functions.place)[1][2], signal.SIGKILL)
        with pytest.raises(RankFailure) as caught:
            group.call(functions.all_sum, 0)
    assert caught.value.rank == 1


def test_no_rank_outlives_its_launcher(tmp_path):
    """The launcher is killed while its ranks sleep, each with a process of its own."""
    code = ("import sys; from infra.launch import run_local; from tests.infra import rank_functions as f; "
            "run_local(f.write_pids_and_sleep, 3, sys.argv[1], True)")
    launcher = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)],
                                env=functions.environment_with_path())
    pids = functions.wait_for_pids(tmp_path, 3)
    assert len(pids) == 6 and all(functions.is_alive(pid) for pid in pids)
    launcher.kill()
    launcher.wait()
    assert functions.all_gone(pids, seconds=5)


def test_ctrl_c_ends_all_ranks_and_what_they_started(tmp_path):
    """A terminal sends SIGINT to the foreground group: the launcher must be in it, and no rank."""
    def interrupt():
        pids.extend(functions.wait_for_pids(tmp_path, 3))
        groups.update(os.getpgid(pid) for pid in pids)
        os.kill(os.getpid(), signal.SIGINT)

    pids: list[int] = []
    groups: set[int] = set()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_local(functions.write_pids_and_sleep, 3, str(tmp_path), True)
    assert len(pids) == 6 and len(groups) == 3 and os.getpgrp() not in groups
    assert functions.all_gone(pids, seconds=2)


def test_the_cause_is_the_earliest_report_that_blames_no_peer():
    lost = RankReport(0, "RuntimeError", "Connection closed by peer", blames_peer=True, time=1.0)
    late = RankReport(1, "ValueError", "late", time=3.0)
    early = RankReport(2, "ValueError", "early", time=2.0)
    assert root_cause([lost, late, early]) is early
    assert root_cause([late, lost]) is late
    assert root_cause([RankReport(1, "RuntimeError", "", blames_peer=True, time=2.0), lost]) is lost
