"""Work beside training: one thread, one piece of work at a time, a process group that training never uses."""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as dist

from common.layout import Layout

T = TypeVar("T")
_groups: "WeakKeyDictionary[Layout, dist.ProcessGroup]" = WeakKeyDictionary()
_under_way: "WeakKeyDictionary[Layout, Saving]" = WeakKeyDictionary()


class Saving:
    """A checkpoint on its way to the disk.

    The process does not end before it is there; its process group must not either.
    """

    def __init__(self, folder: Path, work: Callable[[], None], speaks: bool):
        self.folder, self._work, self._speaks = folder, work, speaks
        self._error: BaseException | None = None
        self._told = False
        self._thread = Thread(target=self._run, name=f"saving {folder.name}", daemon=False)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
            if self._speaks:
                print(error, file=sys.stderr, flush=True)
        finally:
            del self._work  # and with it the copies of the tensors

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> Path:
        """The finished folder, once it is on the disk; CheckpointError, on every rank, if it was not
        written."""
        self._thread.join()
        self._told = True
        if self._error is not None:
            raise self._error
        return self.folder

    def settle(self) -> None:
        """Waits, and raises an error that nobody has been told yet."""
        self._thread.join()
        if not self._told:
            self.wait()


def group(layout: Layout) -> dist.ProcessGroup | None:
    """The process group of checkpoints, made on first use by all ranks together; None for one rank.

    It is one of gloo whatever the device, as plans and errors travel in the memory of the host.
    """
    if layout.grid.world == 1:
        return None
    if layout not in _groups:
        _groups[layout] = dist.new_group(backend="gloo")
    return _groups[layout]


def begin(layout: Layout, folder: Path, work: Callable[[], None]) -> Saving:
    """Starts the work of a save. The one before must have ended: settle first."""
    _under_way[layout] = Saving(folder, work, speaks=layout.rank == 0)
    return _under_way[layout]


def settle(layout: Layout) -> None:
    """Waits for the save under way, if there is one: the group is free then. Raises its error if nobody was
    told."""
    if layout in _under_way:
        _under_way.pop(layout).settle()


def told(layout: Layout, function: Callable[[], T]) -> T:
    """What `function` returns, or the error it raises, on rank 0; the same on every rank."""
    found: list[tuple[T | None, Exception | None]] = [(None, None)]
    if layout.rank == 0:
        try:
            found = [(function(), None)]
        except Exception as error:
            found = [(None, error)]
    if (handle := group(layout)) is not None:
        dist.broadcast_object_list(found, src=0, group=handle)
    result, error = found[0]
    if error is not None:
        raise error
    return result


def everyones(layout: Layout, value: T) -> list[T]:
    """The value of every rank."""
    found = [value] * layout.grid.world
    if (handle := group(layout)) is not None:
        dist.all_gather_object(found, value, group=handle)
    return found
