"""When every action of a schedule runs, given what each costs: makespan, bubble, micro-batches in flight.

Times are exact: event after event, in whatever numbers the costs are. Integers and fractions give exact bubbles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from numbers import Number, Rational

import numpy as np

from common.pipeline.events import Events, play
from common.pipeline.schedule import KINDS, NAMES, Schedule

Costs = Mapping[str, Number | Sequence[Number]] | Callable[[str, int], Number] | Sequence[Sequence[Number]]
RELEASE = "weight gradient"  # the work after which nothing of a micro-batch's forward pass is needed in a stage


@dataclass(frozen=True)
class Simulation:
    """Times in the unit of the costs, from the start of the iteration; one array per rank, in the order of its actions.

    busy: what each rank computes. A rank's other time is idle: waiting, `overhead`, or held up by a send.
    """

    schedule: Schedule
    start: tuple[np.ndarray, ...] = field(repr=False)
    end: tuple[np.ndarray, ...] = field(repr=False)
    busy: tuple[Number, ...]
    makespan: Number

    @property
    def idle(self) -> tuple[Number, ...]:
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def idle_over_ideal(self) -> Number:
        """Bubble time over ideal time, t_pb / t_id of arXiv:2104.04473, section 2.2; (p - 1) / m for 1F1B.

        Summed over ranks, so that unequal stages count too. A Fraction where the costs are whole or fractions.
        """
        return _ratio(sum(self.idle), sum(self.busy))

    @property
    def idle_share(self) -> Number:
        """Idle time over all time, which is below 1: (p - 1) / (m + p - 1) for 1F1B."""
        return _ratio(sum(self.idle), self.makespan * len(self.busy))

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, the most (micro-batch, chunk) pairs whose forward pass ran and whose backward pass is not done.

        Each chunk counts as one. The papers count layers: 1 here is L / (p v) layers, so that the p v + p - 1 of the
        interleaved schedule's first rank are the L (1 + (p - 1) / (p v)) of arXiv:2205.05198, section 4.2.3.
        """
        return peak_held(self.schedule)


def simulate(
    schedule: Schedule,
    costs: Costs,
    messages: Number | Callable[[int, int], Number] = 0,
    overhead: Number | Sequence[Number] = 0,
    buffers: int | None = None,
) -> Simulation:
    """Play a schedule.

    costs: time of each action: {kind: time, or one for each stage}, a function of (kind, stage), or for each rank the
    times of its actions. messages: time between a message's leaving and its arrival, or a function of (sending stage,
    receiving stage); it keeps neither rank busy. Between chunks of one rank nothing is sent. overhead: time that a
    rank takes over each action before it starts, or one for each rank. buffers: messages under way on a channel
    before its sender waits; None: it never waits.

    Raises ValueError for costs that do not fit the schedule, and for a schedule that gets stuck, where `validate`
    says why.
    """
    events = Events.of(schedule)
    cost = _costs(events, costs)
    pause = list(overhead) if isinstance(overhead, Sequence | np.ndarray) else [overhead] * schedule.ranks
    if len(pause) != schedule.ranks:
        raise ValueError(f"overhead: {len(pause)} values for {schedule.ranks} ranks")
    delay = _delays(events, messages)
    for what, times in (("costs", cost), ("messages", delay), ("overhead", pause)):
        if wrong := [time for time in times if not 0 <= time < inf]:
            raise ValueError(f"{what}: {wrong[0]}: a time is a finite number of at least 0")
    if buffers is not None and buffers < 1:
        raise ValueError(f"buffers={buffers}: a channel needs at least 1, or None for no limit")
    start, left = play(events, cost, delay, pause, buffers)
    if None in left:
        stuck = left.index(None)
        raise ValueError(f"schedule {schedule.name}: {events.describe(stuck)} never comes to its end: validate it")
    end = [begin + time for begin, time in zip(start, cost, strict=True)]
    parts = [slice(*pair) for pair in zip(events.first.tolist(), events.first.tolist()[1:], strict=False)]
    return Simulation(
        schedule,
        tuple(np.array(start[part]) for part in parts),
        tuple(np.array(end[part]) for part in parts),
        tuple(sum(cost[part]) for part in parts),
        max(end, default=0),
    )


