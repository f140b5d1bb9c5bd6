"""Peak of live bytes on each rank of a real pipeline, its output tensors let go once sent, and held until backward.

The executor lets go (common/pipeline/execute.py). Around the same stage, `Holding` keeps each output until its
micro-batch has come back, as a pipeline without deallocation does (arXiv:2205.05198, appendix B).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from common.grid import Grid
from common.layout import Layout
from common.models.language_model import LanguageModel, LossTerm
from common.models.record import Record
from common.pipeline.execute import Pipeline
from common.pipeline.schedules import one_f_one_b
from common.pipeline.simulate import peak_held
from common.pipeline.wire import Carry, Shapes
from common.trace.live import Live
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, Training, build
from infra.rank_context import RankContext
from papers.sequence_parallelism.live_bytes import VOCABULARY, random_record
from papers.sequence_parallelism.recipes import counterpart

REPEATS = 2  # the least peak: gloo's threads let go of a buffer a little late at times


class Holding(nn.Module):
    """A stage that holds the outputs of its `most` last micro-batches: those in flight, which come back in order."""

    def __init__(self, stage: LanguageModel, most: int):
        super().__init__()
        self.stage, self.most = stage, most
        self.held: deque[Sequence[Tensor]] = deque()

    def carry(self, record: Record) -> Shapes:
        return self.stage.carry(record)

    def forward(self, record: Record, carry: Carry) -> tuple[Carry, dict[str, LossTerm]]:
        if len(self.held) == self.most:
            self.held.popleft()
        output, terms = self.stage(record, carry)
        self.held.append(tuple(output.values()))
        return output, terms


def peaks(context: RankContext, size: str, micro_batches: int, micro_batch: int) -> tuple[int, int]:
    """Bytes at the peak of a step with outputs let go and with outputs held, on this rank of a pipeline of all ranks.

    The counterpart of `size` with one layer on each rank, in bf16, under full recomputation and 1F1B.
    """
    layout = Layout(Grid(pp=context.size), context.rank)
    config = replace(counterpart(size).model, pattern=f"[*-]*{context.size}", vocab=VOCABULARY)
    training = build(config, Execution("paper", recompute="full", precision="bf16"), AdamWConfig(), layout, seed=1)
    records = [random_record(config, micro_batch)] * micro_batches
    (stage,), most = training.stages, peak_held(one_f_one_b(context.size, micro_batches))[context.rank]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _peak(training, stage, records), _peak(training, Holding(stage, most), records)
    finally:
        torch.set_num_threads(threads)


def _peak(training: Training, stage: nn.Module, records: Sequence[Record]) -> int:
    pipeline = Pipeline([stage], training.layout)
    schedule = one_f_one_b(training.layout.size("pp"), len(records))
    found = []
    for _ in range(REPEATS):
        training.gradients.zero()
        with Live() as live:
            pipeline.run(schedule, records, lambda terms: terms["language"].sum, training.gradients)
        found.append(live.peak)
    return min(found)
