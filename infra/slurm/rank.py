"""`--launch slurm`: a task of a SLURM step is a rank; outside of one the command is sent there."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from common.device import choose, device_count
from infra.launch import Torchrun
from infra.rank_context import RankContext
from infra.rank_failure import RankFailure, report_exception
from infra.slurm.job import current_job, in_step, rank_variables

T = TypeVar("T")
# A rank that lost its peer lets the peer's own error end the job first.
CAUSE_SECONDS = 5.0


class Slurm(Torchrun):
    """This process is one rank: srun started it, and ends all when one fails."""

    def __init__(self, kind: str, need: int | None) -> None:
        os.environ.update(rank_variables())
        super().__init__(kind, need)
        mine = self.context
        # Some sites show a task its own GPU alone.
        if kind != "cpu" and device_count(kind) == 1:
            self.context = RankContext(mine.rank, mine.size, mine.local_rank, choose(kind, 0))

    def run(self, function: Callable[..., T], *arguments: Any, logs: Path | None = None) -> T | None:
        """As for torchrun; raises RankFailure with this rank's number and error. A job whose result says that a signal
        `stopped` it before its end, as pre-emption and the time limit do, goes back into the queue."""
        try:
            result = super().run(function, *arguments, logs=logs)
        except Exception as error:
            report = report_exception(self.context.rank, error)
            if report.blames_peer:
                time.sleep(CAUSE_SECONDS)
            log = f"traceback in {logs / f'rank{report.rank}.log'}" if logs else ""
            raise RankFailure(report, self.size, log=log) from error
        if self.leads and getattr(result, "stopped", ""):
            job = current_job()
            print(f"stopped by {result.stopped}: " + (
                f"job {job.id} is in the queue again" if job.requeue() else "--resume goes on from the checkpoint"), flush=True)
        return result


def read(cluster: str, kind: str, need: int | None) -> Slurm:
    """The launch of a task; does not return where this process is none: in an allocation it becomes srun, elsewhere the
    command is submitted with the settings of `cluster` (a name or file, or nothing for SLURM's own defaults)."""
    if in_step():
        return Slurm(kind, need)
    send_self(cluster, need)


def send_self(cluster: str, ranks: int | None) -> NoReturn:
    """Sends the command that this process was started with."""
    from infra.slurm.send import send
    from infra.slurm.settings import Settings, load

    module, arguments = own_command(sys.orig_argv)
    send(load(cluster) if cluster else Settings(), module, arguments, ranks=ranks)
    sys.exit(0)


def own_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """(module, arguments) of `python [options] -m module arguments`, with `--launch slurm` whatever cluster it named."""
    if "-m" not in words[:-1]:
        raise ValueError("--launch slurm sends a command of the form python -m MODULE ...: start it so, or use "
                         "python -m infra.submit")
    at = list(words).index("-m")
    module, *arguments = words[at + 1:]
    kept = []
    rest = iter(arguments)
    for word in rest:
        if word == "--launch":
            next(rest)
        elif not word.startswith("--launch="):
            kept.append(word)
    return module, [*kept, "--launch", "slurm"]