def peak_held(schedule: Schedule, size: Number | Sequence[Number] | Callable[[int, int], Number] = 1) -> tuple:
    """Per rank, the most that micro-batches hold between their forward pass and the end of their backward pass.

    size: what one micro-batch holds in a stage: one for all, one for each stage, or a function of (stage, flags of
    the forward action). A schedule without backward passes holds nothing beyond the action that runs.
    """
    events = Events.of(schedule)
    release = np.isin(events.kind, [code for code, kind in enumerate(KINDS.values()) if RELEASE in kind.serves])
    if not release.any():
        return (0,) * schedule.ranks
    flags = np.concatenate([actions[:, 3] for actions in schedule.actions])
    forward = events.where[NAMES.index("forward"), events.stage, events.micro_batch]  # of the same pass
    passes = list(zip(events.stage.tolist(), flags[forward].tolist(), strict=True))
    sizes = {each: _size(size, *each) for each in set(passes)}
    change = np.where(release, -1, events.kind == NAMES.index("forward")) * np.array([sizes[each] for each in passes])
    bounds = zip(events.first, events.first[1:], strict=False)
    return tuple(max(np.cumsum(change[a:b]).tolist(), default=0) for a, b in bounds)


def _ratio(part: Number, whole: Number) -> Number:
    if not whole:
        return 0
    exact = isinstance(part, Rational) and isinstance(whole, Rational)
    return Fraction(part) / Fraction(whole) if exact else part / whole


def _size(size, stage: int, flags: int) -> Number:
    if callable(size):
        return size(stage, flags)
    return size[stage] if isinstance(size, Sequence | np.ndarray) else size


def _plain(values: Sequence) -> list:
    """Python's own numbers, which add faster than numpy's."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _costs(events: Events, costs: Costs) -> list:
    """The time of each action."""
    schedule = events.schedule
    if not callable(costs) and not isinstance(costs, Mapping):
        if [len(part) for part in costs] != [len(actions) for actions in schedule.actions]:
            raise ValueError(f"costs: give each of the {schedule.ranks} ranks one time for each of its actions")
        found = [time for part in costs for time in _plain(part)]
    else:
        used = np.unique(events.kind).tolist()
        table = {code * schedule.stages + stage: time for code in used
                 for stage, time in enumerate(_of_kind(schedule, costs, NAMES[code]))}
        found = [table[key] for key in (events.kind * schedule.stages + events.stage).tolist()]
    return found


def _of_kind(schedule: Schedule, costs: Mapping | Callable, kind: str) -> list:
    """The time of one kind of action in each stage."""
    if callable(costs):
        return [costs(kind, stage) for stage in range(schedule.stages)]
    if kind not in costs:
        raise ValueError(f"costs: no {kind!r}, which schedule {schedule.name} runs; there are {', '.join(costs)}")
    times = costs[kind]
    if not isinstance(times, Sequence | np.ndarray):
        return [times] * schedule.stages
    if len(times) != schedule.stages:
        raise ValueError(f"costs: {len(times)} times of {kind!r} for {schedule.stages} stages")
    return _plain(times)


def _delays(events: Events, messages: Number | Callable[[int, int], Number]) -> list:
    """The time on the way of the message that each action consumes."""
    if not callable(messages):
        return np.where(events.sent, messages, 0).tolist() if messages else [0] * len(events.sent)
    pairs = list(zip(events.stage[events.source].tolist(), events.stage.tolist(), strict=True))
    sent = events.sent.tolist()
    table = {pair: messages(*pair) for pair in {pair for pair, far in zip(pairs, sent, strict=True) if far}}
    return [table[pair] if far else 0 for pair, far in zip(pairs, sent, strict=True)]
