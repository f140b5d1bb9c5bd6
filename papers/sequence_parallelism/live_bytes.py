"""Peak of live tensor bytes in forward and backward of a real training step, beside the saved-bytes meter.

The difference between a deeper and a shallower model is what one layer adds: embedding, output, and what a
step holds for a moment cancel, so the vocabulary is a small one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.recompute.meter import measuring
from common.trace.live import Live
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, Training, build, forward_backward
from infra.rank_context import RankContext
from papers.sequence_parallelism.recipes import counterpart
from papers.sequence_parallelism.traces import TECHNIQUES

DEPTHS, VOCABULARY = (2, 4), 512
REPEATS = 3  # gloo's threads let go of a buffer a little late at times: the least peak is the step's own


@dataclass(frozen=True)
class LayerBytes:
    """Bytes that one layer adds to the peak of live tensors, and to what the meter counts as saved."""

    live: float
    saved: float


def layer_bytes(size: str, technique: str, micro_batch: int, layout: Layout) -> LayerBytes:
    """One layer of the counterpart of `size` in bf16, which is the 16-bit float of the paper's formulas."""
    settings = {key: value for key, value in TECHNIQUES[technique].items() if key != "tp"}
    execution = Execution("paper", precision="bf16", **settings)
    recipe = counterpart(size)
    found = []
    for depth in DEPTHS:
        config = replace(recipe.model, pattern=f"[*-]*{depth}", vocab=VOCABULARY)
        training = build(config, execution, AdamWConfig(), layout, seed=1)
        record = random_record(config, micro_batch)
        steps = [_step(training, record) for _ in range(1 if layout.size("tp") == 1 else REPEATS)]
        found.append((min(peak for peak, _ in steps), steps[0][1]))
    shallow, deep = found
    added = DEPTHS[1] - DEPTHS[0]
    return LayerBytes(*((b - a) / added for a, b in zip(shallow, deep, strict=True)))


def _step(training: Training, record: Record) -> tuple[int, int]:
    """Peak of live bytes and saved bytes of one forward and backward."""
    with measuring(training.model) as meter, Live() as live:
        forward_backward(training, [record])
    return live.peak, meter.total


def random_record(config: LanguageModelConfig, micro_batch: int) -> Record:
    gen = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab, (micro_batch, config.sequence + 1), generator=gen)
    positions = torch.arange(config.sequence).expand(micro_batch, -1)
    return Record(
        tokens[:, :-1],
        tokens[:, 1:],
        torch.ones(micro_batch, config.sequence, dtype=torch.bool),
        positions,
        samples=tuple(range(micro_batch)),
    )


def all_bytes(
    layout: Layout,
    sizes: Sequence[str],
    techniques: Sequence[str],
    micro_batch: int,
) -> dict[str, list[LayerBytes]]:
    """Technique -> bytes of one layer of each size, on this rank. One thread: many small steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            technique: [layer_bytes(size, technique, micro_batch, layout) for size in sizes]
            for technique in techniques
        }
    finally:
        torch.set_num_threads(threads)


def on_rank(
    context: RankContext,
    sizes: Sequence[str],
    techniques: Sequence[str],
    micro_batch: int,
) -> dict[str, list[LayerBytes]]:
    """The same on a rank of a tensor-parallel group of all."""
    return all_bytes(Layout(Grid(tp=context.size), context.rank), sizes, techniques, micro_batch)
