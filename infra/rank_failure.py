"""What a rank reports at its end, and which of several reports is the cause of the others."""

import signal
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

# What gloo, NCCL and their stores say when the peer they talk to has gone or does not answer.
_PEER_PHRASES = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "socket closed", "socket timeout", "read error", "write error", "application timeout caused pair closure",
    "timed out waiting", "gloo connectfullmesh failed", "remote process exited",
    "communicator was aborted", "failed to recv", "failed to send",
)
_PEER_TYPES = ("DistNetworkError", "DistStoreError", "DistBackendError")


@dataclass(frozen=True)
class RankReport:
    """How one rank failed.

    `error` is the class name of what was raised, or None for a process that ended without a word;
    `exit_code` is set for the latter (negative: the signal). `blames_peer` marks a failed connection,
    which another rank's end explains better; `plain` an error whose message says all, from the data, a
    checkpoint or the machine. `time` is the machine's monotonic clock, in seconds.
    """

    rank: int
    error: str | None
    message: str
    traceback: str = ""
    exit_code: int | None = None
    blames_peer: bool = False
    plain: bool = False
    time: float = field(default_factory=time.monotonic)

    def summary(self) -> str:
        return self.message if self.error is None else f"{self.error}: {self.message}"


class RankFailure(RuntimeError):
    """One rank failed and all were ended: that rank's number, error and traceback."""

    def __init__(self, report: RankReport, size: int, returned: Iterable[int] = (), log: str = "") -> None:
        """log: where the traceback is kept too."""
        self.rank, self.size = report.rank, size
        self._line = f"rank {report.rank} of {size} failed: {report.message} ({log})" if log and report.plain else ""
        self.error, self.message, self.exit_code = report.error, report.message, report.exit_code
        self.traceback = report.traceback
        # Of a process or a connection that went, which may not happen again; not of an error that would be raised again.
        self.passing = report.error is None or report.blames_peer
        detail = f"\n\nOn rank {report.rank}:\n{report.traceback.rstrip()}" if report.traceback else ""
        early = ", ".join(map(str, returned)) if report.blames_peer else ""
        hint = f"\nNo rank failed otherwise; those that had returned already: {early}" if early else ""
        super().__init__(f"rank {report.rank} of {size} failed: {report.summary()}{hint}{detail}")

    def shown(self) -> str:
        """For the terminal: one line where that says all, else everything."""
        return self._line or str(self)


class RankTimeout(TimeoutError):
    """Some ranks did not return in time and all were ended: which, and where each of them stood."""

    def __init__(self, seconds: float, stacks: dict[int, str]) -> None:
        self.ranks = tuple(stacks)
        where = "".join(f"\n\nOn rank {rank}:\n{stack.rstrip()}" for rank, stack in stacks.items() if stack)
        names = ", ".join(str(rank) for rank in stacks)
        super().__init__(f"ranks {names} had not returned after {seconds:g} s{where}")


def report_exception(rank: int, error: BaseException) -> RankReport:
    """The report of an exception that the caller, on `rank`, caught from the function it ran."""
    caught = time.monotonic()
    own_frames = error.__traceback__.tb_next
    return RankReport(rank, type(error).__name__, str(error),
                      "".join(traceback.format_exception(type(error), error, own_frames)),
                      blames_peer=_blames_peer(error), plain=isinstance(error, ValueError | OSError), time=caught)


def report_death(rank: int, exit_code: int, stack: str = "") -> RankReport:
    """The report of a process that ended before it returned a result or an error."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = " (often the kernel, out of memory)" if name == "SIGKILL" else ""
        message = f"the process was ended by {name}{hint}"
    else:
        message = f"the process exited with code {exit_code} before it returned"
    return RankReport(rank, None, message, stack, exit_code=exit_code)


def root_cause(reports: Iterable[RankReport]) -> RankReport:
    """The earliest report that does not blame a peer; the earliest of all when every one does."""
    return min(reports, key=lambda report: (report.blames_peer, report.time))


def _blames_peer(error: BaseException) -> bool:
    """True for a lost connection and for whatever was raised because of, or while handling, one."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = str(current).lower()
        if isinstance(current, ConnectionError) or type(current).__name__ in _PEER_TYPES:
            return True
        if isinstance(current, RuntimeError) and any(phrase in text for phrase in _PEER_PHRASES):
            return True
        current = current.__cause__ or current.__context__
    return False
