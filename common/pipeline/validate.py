"""Whether a schedule can be run: everything once, in an order that its needs and messages allow, without deadlock."""

from typing import NoReturn

import numpy as np

from common.pipeline.events import LANES, Events, play
from common.pipeline.schedule import KINDS, NAMES, Schedule


def validate(schedule: Schedule, buffers: int | None = None) -> None:
    """Raises ValueError, naming rank, action and cause, unless the schedule can be run.

    Every micro-batch passes forwards once through each chunk of each rank. Backwards either none does, or each does
    every work of a backward pass (input gradient, weight gradient) once, whichever kinds of action share it. What a
    kind needs comes before it. A channel's messages are consumed in the order sent. With sends that block while
    `buffers` earlier messages of the channel are not consumed (`schedule.buffers` unless given), all ranks reach
    their end.
    """
    buffers = schedule.buffers if buffers is None else buffers
    if buffers < 1:
        raise ValueError(f"buffers={buffers}: a channel needs at least 1")
    events = Events.of(schedule)
    _repeated(events)
    _complete(events)
    _needs(events)
    _in_order(events)
    _alive(events, buffers)


def _fail(events: Events, what: str) -> NoReturn:
    raise ValueError(f"schedule {events.schedule.name}: {what}")


def _repeated(events: Events) -> None:
    numbers = np.arange(len(events.rank))
    again = events.where[events.kind, events.stage, events.micro_batch] != numbers
    if again.any():
        first = int(again.argmax())
        last = int(events.where[events.kind[first], events.stage[first], events.micro_batch[first]])
        _fail(events, f"{events.describe(last)} repeats action {first - events.first[events.rank[first]]}")


def _complete(events: Events) -> None:
    """Forwards and, if there is any, each work of a backward pass, once for every stage and micro-batch."""
    forward = [code for code, name in enumerate(NAMES) if name == "forward"]
    _once(events, "forward", forward)
    works = {work: [code for code, kind in enumerate(KINDS.values()) if work in kind.serves]
             for kind in KINDS.values() for work in kind.serves}
    if np.isin(events.kind, [code for codes in works.values() for code in codes]).any():
        for work, codes in works.items():
            _once(events, work, codes)


def _once(events: Events, work: str, codes: list[int]) -> None:
    done = events.where[codes]  # (kinds, stages, micro-batches)
    times = (done >= 0).sum(axis=0)
    if (times == 0).any():
        stage, micro_batch = (int(i) for i in np.argwhere(times == 0)[0])
        chunk, rank = divmod(stage, events.schedule.ranks)
        _fail(events, f"rank {rank} has no action for the {work} of micro-batch {micro_batch}, chunk {chunk}")
    if (times > 1).any():
        stage, micro_batch = (int(i) for i in np.argwhere(times > 1)[0])
        *_, early, late = sorted(done[:, stage, micro_batch])
        _fail(events, f"{events.describe(late)} does the {work} that action {early - events.first[events.rank[early]]}, "
                      f"{NAMES[events.kind[early]]}, has done")


def _needs(events: Events) -> None:
    numbers = np.arange(len(events.rank))
    for code, kind in enumerate(KINDS.values()):
        if kind.needs is None:
            continue
        mine = numbers[events.kind == code]
        before = events.where[NAMES.index(kind.needs), events.stage[mine], events.micro_batch[mine]]
        wrong = (before < 0) | (before > mine)
        if wrong.any():
            number, needed = int(mine[wrong.argmax()]), int(before[wrong.argmax()])
            state = "is missing" if needed < 0 else f"comes later, as action {needed - events.first[events.rank[number]]}"
            _fail(events, f"{events.describe(number)}: the {kind.needs} it needs {state}")


def _in_order(events: Events) -> None:
    """First in, first out on every channel."""
    takers, channel = events.takers
    makers = events.source[takers]
    wrong = (channel[1:] == channel[:-1]) & (makers[1:] < makers[:-1])
    if wrong.any():
        place = int(wrong.argmax()) + 1
        taker, maker, other = int(takers[place]), int(makers[place]), int(makers[place - 1])
        _fail(events, f"{events.describe(taker)} consumes {LANES[events.lane[taker]]} out of order: those of "
                      f"{events.describe(maker)} were sent before those of {events.describe(other)}, "
                      f"which {events.place(takers[place - 1])} consumes first")


def _alive(events: Events, buffers: int) -> None:
    nothing = [0] * len(events.rank)
    start, left = play(events, nothing, nothing, [0] * events.schedule.ranks, buffers)
    if None in left:
        chain = " ".join(_cycle(events, start, left, buffers))
        _fail(events, f"deadlock with {buffers} message{'s' * (buffers > 1)} under way on each channel: {chain}")


def _cycle(events: Events, start: list, left: list, buffers: int) -> list[str]:
    """A circle of ranks, each waiting for the next."""
    room, waits, seen = events.room(buffers), [], []
    number = left.index(None)
    while (rank := int(events.rank[number])) not in seen:
        seen.append(rank)
        stuck = next(i for i in range(events.first[rank], events.first[rank + 1]) if left[i] is None)
        sending = start[stuck] is not None
        number = int(room[stuck] if sending else events.source[stuck])
        waits.append(f"{events.describe(stuck)} waits to {'send' if sending else 'start'} until "
                     f"{events.describe(number)} {'starts' if sending else 'has sent'};")
    return waits[seen.index(rank):]
