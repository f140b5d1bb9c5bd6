"""On a terminal rank 0 keeps a terminal: its progress line works, and the log holds plain lines."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

from infra.terminal import own_output
from tests.infra import rank_functions as functions

COMMAND = """
import os, sys
from pathlib import Path
from infra.launch import run_local

def show_progress(context):
    columns = os.get_terminal_size(1).columns if os.isatty(1) else 0
    print("terminal", sys.stdout.isatty(), columns)
    for step in range(3):
        print(f"\\r\\x1b[2K\\x1b[32mstep {step + 1} of 3\\x1b[0m", end="", flush=True)
    print("\\ndone")
    return 2 * context.rank

if __name__ == "__main__":
    print("results", run_local(show_progress, 2, logs=Path(sys.argv[1])))
"""


def run_on_a_terminal(script, folder, columns):
    """What a terminal of so many columns receives from a Python command."""
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([sys.executable, str(script), str(folder)], stdout=writer,
                               stderr=subprocess.STDOUT, env=functions.environment_with_path())
    os.close(writer)
    received = b""
    try:
        while chunk := os.read(reader, 4096):
            received += chunk
    except OSError:
        pass  # the last writer has closed the terminal
    os.close(reader)
    assert process.wait() == 0, received.decode()
    return received.decode()


def test_rank_0_has_a_terminal_of_the_same_size_and_the_log_is_plain(tmp_path):
    """The function is of the command's own main module, as in a script of a user."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    received = run_on_a_terminal(script, tmp_path / "logs", columns=93)
    assert "terminal True 93" in received
    assert "step 1 of 3" in received and "\x1b[2K" in received
    assert received.rstrip().endswith("results [0, 2]")
    rank_0 = (tmp_path / "logs" / "rank0.log").read_text().splitlines()
    assert rank_0 == ["terminal True 93", "step 3 of 3", "done"]
    assert (tmp_path / "logs" / "rank1.log").read_text().startswith("terminal False 0\n")


def test_the_output_of_this_process_goes_to_its_log_with_its_error(tmp_path, capfd):
    with pytest.raises(KeyError), own_output(1, tmp_path):
        os.write(1, b"first\n")
        print("second", file=sys.__stderr__)
        raise KeyError("third")
    os.write(1, b"after\n")
    log = (tmp_path / "rank1.log").read_text()
    assert log.startswith("first\n") and "KeyError: 'third'" in log and "after" not in log
    assert capfd.readouterr().out == "after\n"


def test_rank_0_of_this_process_is_shown_and_logged(tmp_path, capfd):
    with own_output(0, tmp_path):
        os.write(1, b"0%\r50%\r100%\nno line end")
    assert capfd.readouterr().out == "0%\r50%\r100%\nno line end"
    assert (tmp_path / "rank0.log").read_text() == "100%\nno line end"
