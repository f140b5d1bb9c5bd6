"""`--launch local:N | torchrun`: what is understood, what is refused, and that signals reach the ranks."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from infra.launch import TORCHRUN_NAMES, Launch, Local, run_local
from infra.rank_failure import RankFailure
from tests.infra import rank_functions as functions


@pytest.fixture
def torchrun_environment(monkeypatch):
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    values = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
              "MASTER_PORT": str(port)}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return monkeypatch


def test_local_is_understood_and_runs_with_rank_0s_result():
    launch = Launch.parse("local:3", kind="cpu")
    assert launch == Local(3, "cpu")
    assert (launch.size, launch.leads) == (3, True)
    assert launch.once(os.getpid) == os.getpid()
    assert launch.run(functions.all_sum, 1) == 6.0


@pytest.mark.parametrize("text, message", [
    ("local", "no number of ranks: use local:N"),
    ("local:", "no number of ranks: use local:N"),
    ("local:two", "no number of ranks: use local:N"),
    ("local:-1", "no number of ranks: use local:N"),
    ("local:0", "0 ranks: use at least 1"),
    ("local:100000", "100000 ranks are more than this machine takes"),
    ("mpirun", "unknown: use one of local:N, torchrun"),
    ("", "unknown: use one of local:N, torchrun"),
    ("torchrun:4", "use --launch torchrun"),
])
def test_what_cannot_be_launched_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Launch.parse(text, kind="cpu")


@pytest.mark.parametrize("name", TORCHRUN_NAMES)
def test_a_missing_variable_is_named(torchrun_environment, name):
    torchrun_environment.delenv(name)
    with pytest.raises(ValueError, match=f"{name} not set: start the command through torchrun.*local:N"):
        Launch.parse("torchrun", kind="cpu")


@pytest.mark.parametrize("name, value, message", [
    ("RANK", "first", "RANK is 'first': it must be a whole number"),
    ("RANK", "2", "RANK is 2: it must be below WORLD_SIZE, 2"),
    ("MASTER_PORT", "70000", "MASTER_PORT is 70000: it must be between 1 and 65535"),
])
def test_a_wrong_variable_is_named_with_its_value(torchrun_environment, name, value, message):
    torchrun_environment.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        Launch.parse("torchrun", kind="cpu")


def test_another_number_of_ranks_than_the_grids_is_refused_before_ranks_look_for_each_other(torchrun_environment):
    with pytest.raises(ValueError, match="launch has 2 ranks, the grid needs .* 1: start 1 ranks"):
        Launch.parse("torchrun", kind="cpu", need=1)


def test_a_host_that_nobody_knows_is_named(torchrun_environment):
    torchrun_environment.setenv("MASTER_ADDR", "no.such.host.invalid")
    with pytest.raises(ValueError, match="MASTER_ADDR 'no.such.host.invalid' is not known"):
        Launch.parse("torchrun", kind="cpu")


def test_a_port_in_use_is_named(torchrun_environment):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        torchrun_environment.setenv("MASTER_PORT", str(port))
        with pytest.raises(ValueError, match=f"MASTER_PORT {port} cannot be opened .*in use.*to a free port"):
            Launch.parse("torchrun", kind="cpu")


def test_two_ranks_under_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "tests.infra.torchrun_command", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100,
                          env={**functions.environment_with_path(), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    made = int((tmp_path / "made").read_text())
    assert f"result [3.0, {made}]" in done.stdout
    assert done.stdout.count("result") == 1
    assert "out of rank 0" in done.stdout and "out of rank 1" not in done.stdout
    for rank in range(2):
        lines = (tmp_path / "logs" / f"rank{rank}.log").read_text().splitlines()
        assert sorted(lines) == [f"error of rank {rank}", f"out of rank {rank}", f"raw of rank {rank}"]


def test_a_signal_to_the_command_reaches_every_rank(tmp_path):
    def send():
        functions.wait_for_pids(tmp_path, 2)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    sender = threading.Thread(target=send)
    sender.start()
    received = run_local(functions.wait_for_signal, 2, str(tmp_path), forward=[signal.SIGUSR1])
    sender.join()
    assert received == [[signal.SIGUSR1]] * 2
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_failure_passes_through_the_launch():
    with pytest.raises(RankFailure, match="rank 1 of 2 failed: ValueError"):
        Local(2, "cpu").run(functions.raise_on, 1)
