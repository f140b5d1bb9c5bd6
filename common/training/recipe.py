"""A recipe: everything that a run depends on. The same one is run here, traced at any size, and sent to a cluster."""

from dataclasses import dataclass, field, replace

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.pipeline.schedules import make
from common.ranges import COUNT, WHOLE, check_ranges
from common.training.optimizer import AdamWConfig
from common.training.schedules import LearningRate
from common.training.step import Execution
from data.config import DataConfig
from data.samples import check_batch

MOST_MICRO_BATCHES = 100_000  # a schedule lists each of them


@dataclass(frozen=True)
class TrainingConfig:
    """batch: sequences per optimizer step over all ranks; micro_batch: sequences per forward pass of one rank.

    evaluate_every, save_every: in steps, 0 for only at the end. evaluate_sequences: of the validation split, 0 for all.
    keep: checkpoints kept. document_mask: attention, positions and loss stop at document borders. patience: steps in a row
    with a loss or gradient that is not finite before the run stops.
    """

    steps: int = 200
    batch: int = 16
    micro_batch: int = 16
    seed: int = 1
    document_mask: bool = False
    evaluate_every: int = 0
    evaluate_sequences: int = 64
    save_every: int = 0
    keep: int = 2
    patience: int = 10
    tensorboard: bool = False

    def __post_init__(self):
        check_ranges(self, dict.fromkeys(("steps", "batch", "micro_batch", "keep", "patience"), COUNT))
        check_ranges(self, dict.fromkeys(("seed", "evaluate_every", "evaluate_sequences", "save_every"), WHOLE))


@dataclass(frozen=True)
class Recipe:
    name: str
    model: LanguageModelConfig = field(default_factory=LanguageModelConfig)
    grid: Grid = field(default_factory=Grid)
    execution: Execution = field(default_factory=Execution)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    rate: LearningRate = field(default_factory=lambda: LearningRate(1e-3, 200, 20, 1e-4))
    optimizer: AdamWConfig = field(default_factory=AdamWConfig)
    data: DataConfig = field(default_factory=DataConfig)

    def check(self) -> None:
        """Cross-field checks; raises ValueError before any process starts."""
        self.execution.check(self.model, self.grid)
        check_batch(self.training.batch, self.grid.dp, self.training.micro_batch)
        if self.micro_batches > MOST_MICRO_BATCHES:
            raise ValueError(f"batch={self.training.batch} with micro_batch={self.training.micro_batch} and dp={self.grid.dp}: "
                             f"{self.micro_batches:,} micro-batches a step for each data rank; use at most "
                             f"{MOST_MICRO_BATCHES:,}")
        make(self.execution.schedule, self.grid.pp, self.execution.chunks, self.micro_batches)
        if self.model.vocab < self.data.vocab:
            raise ValueError(f"model.vocab={self.model.vocab} is smaller than data.vocab={self.data.vocab}: "
                             "the model must cover the tokenizer")
        if self.rate.total != self.training.steps and self.rate.decay != "constant":
            raise ValueError(f"rate.total={self.rate.total} differs from training.steps={self.training.steps}: the decay "
                             "would end elsewhere than the run; set both")

    @property
    def micro_batches(self) -> int:
        """Per step and data rank."""
        return self.training.batch // (self.grid.dp * self.training.micro_batch)

    def for_steps(self, steps: int) -> "Recipe":
        """The same recipe over another number of steps, its schedule with it."""
        warmup = min(self.rate.warmup, steps)
        return replace(self, training=replace(self.training, steps=steps),
                       rate=replace(self.rate, total=steps, warmup=warmup))
