"""Processes of this machine that run one function together: start, supervise, end."""

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from common.device import Device, available_memory, choose, device_count, physical_cores
from infra import messages
from infra.rank_failure import RankFailure, RankReport, RankTimeout, report_death, root_cause
from infra.rank_process import (
    GROUP_SIGNALS,
    RELEASE,
    STACK_SIGNAL,
    RankCall,
    RankStart,
    RankStreams,
    rank_main,
)
from infra.terminal import RankOutput

RANKS_PER_CORE = 8
# The first optimizer or recomputation of a process imports torch._dynamo, a second and more for each rank.
PRELOAD = ("infra.rank_process", "torch._dynamo")
# What a rank that has done nothing yet adds to the pages it shares with the others.
RANK_BYTES = 64 * 2**20
# How long to wait, after a lost connection is reported, for the report that explains it.
CAUSE_SECONDS = 5.0
# After a real cause is known, for one that came earlier but whose report is still on its way.
SETTLE_SECONDS = 0.2
# For ranks that are asked to end: their own exit handlers.
CLOSE_SECONDS = 5.0
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


def check_ranks(count: int, kind: str = "cpu", memory_per_rank: int = RANK_BYTES) -> None:
    """Raise ValueError when this machine cannot take `count` ranks, each of `memory_per_rank` bytes."""
    if count < 1:
        raise ValueError(f"{count} ranks: use at least 1")
    limit = RANKS_PER_CORE * physical_cores() if kind == "cpu" else device_count(kind)
    if count > limit:
        per_core = f"{limit // RANKS_PER_CORE} cores, {RANKS_PER_CORE} ranks each"
        holds = per_core if kind == "cpu" else f"{limit} GPUs"
        raise ValueError(f"{count} ranks are more than this machine takes ({holds}): use at most {limit}")
    free = available_memory()
    if count * memory_per_rank > free:
        raise ValueError(f"{count} ranks of {memory_per_rank / 2**30:.3g} GiB need more memory than is free "
                         f"({free / 2**30:.3g} GiB): use at most {free // memory_per_rank}")


