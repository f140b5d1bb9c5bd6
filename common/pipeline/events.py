"""Who waits for whom: the actions of a schedule in one table, the messages between them, and when each starts.

An action starts once the one before it on its rank is over and the message it consumes is there. Its own message
leaves when it ends. A channel, one for each (sending rank, receiving rank, activations or gradients), carries messages
in the order sent. With bounded buffers a rank holds on to a message, and does nothing else, while that many earlier
ones of the channel have not been consumed, which happens when their consumers start. Between chunks of one rank
nothing is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from common.pipeline.schedule import KINDS, NAMES, Schedule

LANES = ("activations", "gradients")


@dataclass(frozen=True)
class Events:
    """The n actions of all ranks, numbered rank after rank. Arrays (n,) of int64; first is (p + 1,).

    first: number of each rank's first action, and n. A number of -1 stands for no action.
    """

    schedule: Schedule
    first: np.ndarray
    rank: np.ndarray
    kind: np.ndarray
    chunk: np.ndarray
    micro_batch: np.ndarray

    @classmethod
    def of(cls, schedule: Schedule) -> "Events":
        """Raises ValueError for a kind, chunk or micro-batch that the schedule does not have."""
        if len(schedule.actions) != schedule.ranks:
            raise ValueError(f"schedule {schedule.name}: actions of {len(schedule.actions)} ranks for "
                             f"{schedule.ranks} ranks")
        lengths = [len(actions) for actions in schedule.actions]
        columns = np.concatenate(schedule.actions).astype(np.int64).T
        events = cls(schedule, np.cumsum([0, *lengths]), np.repeat(np.arange(schedule.ranks), lengths), *columns[:3])
        limits = {"kind": len(KINDS), "chunk": schedule.chunks, "micro_batch": schedule.micro_batches}
        for what, limit in limits.items():
            values = getattr(events, what)
            if (wrong := (values < 0) | (values >= limit)).any():
                number = int(wrong.argmax())
                raise ValueError(f"schedule {schedule.name}: {events.place(number)}: {what} {values[number]}: "
                                 f"there are {limit}, numbered from 0")
        return events

    @cached_property
    def stage(self) -> np.ndarray:
        return self.chunk * self.schedule.ranks + self.rank

    @cached_property
    def where(self) -> np.ndarray:
        """Number of the action of each kind, stage and micro-batch: (kinds, stages, micro-batches)."""
        table = np.full((len(KINDS), self.schedule.stages, self.schedule.micro_batches), -1)
        table[self.kind, self.stage, self.micro_batch] = np.arange(len(self.rank))
        return table

    @cached_property
    def lane(self) -> np.ndarray:
        """Index in LANES of the message that each action consumes, -1 where it consumes none from another stage."""
        towards = np.array([kind.message for kind in KINDS.values()])[self.kind]
        giver = self.stage + towards
        outside = (towards == 0) | (giver < 0) | (giver >= self.schedule.stages)
        return np.where(outside, -1, (towards > 0).astype(np.int64))

    @cached_property
    def source(self) -> np.ndarray:
        """The action whose output each action consumes. Raises ValueError where nothing makes it."""
        source = np.full(len(self.rank), -1)
        for lane, towards in enumerate((-1, +1)):
            takers = np.flatnonzero(self.lane == lane)
            makers = [code for code, kind in enumerate(KINDS.values()) if kind.message == towards]
            source[takers] = self.where[makers][:, self.stage[takers] + towards, self.micro_batch[takers]].max(axis=0)
            if (missing := source[takers] < 0).any():
                number = int(takers[missing.argmax()])
                raise ValueError(f"schedule {self.schedule.name}: {self.describe(number)}: no action of stage "
                                 f"{self.stage[number] + towards} makes the {LANES[lane]} it needs")
        return source

    @cached_property
    def sent(self) -> np.ndarray:
        """Whether the message each action consumes comes from another rank."""
        return (self.source >= 0) & (self.rank[self.source] != self.rank)

    @cached_property
    def takers(self) -> tuple[np.ndarray, np.ndarray]:
        """The actions that consume a sent message, channel by channel and in order, and the number of the channel."""
        takers = np.flatnonzero(self.sent)
        channel = (self.rank[self.source[takers]] * self.schedule.ranks + self.rank[takers]) * 2 + self.lane[takers]
        order = np.argsort(channel, kind="stable")
        return takers[order], channel[order]

    def room(self, buffers: int | None) -> np.ndarray:
        """For each action, the one whose start lets its message leave; None: no message ever has to wait."""
        room = np.full(len(self.rank), -1)
        if buffers is not None:
            takers, channel = self.takers
            waits = channel[buffers:] == channel[:-buffers]
            room[self.source[takers[buffers:][waits]]] = takers[:-buffers][waits]
        return room

    def place(self, number: int) -> str:
        rank = int(self.rank[number])
        return f"rank {rank}, action {number - self.first[rank]}"

    def describe(self, number: int) -> str:
        """Rank, place in its order, and what it does."""
        return (f"{self.place(number)} ({NAMES[self.kind[number]]} of micro-batch {self.micro_batch[number]}, "
                f"chunk {self.chunk[number]})")


def play(events: Events, cost: Sequence, delay: Sequence, pause: Sequence, buffers: int | None) -> tuple[list, list]:
    """When each action starts, and when its message has left (its end, where nothing holds it up).

    cost: of each action; delay: of the message each action consumes; pause: before each action of a rank. Numbers of
    any kind, and the times are of that kind: integers and fractions stay exact. None stands for what a deadlock keeps
    from happening.
    """
    source, room = events.source.tolist(), events.room(buffers).tolist()
    start, left = [None] * len(source), [None] * len(source)
    at, last = events.first[:-1].tolist(), events.first[1:].tolist()
    free = [0] * len(at)
    awaited: dict[int, list[int]] = {}  # action -> ranks that wait for it to start or to have sent
    ready = list(range(len(at)))
    while ready:
        rank = ready.pop()
        now, wait = free[rank], pause[rank]
        for i in range(at[rank], last[rank]):
            if start[i] is None:
                given = source[i]
                if given >= 0:
                    arrival = left[given]
                    if arrival is None:
                        awaited.setdefault(given, []).append(rank)
                        break
                    arrival = arrival + delay[i]
                    if arrival > now:
                        now = arrival
                start[i] = now = now + wait
                now = now + cost[i]
            before = room[i]
            if before >= 0:
                taken = start[before]
                if taken is None:
                    awaited.setdefault(before, []).append(rank)
                    ready += awaited.pop(i, ())
                    break
                if taken > now:
                    now = taken
            left[i] = now
            if i in awaited:
                ready += awaited.pop(i)
        else:
            i = last[rank]
        at[rank], free[rank] = i, now
    return start, left
