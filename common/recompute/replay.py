"""Tells a forward made again within backward from the first one, for whoever counts operations."""


class Replay:
    """A context entered around every replay; may be entered again, and within itself."""

    def __init__(self):
        self._depth = 0

    def __enter__(self):
        self._depth += 1

    def __exit__(self, *error):
        self._depth -= 1

    @property
    def running(self) -> bool:
        return self._depth > 0


REPLAY = Replay()
