"""The life of one local rank: prepare the process, then run what the launcher sends until it hangs up."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from common.device import Device
from infra import messages
from infra.rank_context import RankContext, process_group, talk_over_loopback
from infra.rank_failure import report_exception

# A rank that is done keeps its connections open this long for what its peers have still to read.
LINGER_SECONDS = 2.0
STACK_SIGNAL = signal.SIGQUIT
# What a terminal or a scheduler sends to a whole process group.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Sent to every rank once all have answered.
RELEASE = b""


@dataclass(frozen=True)
class RankStart:
    """What a rank is told once: its place, its device, its share of the cores and the environment."""

    rank: int
    size: int
    device: Device
    threads: int
    environment: dict[str, str]


@dataclass(frozen=True)
class RankCall:
    """One function call: `name` is new for every call, so that no key of an old group is met again."""

    name: str
    store: str
    timeout: timedelta
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class RankStreams:
    """Open files of the launcher that become the rank's own: output, errors, and where a stack is dumped.

    A Connection is only the wrapper in which multiprocessing passes a file descriptor on.
    """

    out: Connection
    err: Connection
    stack: Connection


def rank_main(start: RankStart, link: Connection, streams: RankStreams) -> None:
    """Entry point of the process: each message on `link` is a RankCall, each answer (succeeded, value)."""
    _prepare(start, streams)
    context = RankContext(start.rank, start.size, start.rank, start.device)
    while True:
        try:
            data = link.recv_bytes()
        except EOFError:
            return
        if data != RELEASE:
            _serve(context, data, link)


def _serve(context: RankContext, data: bytes, link: Connection) -> None:
    """Run one call and answer, then stay connected to the peers until all are done.

    An error is sent before this rank's connections close, and so before its peers can suffer from it.
    """
    with ExitStack() as stack:
        try:
            call: RankCall = messages.loads(data)
            store = dist.PrefixStore(call.name, dist.FileStore(call.store, context.size))
            stack.enter_context(process_group(context, store, call.timeout))
            answer = messages.dumps((True, call.function(context, *call.arguments)))
        except BaseException as error:
            answer = messages.dumps((False, report_exception(context.rank, error)))
        link.send_bytes(answer)
        link.poll(LINGER_SECONDS)


def _prepare(start: RankStart, streams: RankStreams) -> None:
    # A group of its own: Ctrl-C reaches the launcher alone, and what the rank starts ends with it.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    _end_with_parent()
    os.environ.clear()
    os.environ.update(start.environment)
    os.environ["OMP_NUM_THREADS"] = str(start.threads)
    torch.set_num_threads(start.threads)
    talk_over_loopback()
    os.dup2(streams.out.fileno(), sys.stdout.fileno())
    os.dup2(streams.err.fileno(), sys.stderr.fileno())
    sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable(streams.stack.fileno(), all_threads=False)
    faulthandler.register(STACK_SIGNAL, streams.stack.fileno(), all_threads=False)


def _end_with_parent() -> None:
    """A launcher that is killed cannot end its ranks: each watches a pipe that closes with it."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
