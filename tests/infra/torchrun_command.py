"""A command as a paper's train.py is one: run under torchrun by a test."""

import os
import sys
from pathlib import Path

from infra.launch import Launch
from tests.infra import rank_functions as functions


def work(context, made):
    functions.print_lines(context)
    return [functions.all_sum(context, 1), made]


def make(folder):
    """Would fail if a second rank made it too."""
    with open(folder / "made", "x") as file:
        file.write(str(os.getpid()))
    return os.getpid()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    launch = Launch.parse("torchrun", kind="cpu")
    result = launch.run(work, launch.once(lambda: make(folder)), logs=folder / "logs")
    if launch.leads:
        print("result", result)
