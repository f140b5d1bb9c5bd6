"""Ranks that succeed: results, order, place, output; and requests that are refused before any start."""

import time

import pytest
import torch

from common.device import physical_cores
from infra import local_ranks
from infra.launch import run_local
from infra.local_ranks import LocalRanks, check_ranks
from infra.rank_failure import RankFailure
from tests.distributed import ranks
from tests.infra import rank_functions as functions


def test_results_come_in_rank_order_and_each_rank_knows_its_place():
    places = run_local(functions.place, 3)
    assert [place[:2] for place in places] == [(0, 3), (1, 3), (2, 3)]
    assert len({pid for _, _, pid, _ in places}) == 3
    assert {threads for *_, threads in places} == {max(1, physical_cores() // 3)}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_collectives_work_for_any_number_of_ranks(count):
    assert run_local(functions.all_sum, count, 10) == [10 * count + sum(range(count))] * count


def test_uneven_exchange_in_bf16():
    expected = torch.tensor([0, 1, 1, 2, 2, 2], dtype=torch.bfloat16)
    for received in run_local(functions.uneven_exchange, 3):
        assert received.dtype == torch.bfloat16
        assert torch.equal(received, expected)


def test_eight_ranks_start_in_about_a_second():
    """The best of a few tries, since the machine may be busy with other work."""
    run_local(functions.place, 1)  # the fork server and its imports
    times = []
    while len(times) < 5 and min(times, default=2.0) > 1.2:
        start = time.perf_counter()
        run_local(functions.all_sum, 8, 0)
        times.append(time.perf_counter() - start)
    assert min(times) < 1.2


def test_ranks_start_after_this_process_has_used_its_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    torch.randn(600, 600) @ torch.randn(600, 600)
    torch.set_num_threads(threads)
    assert run_local(functions.all_sum, 2, 0, timeout=30) == [1.0, 1.0]


def test_the_callers_environment_reaches_the_ranks(monkeypatch):
    run_local(functions.place, 1)
    monkeypatch.setenv("SET_AFTER_THE_FORK_SERVER", "yes")
    assert run_local(functions.environment, 2, "SET_AFTER_THE_FORK_SERVER") == ["yes", "yes"]


def test_each_rank_writes_its_log_and_rank_0_the_terminal_too(tmp_path, capfd):
    run_local(functions.print_lines, 3, logs=tmp_path / "logs")
    for rank in range(3):
        lines = (tmp_path / "logs" / f"rank{rank}.log").read_text().splitlines()
        assert sorted(lines) == [f"error of rank {rank}", f"out of rank {rank}", f"raw of rank {rank}"]
    seen = capfd.readouterr().out
    assert "out of rank 0" in seen and "error of rank 0" in seen
    assert "rank 1" not in seen and "rank 2" not in seen


def test_logs_are_appended_to_and_hold_what_a_killed_rank_wrote(tmp_path):
    run_local(functions.print_lines, 1, logs=tmp_path)
    with pytest.raises(RankFailure):
        run_local(functions.print_and_die, 2, logs=tmp_path)
    assert "out of rank 0" in (tmp_path / "rank0.log").read_text()
    for rank in range(2):
        assert f"last words of rank {rank}" in (tmp_path / f"rank{rank}.log").read_text()


def test_without_logs_all_ranks_write_to_the_callers_output(capfd):
    run_local(functions.print_lines, 2)
    captured = capfd.readouterr()
    for rank in range(2):
        assert f"out of rank {rank}" in captured.out
        assert f"error of rank {rank}" in captured.err


@pytest.mark.parametrize("count, text", [(0, "at least 1"), (-2, "at least 1"), (100_000, "at most")])
def test_a_number_of_ranks_that_cannot_be_is_refused(count, text):
    with pytest.raises(ValueError, match=f"{count} ranks.*use {text}"):
        run_local(functions.place, count)


def test_the_limit_is_eight_ranks_per_core(monkeypatch):
    monkeypatch.setattr(local_ranks, "physical_cores", lambda: 3)
    check_ranks(24)
    with pytest.raises(ValueError, match="25 ranks are more .*3 cores.*use at most 24"):
        check_ranks(25)


def test_ranks_that_need_more_memory_than_is_free_are_refused(monkeypatch):
    monkeypatch.setattr(local_ranks, "available_memory", lambda: 5 * 2**30)
    check_ranks(5, memory_per_rank=2**30)
    with pytest.raises(ValueError, match="6 ranks of 1 GiB need more .* free .5 GiB.: use at most 5"):
        check_ranks(6, memory_per_rank=2**30)


def test_more_ranks_than_gpus_are_refused():
    count = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=f"{count} ranks are more .*{count - 1} GPUs"):
        run_local(functions.place, count, kind="cuda")


@pytest.mark.parametrize("function", [lambda context: 0, functions.place.__get__(object())])
def test_a_function_that_ranks_cannot_import_is_refused(function):
    with pytest.raises(ValueError, match="cannot be imported by the ranks"):
        run_local(function, 2)
    with pytest.raises(ValueError, match="cannot be imported by the ranks"):
        ranks(2, function)


def test_a_log_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="log folder .*file/logs' cannot be written: Not a directory"):
        run_local(functions.place, 2, logs=tmp_path / "file" / "logs")


def test_warm_ranks_keep_their_processes_and_get_a_fresh_group_each_call():
    with LocalRanks(4) as group:
        first = group.call(functions.place)
        assert group.call(functions.subgroup_sums) == [1.0, 1.0, 5.0, 5.0]
        assert group.call(functions.subgroup_sums) == [1.0, 1.0, 5.0, 5.0]
        assert group.call(functions.all_sum, 2) == [14.0] * 4
        assert [place[2] for place in group.call(functions.place)] == [place[2] for place in first]


def test_ranks_that_were_closed_cannot_be_called():
    group = LocalRanks(2)
    group.close()
    with pytest.raises(ValueError, match="have ended"):
        group.call(functions.place)


def test_the_helper_resets_torchs_globals_between_calls():
    pids = ranks(2, functions.set_globals)
    states = ranks(2, functions.read_globals)
    assert [state[:3] for state in states] == [(torch.float32, True, False)] * 2
    assert [state[3] for state in states] == pids


def test_the_helper_starts_new_ranks_after_a_failure():
    before = [place[2] for place in ranks(3, functions.place)]
    with pytest.raises(RankFailure):
        ranks(3, functions.raise_on, 1)
    after = [place[2] for place in ranks(3, functions.place)]
    assert not set(before) & set(after)
    assert not any(functions.is_alive(pid) for pid in before)
