"""What tests of predictions share: small models, a way to run them, and costs that are plain arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.predict.hardware import cluster
from common.predict.machine import Cluster
from common.trace.record import Operation
from common.training.recipe import Recipe, TrainingConfig
from common.training.step import Execution
from data.config import DataConfig

GPT = LanguageModelConfig(
    "[*-]*4", hidden=64, heads=4, vocab=264, sequence=32, dropout=0.1, attention_dropout=0.1
)
LLAMA = LanguageModelConfig(
    "[*-]*4",
    hidden=64,
    heads=4,
    kv_heads=2,
    ffn=96,
    vocab=257,
    sequence=32,
    norm="rmsnorm",
    activation="swiglu",
    positions="rotary",
    tied=False,
    bias=False,
)


def recipe(
    model: LanguageModelConfig = GPT,
    grid: Grid = Grid(),  # noqa: B008 (a frozen value)
    batch: int = 8,
    micro_batch: int = 1,
    **execution,
) -> Recipe:
    settings = {"kernels": "paper", "precision": "bf16"} | execution
    return Recipe(
        "small",
        model,
        grid,
        Execution(**settings),
        TrainingConfig(batch=batch, micro_batch=micro_batch),
        data=DataConfig(vocab=257),
    )


def selene() -> Cluster:
    return cluster("selene")


@dataclass
class PlainCosts:
    """per_flop seconds for each FLOP, message_seconds for each message, transfer_seconds between stages;
    nothing else takes time. sent: (name, bytes, ranks) of every message that was priced."""

    per_flop: float = 1.0
    message_seconds: float = 0.0
    transfer_seconds: float = 0.0
    sent: list[tuple[str, float, tuple[int, ...]]] = field(default_factory=list)
    dispatch: float = 0.0
    runs_ahead: bool = True

    def operation(self, operation: Operation) -> float:
        return self.per_flop * operation.flops

    def message(self, name: str, size: float, ranks: Sequence[int]) -> float:
        self.sent.append((name, size, tuple(ranks)))
        return self.message_seconds

    def transfer(self, size: float, sender: int, receiver: int) -> float:
        return self.transfer_seconds

    def slowed(self, ranks: Sequence[int]) -> float:
        return 0.0
