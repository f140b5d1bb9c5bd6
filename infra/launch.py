"""How the ranks of a command come to be: `--launch local:N` starts them here, `torchrun` or SLURM has started them."""

import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from common.device import choose, default_kind
from infra import messages
from infra.local_ranks import COLLECTIVE_TIMEOUT, LocalRanks, check_importable, check_ranks
from infra.rank_context import RankContext, process_group
from infra.terminal import own_output

T = TypeVar("T")
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
TORCHRUN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def run_local(function: Callable[..., T], ranks: int, *arguments: Any, timeout: float | None = None,
              kind: str = "cpu", logs: Path | None = None, preload: Sequence[str] = (),
              forward: Sequence[signal.Signals] = ()) -> list[T]:
    """Run `function(RankContext, *arguments)` on `ranks` new processes of this machine; results by rank.

    function: defined at the top level of a module. timeout: seconds for the whole. kind, logs, preload:
    as LocalRanks has them. forward: signals that are passed on to the ranks instead of ending this
    process; main thread only.

    Raises ValueError, before any start, for what this machine or the ranks cannot take; RankFailure with
    the first cause when a rank raises, exits or is killed; RankTimeout. No rank outlives the call, nor
    this process.
    """
    check_importable(function)
    modules = (*preload, _module_of(function))
    with LocalRanks(ranks, kind=kind, logs=logs, preload=modules) as group, _forwarded(forward, group):
        return group.call(function, *arguments, timeout=timeout)


