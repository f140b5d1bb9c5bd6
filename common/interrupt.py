"""Ctrl-C at a command, also while its imports run: one line and status 130 in place of a traceback."""

import sys
from types import TracebackType


def install() -> None:
    """For `python -m`, whose packages are imported before its module; elsewhere nothing is changed."""
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _stopped


def _stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    words = sys.orig_argv
    print(f"python -m {words[words.index('-m') + 1]}: {str(error) or 'interrupted'}", file=sys.stderr)
    sys.exit(130)