class LocalRanks:
    """`size` processes that run one function after another, each call with a fresh process group.

    A call that fails ends all of them; the object is then closed and cannot be called again. Use it as a
    context manager, or close it.
    """

    def __init__(self, size: int, *, kind: str = "cpu", logs: Path | None = None,
                 preload: Sequence[str] = ()) -> None:
        """Start the processes, without waiting for them.

        kind: "cpu", or "cuda" for one GPU per rank. logs: folder for rank*.log, each rank's output and
        errors; rank 0's go to the terminal too; without it all write to the terminal. preload: modules
        that the ranks find imported, beside torch; they take effect for the first ranks of a process.
        Raises ValueError when the machine cannot take them or the folder cannot be written.
        """
        check_ranks(size, kind)
        self.size = size
        self._logs, self._output = logs, RankOutput(size, logs)
        self._calls = itertools.count()
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._stacks = [tempfile.TemporaryFile() for _ in range(size)]
        self._links: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._end = weakref.finalize(self, _kill, self._processes)
        context = multiprocessing.get_context("forkserver")
        _start_fork_server([*PRELOAD, *preload])
        try:
            for rank in range(size):
                self._start(context, rank, choose(kind, rank))
        except BaseException:
            self.kill()
            raise
        self._output.started()

    def _start(self, context: Any, rank: int, device: Device) -> None:
        threads = max(1, physical_cores() // self.size)
        link, far_end = context.Pipe()
        out, err = self._output.streams(rank)
        streams = RankStreams(out, err, Connection(os.dup(self._stacks[rank].fileno())))
        start = RankStart(rank, self.size, device, threads, dict(os.environ))
        process = context.Process(target=rank_main, args=(start, far_end, streams), name=f"rank {rank}")
        self._links.append(link)
        self._processes.append(process)
        process.start()
        for stream in (far_end, out, err, streams.stack):
            stream.close()

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> list[Any]:
        """`function(RankContext, *arguments)` on every rank; the results by rank.

        Raises ValueError for a function that ranks cannot import, RankFailure with the first cause when a
        rank fails, RankTimeout after `timeout` seconds. Whatever is raised, no rank is left.
        """
        check_importable(function)
        if not self._processes:
            raise ValueError("these ranks have ended: start new ones")
        name = f"call{next(self._calls)}"
        call = RankCall(name, str(self._folder / name), COLLECTIVE_TIMEOUT, function, arguments)
        try:
            self._send(messages.dumps(call))
            results = self._collect(timeout)
            self._send(RELEASE)
            return results
        except BaseException:
            self.kill()
            raise

    def signal(self, number: int) -> None:
        """Pass a signal on to every rank that still runs."""
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, number)

    def close(self) -> None:
        """Let idle ranks end by themselves, and end those that do not."""
        for link in self._links:
            link.close()
        until = time.monotonic() + CLOSE_SECONDS
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End all ranks at once, with whatever they started, and wait for their end."""
        _kill(self._processes)
        for closable in (*self._links, *self._stacks, self._output):
            closable.close()
        self._links = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, data: bytes) -> None:
        for link in self._links:
            try:
                link.send_bytes(data)
            except BrokenPipeError:
                continue  # that rank has ended; collecting reports how

    def _collect(self, timeout: float | None) -> list[Any]:
        """Results by rank, or the first cause of failure."""
        until = time.monotonic() + timeout if timeout is not None else None
        results: dict[int, Any] = {}
        reports: dict[int, RankReport] = {}
        while waiting := [rank for rank in range(self.size) if rank not in results and rank not in reports]:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            self._receive(waiting, left, results, reports)
            if reports:
                known = not root_cause(reports.values()).blames_peer
                patience = time.monotonic() + (SETTLE_SECONDS if known else CAUSE_SECONDS)
                until = patience if until is None else min(until, patience)
        if reports:
            cause = root_cause(reports.values())
            raise RankFailure(cause, self.size, results, self._logged(cause))
        if waiting:
            raise RankTimeout(timeout, self._dump_stacks(waiting))
        return [results[rank] for rank in range(self.size)]

    def _logged(self, cause: RankReport) -> str:
        """Says in which rank's log the traceback now is; empty without logs."""
        if self._logs is None or not cause.traceback:
            return ""
        path = self._logs / f"rank{cause.rank}.log"
        try:
            with path.open("a") as file:
                file.write(cause.traceback)
        except OSError as error:
            return f"its traceback is lost: {path} cannot be written, {error.strerror}"
        return f"traceback in {path}"

    def _receive(self, waiting: list[int], seconds: float | None, results: dict[int, Any],
                 reports: dict[int, RankReport]) -> None:
        """Wait for any of the ranks to answer or end; enter what came into `results` or `reports`."""
        links = {self._links[rank]: rank for rank in waiting}
        ends = {self._processes[rank].sentinel: rank for rank in waiting}
        ready = wait([*links, *ends], seconds)
        # An answer first: a rank may have answered and then ended.
        for rank in sorted({links.get(item, ends.get(item)) for item in ready}):
            if self._links[rank].poll():
                try:
                    succeeded, value = messages.loads(self._links[rank].recv_bytes())
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join()
                else:
                    (results if succeeded else reports)[rank] = value
                    continue
            if self._processes[rank].exitcode is not None:
                reports[rank] = report_death(rank, self._processes[rank].exitcode, self._stack(rank))

    def _dump_stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where each of the ranks stands now; empty for one too busy or too new to say."""
        for rank in ranks:
            os.kill(self._processes[rank].pid, STACK_SIGNAL)
        until = time.monotonic() + 1.0
        while time.monotonic() < until and not all(self._stack(rank) for rank in ranks):
            time.sleep(0.01)
        return {rank: self._stack(rank) for rank in ranks}

    def _stack(self, rank: int) -> str:
        """What the rank dumped of its stack, innermost first, down to the launcher's own frames."""
        file = self._stacks[rank].fileno()
        lines = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").splitlines()
        own = itertools.takewhile(lambda line: "rank_process.py" not in line, lines)
        return "\n".join(own)


def check_importable(function: Callable[..., Any]) -> None:
    """Raise ValueError unless ranks can find `function` by its module and name."""
    name = getattr(function, "__qualname__", repr(function))
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    interactive = module is sys.modules["__main__"] and not hasattr(module, "__file__")
    if found is not function or interactive:
        raise ValueError(f"function {name!r} cannot be imported by the ranks: define it at the top level "
                         "of a module")


def _kill(processes: list[multiprocessing.process.BaseProcess]) -> None:
    """End every rank and what it started; returns when the ranks have ended, and forgets them."""
    started = [process for process in processes if process.pid is not None]
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()  # it has no group of its own yet, or has ended
    for process in started:
        process.join()
    processes.clear()


def _start_fork_server(preload: list[str]) -> None:
    """Start the process that ranks are forked from, if it does not run yet.

    It gets this process's import path in its environment, or it would not find what to preload. Signals to the
    whole process group are this process's to pass on: they are blocked there, until a rank lets them in.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    resource_tracker.ensure_running()  # which would lift the block
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