class Launch(ABC):
    """The ranks of one command. The command itself runs once for `local`, once per rank for `torchrun`."""

    @staticmethod
    def parse(text: str, kind: str | None = None, need: int | None = None) -> "Launch":
        """The launch that `text` names, on devices of `kind` (default: GPUs where there are any).

        need: ranks of the grid that is to run; an empty `text` is then so many local ones. Raises ValueError,
        before any start and before ranks look for each other, for an unknown name, for another number of ranks
        than needed, and for a number of ranks or an environment that cannot work.
        """
        text = text or (f"local:{need}" if need else "")
        name, _, rest = text.partition(":")
        if name not in _PARSERS:
            raise ValueError(f"launch {text!r} is unknown: use one of {', '.join(_SPELLINGS)}")
        return _PARSERS[name](text, rest, kind or default_kind(), need)

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks."""

    @property
    @abstractmethod
    def leads(self) -> bool:
        """True in the one process of the command that prints and writes results."""

    @property
    @abstractmethod
    def shares_memory(self) -> bool:
        """True where all ranks live in the memory of this machine."""

    @property
    def starts_ranks(self) -> bool:
        """True where this process starts the ranks, and so can start them again."""
        return False

    @abstractmethod
    def once(self, make: Callable[[], T]) -> T:
        """`make()` called by one process; its value, or the error it raises, in every process (a run's directory, for
        one)."""

    @abstractmethod
    def run(self, function: Callable[..., T], *arguments: Any, logs: Path | None = None) -> T | None:
        """`function(RankContext, *arguments)` on every rank; rank 0's result where this process leads.

        logs: folder for rank*.log. Signals to stop reach every rank.
        """


@dataclass(frozen=True)
class Local(Launch):
    """Ranks that this process starts on its own machine."""

    ranks: int
    kind: str

    def __post_init__(self) -> None:
        check_ranks(self.ranks, self.kind)

    @classmethod
    def read(cls, text: str, rest: str, kind: str, need: int | None) -> "Local":
        if not rest.isdecimal():
            raise ValueError(f"launch {text!r} has no number of ranks: use local:N, such as local:4")
        _check_need(int(rest), need)
        return cls(int(rest), kind)

    @property
    def size(self) -> int:
        return self.ranks

    @property
    def leads(self) -> bool:
        return True

    @property
    def shares_memory(self) -> bool:
        return self.kind == "cpu"

    @property
    def starts_ranks(self) -> bool:
        return True

    def once(self, make: Callable[[], T]) -> T:
        return make()

    def run(self, function: Callable[..., T], *arguments: Any, logs: Path | None = None) -> T:
        return run_local(function, self.ranks, *arguments, kind=self.kind, logs=logs, forward=FORWARDED)[0]


class Torchrun(Launch):
    """This process is one rank already: torchrun, or anything that sets the same variables, started it."""

    def __init__(self, kind: str, need: int | None = None) -> None:
        where = _torchrun_variables()
        _check_need(where["WORLD_SIZE"], need)
        self.context = RankContext(where["RANK"], where["WORLD_SIZE"], where["LOCAL_RANK"],
                                   choose(kind, where["LOCAL_RANK"]))
        self._store, _, _ = next(dist.rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
        self._made = 0

    @classmethod
    def read(cls, text: str, rest: str, kind: str, need: int | None) -> "Torchrun":
        if rest:
            raise ValueError(f"launch {text!r}: torchrun itself sets the number of ranks, "
                             "use --launch torchrun")
        return cls(kind, need)

    @property
    def size(self) -> int:
        return self.context.size

    @property
    def leads(self) -> bool:
        return self.context.leads

    @property
    def shares_memory(self) -> bool:
        return False

    def once(self, make: Callable[[], T]) -> T:
        key, self._made = f"once{self._made}", self._made + 1
        if self.leads:
            self._store.set(key, messages.dumps(_outcome(make)))
        value, error = messages.loads(self._store.get(key))
        if error is not None:
            raise error
        return value

    def run(self, function: Callable[..., T], *arguments: Any, logs: Path | None = None) -> T | None:
        group = process_group(self.context, self._store, COLLECTIVE_TIMEOUT)
        with own_output(self.context.rank, logs), group:
            result = function(self.context, *arguments)
            return result if self.leads else None


def _slurm(text: str, rest: str, kind: str, need: int | None) -> Launch:
    from infra.slurm.rank import read  # which builds on this module

    return read(rest, kind, need)


_PARSERS: dict[str, Callable[[str, str, str, int | None], Launch]] = {
    "local": Local.read, "torchrun": Torchrun.read, "slurm": _slurm}
_SPELLINGS = ("local:N", "torchrun", "slurm", "slurm:CLUSTER")


def _outcome(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return make(), None
    except (ValueError, OSError) as error:
        return None, error


def _check_need(ranks: int, need: int | None) -> None:
    if need not in (None, ranks):
        raise ValueError(f"launch has {ranks} ranks, the grid needs tp x cp x dp x pp = {need}: "
                         f"start {need} ranks (--launch local:{need}), or change --grid")


def _torchrun_variables() -> dict[str, int]:
    """The numbers among torchrun's variables, checked, with an address that can be found and a free port."""
    missing = [name for name in TORCHRUN_NAMES if not os.environ.get(name)]
    if missing:
        raise ValueError(f"--launch torchrun, but {', '.join(missing)} not set: start the command through "
                         "torchrun --nproc-per-node N, or use --launch local:N")
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        if not os.environ[name].isdecimal():
            raise ValueError(f"{name} is {os.environ[name]!r}: it must be a whole number")
        numbers[name] = int(os.environ[name])
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise ValueError(f"RANK is {numbers['RANK']}: it must be below WORLD_SIZE, {numbers['WORLD_SIZE']}")
    if not 0 < numbers["MASTER_PORT"] < 2**16:
        raise ValueError(f"MASTER_PORT is {numbers['MASTER_PORT']}: it must be between 1 and 65535")
    _check_address(os.environ["MASTER_ADDR"])
    # Under torchrun's agent the port is its own and in use by right.
    if numbers["RANK"] == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        _check_port_free(numbers["MASTER_PORT"])
    return numbers


def _check_address(host: str) -> None:
    """Only the resolver's own time limit passes, where ranks would look for the host until theirs ends."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise ValueError(f"MASTER_ADDR {host!r} is not known on this machine ({error.strerror}): set it to the "
                         "name or address of the machine of rank 0") from error


def _check_port_free(port: int) -> None:
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(f"MASTER_PORT {port} cannot be opened on this machine ({error.strerror}): "
                         "set it to a free port") from error


def _module_of(function: Callable[..., Any]) -> str:
    """The name under which the fork server can import the function's module without running it as main."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if function.__module__ == "__main__" and spec else function.__module__


@contextmanager
def _forwarded(numbers: Sequence[signal.Signals], ranks: LocalRanks) -> Iterator[None]:
    """While it lasts, the signals `numbers` are passed on to the ranks."""
    before = {number: signal.signal(number, lambda received, _: ranks.signal(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
