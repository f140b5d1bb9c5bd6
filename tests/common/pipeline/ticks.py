"""A clock that ticks: runs a schedule one unit of time after the other, with none of the simulator's code.

Whole positive costs. Every rank is idle, running or sending; a message is a letter in a mailbox that only its own
consumer may take, and only once it has arrived.
"""

from collections import defaultdict

from common.pipeline.schedule import Schedule

TOWARDS = {"forward": -1, "backward": 1, "input_gradient": 1, "weight_gradient": 0}


class Rank:
    def __init__(self, schedule: Schedule, rank: int):
        self.rank, self.actions = rank, list(schedule.of(rank))
        self.at, self.state, self.until = 0, "idle", 0
        self.times: list[tuple[int, int]] = []


def tick(schedule: Schedule, cost, message: int = 0, buffers: int | None = None):
    """(start, end) of each action of each rank, or None where all ranks wait for each other. cost: (kind, stage) -> int."""
    ranks = [Rank(schedule, rank) for rank in range(schedule.ranks)]
    arrives: dict = {}  # (direction, stage, micro-batch) of who consumes it -> when
    under_way: dict = defaultdict(int)  # (from, to, direction) -> messages sent and not consumed
    now = 0
    while any(rank.at < len(rank.actions) for rank in ranks):
        while any([_step(schedule, rank, now, cost, message, buffers, arrives, under_way) for rank in ranks]):
            pass
        running = any(rank.state == "running" for rank in ranks)
        if not running and all(time <= now for time in arrives.values()) and any(
                rank.at < len(rank.actions) for rank in ranks):
            return None
        now += 1
    return [rank.times for rank in ranks]


def _step(schedule, rank, now, cost, message, buffers, arrives, under_way) -> bool:
    """Whether the rank did anything that it could do at this time."""
    if rank.at == len(rank.actions):
        return False
    action = rank.actions[rank.at]
    towards = TOWARDS[action.kind]
    stage = action.chunk * schedule.ranks + rank.rank
    if rank.state == "idle":
        needs_message = towards and 0 <= stage + towards < schedule.stages
        if needs_message:
            key = (towards, stage, action.micro_batch)
            if arrives.get(key, now + 1) > now:
                return False
            del arrives[key]
            under_way[(stage + towards) % schedule.ranks, rank.rank, towards] -= 1
        rank.state, rank.until = "running", now + cost(action.kind, stage)
        rank.times.append((now, rank.until))
        return True
    if rank.state == "running":
        if rank.until > now:
            return False
        rank.state = "sending"
    to = stage - towards
    if towards and 0 <= to < schedule.stages:
        far = to % schedule.ranks != rank.rank
        channel = (rank.rank, to % schedule.ranks, towards)
        if far and buffers is not None and under_way[channel] >= buffers:
            return False
        under_way[channel] += 1
        arrives[towards, to, action.micro_batch] = now + (message if far else 0)
    rank.state, rank.at = "idle", rank.at + 1
    return True
