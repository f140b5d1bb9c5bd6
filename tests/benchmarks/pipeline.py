"""Our executor beside torch.distributed.pipelining's, over the same stages, which wait exactly.

Same ranks, waits, messages and micro-batches; both run in the same processes, in alternated pairs, after two runs each
that are not counted. Shapes: M micro-batches of B sequences, H hidden.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from common.grid import Grid
from common.layout import Layout
from common.pipeline.schedules import make
from infra.launch import run_local
from infra.rank_context import RankContext
from papers.interleaved_pipelining.exact_wait import Times, Waiting, WaitingLayer, micro_batch, total
from tests.benchmarks.pairs import PAIRS, Paired

FORWARD = 0.02  # seconds of a chunk's wait; backward twice as long


@dataclass(frozen=True)
class Contest:
    """most: ratio of our iteration time to theirs to reach, and upper: the bound on the end of its interval; None where
    the contest shows what the executors themselves take."""

    name: str
    schedule: str
    p: int
    v: int
    m: int
    forward: float = FORWARD
    most: float | None = 1.0
    upper: float | None = 1.05


CONTESTS = (
    Contest("pipeline, interleaved", "interleaved", 4, 2, 8),
    Contest("pipeline, interleaved, 8 ranks", "interleaved", 8, 2, 8),
    Contest("pipeline, 1f1b", "1f1b", 4, 1, 8),
    Contest("pipeline, interleaved, no waits", "interleaved", 4, 2, 8, forward=0.0, most=None, upper=None),
)


class Theirs:
    """The same layers under torch.distributed.pipelining; gradients are sums over micro-batches on both sides."""

    def __init__(self, contest: Contest, context: RankContext):
        self.times, p, v = Times(0.0, 0.0), contest.p, contest.v
        numbers = [c * p + context.rank for c in range(v)]
        self.layers = [WaitingLayer(number, self.times) for number in numbers]
        stages = [PipelineStage(layer, number, p * v, torch.device("cpu"))
                  for layer, number in zip(self.layers, numbers, strict=True)]
        settings = {"n_microbatches": contest.m, "loss_fn": lambda y_BH, _: y_BH.sum(), "scale_grads": False}
        self.schedule = (Schedule1F1B(stages[0], **settings) if v == 1 else ScheduleInterleaved1F1B(stages, **settings))
        x = torch.cat([micro_batch(i).tokens.float() for i in range(contest.m)])
        self.inputs = (x,) if context.rank == 0 else ()
        self.targets = {"target": x, "losses": []} if context.rank == p - 1 else {}

    def run(self) -> None:
        self.schedule.step(*self.inputs, **self.targets)


class Ours:
    def __init__(self, contest: Contest, context: RankContext):
        self.waiting = Waiting(Layout(Grid(pp=contest.p), context.rank), contest.v)
        self.times, self.layers = self.waiting.times, [stage.layer for stage in self.waiting.stages]
        self.schedule = make(contest.schedule, contest.p, contest.v, contest.m)
        self.records = [micro_batch(i) for i in range(contest.m)]

    def run(self) -> None:
        self.waiting.pipeline.run(self.schedule, self.records, total)


Side = Ours | Theirs


def gradients(side: Side) -> list[Tensor]:
    """Of one iteration without waits, chunk by chunk."""
    for layer in side.layers:
        layer.weight.grad = None
    side.run()
    return [layer.weight.grad.clone() for layer in side.layers]


def both(context: RankContext, contest: Contest) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of both sides on this rank."""
    logging.disable(logging.WARNING)  # their stages announce once how they found out about shapes
    return gradients(Ours(contest, context)), gradients(Theirs(contest, context))


def timed(side: Side) -> tuple[float, float]:
    """Start and end of one iteration on this rank, by the clock that all ranks share."""
    dist.barrier()
    start = time.perf_counter()
    side.run()
    return start, time.perf_counter()


def duel(context: RankContext, contest: Contest, pairs: int) -> list[list[tuple[float, float]]]:
    """(start, end) of our iterations and of theirs, pair by pair; who begins changes from pair to pair."""
    logging.disable(logging.WARNING)
    sides: Sequence[Side] = Ours(contest, context), Theirs(contest, context)
    for _ in range(2):
        for side in sides:
            side.run()
    for side in sides:
        side.times.forward, side.times.backward = contest.forward, 2 * contest.forward
    found: list[list[tuple[float, float]]] = [[], []]
    for pair in range(pairs):
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            found[i].append(timed(sides[i]))
    return found


def agree(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-5, atol=0) for a, b in zip(ours, theirs, strict=True))


def run(contest: Contest, launch: Callable = run_local) -> dict:
    """Times one contest; first the gradients of both sides must agree."""
    if not all(agree(*sides) for sides in launch(both, contest.p, contest)):
        raise RuntimeError(f"{contest.name}: gradients differ")
    by_rank = launch(duel, contest.p, contest, PAIRS)
    ours, theirs = (tuple(max(end for _, end in ranks) - min(start for start, _ in ranks)
                          for ranks in zip(*(rank[i] for rank in by_rank), strict=True)) for i in (0, 1))
    paired = Paired(theirs, ours, ())  # the ratio is then ours over theirs
    formula = (contest.m * contest.v + contest.p - 1) * 3 * contest.forward
    return {"contest": contest.name, "peer": "torch.distributed.pipelining", "p": contest.p, "v": contest.v, "m": contest.m,
            "forward_s": contest.forward, "formula_s": formula, "ratio": paired.ratio, "interval": list(paired.interval),
            "most": contest.most, "upper": contest.upper, "ours_s": list(ours), "theirs_s": list(theirs)}
