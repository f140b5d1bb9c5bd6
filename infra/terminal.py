"""Where the output of local ranks goes: the terminal, or a log file each with rank 0 on the terminal too."""

import fcntl
import os
import re
import struct
import sys
import termios
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

# Control sequences of a terminal: cursor moves, colours, titles.
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_STDOUT, _STDERR = 1, 2


class Tee:
    """A file to write into whose bytes appear on the terminal as they are, and in a log as plain lines.

    `sink` is a pseudo-terminal when `terminal` is one, so that a progress line works, else a pipe. `log`
    gets whole lines without control sequences. A thread copies from `start` on; `close` waits for it,
    once all writers have closed the sink. Takes over `log`, not `terminal`.
    """

    def __init__(self, log: int, terminal: int) -> None:
        self._log, self._terminal = log, terminal
        self._screen = os.isatty(terminal)
        self._source, self.sink = _pseudo_terminal(terminal) if self._screen else os.pipe()
        self._thread = threading.Thread(target=self._copy, name="tee", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _copy(self) -> None:
        line = b""
        while chunk := _read(self._source):
            _write(self._terminal, chunk)
            *lines, line = (line + chunk).split(b"\n")
            _write(self._log, b"".join(_as_seen(whole) + b"\n" for whole in lines))
            line = _as_seen(line) if len(line) > 2**16 else line
            if self._screen:
                _copy_window_size(self._terminal, self._source)
        _write(self._log, _as_seen(line))
        os.close(self._source)
        os.close(self._log)


class RankOutput:
    """Hands each local rank the two open files that become its output and errors.

    Without a log folder they are this process's own. With one, both go to `rank{r}.log` there, appended,
    and those of rank 0 to the terminal too.
    """

    def __init__(self, size: int, logs: Path | None) -> None:
        self._tee: Tee | None = None
        if logs is None:
            self._pairs = [(os.dup(_STDOUT), os.dup(_STDERR)) for _ in range(size)]
            return
        files = [_open_log(logs, rank) for rank in range(size)]
        self._tee = Tee(files[0], _STDOUT)
        self._pairs = [(file, os.dup(file)) for file in (self._tee.sink, *files[1:])]

    def streams(self, rank: int) -> tuple[Connection, Connection]:
        """The files of one rank, to be closed when the rank has them."""
        out, err = self._pairs[rank]
        return Connection(out), Connection(err)

    def started(self) -> None:
        """All ranks have their files."""
        if self._tee is not None:
            self._tee.start()

    def close(self) -> None:
        """Wait for the last of the output, when all ranks have ended."""
        if self._tee is not None:
            self._tee.close()
            self._tee = None


@contextmanager
def own_output(rank: int, logs: Path | None) -> Iterator[None]:
    """This process is rank `rank`: its output goes where RankOutput would send it, and an error too."""
    if logs is None:
        yield
        return
    log = _open_log(logs, rank)
    saved = os.dup(_STDOUT), os.dup(_STDERR)
    tee = Tee(os.dup(log), saved[0]) if rank == 0 else None
    _point_output_at(*((tee.sink, tee.sink) if tee else (log, log)))
    if tee is not None:
        os.close(tee.sink)
        tee.start()
    try:
        yield
    except BaseException:
        _write(log, traceback.format_exc().encode())
        raise
    finally:
        _point_output_at(*saved)
        if tee is not None:
            tee.close()
        for descriptor in (log, *saved):
            os.close(descriptor)


def _point_output_at(out: int, err: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out, _STDOUT)
    os.dup2(err, _STDERR)


def _open_log(logs: Path, rank: int) -> int:
    try:
        logs.mkdir(parents=True, exist_ok=True)
        return os.open(logs / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise ValueError(f"log folder {str(logs)!r} cannot be written: {error.strerror}") from error


def _pseudo_terminal(like: int) -> tuple[int, int]:
    """(the end to read, the end to write) of a terminal that changes no byte and has the size of `like`."""
    reader, writer = os.openpty()
    mode = termios.tcgetattr(writer)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(writer, termios.TCSANOW, mode)
    _copy_window_size(like, reader)
    return reader, writer


def _copy_window_size(source: int, target: int) -> None:
    size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def _read(source: int) -> bytes:
    try:
        return os.read(source, 2**16)
    except OSError:
        return b""  # how a pseudo-terminal says that its last writer has gone


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data):]


def _as_seen(line: bytes) -> bytes:
    """What a terminal would show of a line: no control sequences, and what was overwritten is gone."""
    return _CONTROL.sub(b"", line).rstrip(b"\r").rpartition(b"\r")[2]
