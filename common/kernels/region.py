"""Marks of what one GPU kernel does, where the code that stands for it runs several operations of torch's.

A fused kernel reads its inputs once and writes its outputs once; what lies between stays in registers. Marks change
nothing that is computed. Whoever records operations listens to them (common/trace/record.py); else they are free, and
invisible to torch.compile.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Protocol


class Listener(Protocol):
    """Is told of every region, in the order of entering and leaving."""

    def enter(self, name: str, joins: bool) -> None: ...

    def leave(self, name: str, joins: bool) -> None: ...


ABSORBED = ""  # the name of regions that are no kernel at all
_listener: Listener | None = None
_NOTHING = nullcontext()


class _Mark:
    def __init__(self, name: str, joins: bool):
        self.name, self.joins = name, joins

    def __enter__(self) -> None:
        _listener.enter(self.name, self.joins)

    def __exit__(self, *error) -> None:
        if _listener is not None:
            _listener.leave(self.name, self.joins)


def fused(name: str, joins: bool = False) -> AbstractContextManager:
    """What runs inside is one kernel of that name, which is common.<name> in records unless it has a dot itself.

    joins: regions of the same name with nothing recorded between them are one kernel together, for kernels whose parts
    stand in different layers. Regions inside a region belong to it.
    """
    return _NOTHING if _listener is None else _Mark(name, joins)


def absorbed() -> AbstractContextManager:
    """What runs inside costs nothing on a GPU: copies that its products spare by strides, masks made from indices."""
    return _NOTHING if _listener is None else _Mark(ABSORBED, False)


def kernel(name: str) -> Callable[[Callable], Callable]:
    """Decorates a function that one fused kernel does."""
    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def marked(*args, **kwargs):
            if _listener is None:
                return function(*args, **kwargs)
            with _Mark(name, False):
                return function(*args, **kwargs)
        return marked
    return decorate


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tells `listener` of the regions that are entered inside."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
