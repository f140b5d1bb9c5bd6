"""What the host takes to issue one operation: found where a step of a tiny model is predicted to take as long as it does.

Its kernels do next to nothing, so nearly all of its step is Python, autograd and dispatch, on a CPU and on a GPU alike.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.predict.iteration import predict
from common.predict.machine import Cluster
from common.predict.price import Costs
from common.training.recipe import LearningRate, Recipe, TrainingConfig
from common.training.step import Execution
from data.config import DataConfig
from infra.launch import run_local
from infra.timed_steps import on_rank

STEPS = 15


def tiny(ranks: int) -> Recipe:
    """A model whose kernels take no time to speak of, on so many data-parallel ranks."""
    model = LanguageModelConfig("[*-]*4", hidden=32, heads=2, vocab=512, sequence=16, dropout=0.1,
                                attention_dropout=0.1)
    training = TrainingConfig(steps=STEPS, batch=8 * ranks, micro_batch=1)
    return Recipe("tiny", model, Grid(dp=ranks), execution=Execution("paper"), training=training,
                  rate=LearningRate(1e-3, STEPS), data=DataConfig(vocab=512))


def overhead_on(where: Cluster, kind: str, ranks: int) -> float:
    """Seconds with so many ranks at work, on this machine, of which all else is known."""
    recipe = tiny(ranks)
    timed = run_local(on_rank, ranks, recipe, STEPS, kind=kind)
    measured = statistics.median(max(end for _, end in step) - min(start for start, _ in step)
                                 for step in zip(*(rank.spans for rank in timed), strict=True))
    return meet(lambda seconds: predict(recipe, *on(where, seconds, ranks)).seconds, measured)


def on(where: Cluster, seconds: float, ranks: int = 1) -> tuple[Cluster, Costs]:
    """The machine and its costs with this overhead."""
    here = replace(where.accelerator_for(ranks), dispatch_overhead=seconds)
    now = replace(where, accelerator=here, shared={ranks: here, 1: here} if where.shared else {})
    return now, Costs(now, ranks)


def meet(rising: Callable[[float], float], target: float, most: float = 1e-3) -> float:
    """Where a rising function of [0, most] reaches `target`; the nearer end where it does not."""
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2
