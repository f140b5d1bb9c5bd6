"""A command whose rank 1 fails while rank 0 would wait for an hour: submitted by a test."""

import time

from common.training.command import guarded
from infra.launch import Launch


def work(context):
    if context.rank == 1:
        raise ValueError("rank 1 does not like its data")
    time.sleep(3600)


if __name__ == "__main__":
    guarded("test", lambda: Launch.parse("slurm", kind="cpu").run(work))
