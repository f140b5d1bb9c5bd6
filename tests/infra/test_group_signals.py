"""A signal to the whole process group, as a scheduler sends it, ends no rank: the launcher passes it on to all."""

import os
import signal
import subprocess
import sys
import time

from tests.infra import rank_functions as functions

PROGRAM = """
import signal, sys
from infra.launch import run_local
from tests.infra import rank_functions as functions
print(run_local(functions.wait_for_signal, 2, sys.argv[1], forward=[signal.SIGUSR1]))
"""


def test_the_fork_server_outlives_it_and_every_rank_gets_it_once(tmp_path):
    command = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                               env=functions.environment_with_path(), start_new_session=True)
    functions.wait_for_pids(tmp_path, 2)
    time.sleep(0.2)
    os.killpg(command.pid, signal.SIGUSR1)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 0 and out.strip() == f"{[[int(signal.SIGUSR1)]] * 2}"
