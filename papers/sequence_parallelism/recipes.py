"""The models of arXiv:2205.05198, table 3, as published, and counterparts that train on a laptop.

    python -m papers.sequence_parallelism.train laptop
"""

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.training.optimizer import AdamWConfig
from common.training.recipe import Recipe, TrainingConfig
from common.training.schedules import LearningRate
from common.training.step import Execution
from data.config import DataConfig

# layers, hidden, heads, pp, global batch, micro batch (table 3); tp 8, sequence 2048, vocabulary 51,200 (section 6)
TABLE_3 = {
    "22b": (48, 6144, 64, 1, 4, 4),
    "175b": (96, 12288, 96, 8, 64, 1),
    "530b": (105, 20480, 128, 35, 280, 1),
    "1t": (128, 25600, 160, 64, 512, 1),
}
CHUNKS = {"175b": 3, "530b": 3}  # interleaving stages (section 6); none are stated for the other two


def published(size: str, sequence_parallel: bool = True, recompute: str = "selective") -> Recipe:
    """One row of table 3, by default with the present work: sequence parallelism and selective recomputation.

    The paper states neither steps nor learning rate, since its runs measure time and memory: ten steps at a constant rate
    do the same. Messages of tensor ranks run beside weight gradients (section 6.2), others are waited for.
    """
    layers, hidden, heads, pp, batch, micro = TABLE_3[size]
    chunks = CHUNKS.get(size, 1)
    return Recipe(
        name=f"sequence_parallelism-{size}",
        model=LanguageModelConfig(pattern=f"[*-]*{layers}", hidden=hidden, heads=heads, vocab=51_200, sequence=2048,
                                  dropout=0.1, attention_dropout=0.1),
        grid=Grid(tp=8, pp=pp),
        execution=Execution("paper", sequence_parallel, recompute, "bf16",
                            schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks, overlap="tp"),
        training=TrainingConfig(steps=10, batch=batch, micro_batch=micro),
        rate=LearningRate(peak=1e-4, total=10, warmup=0, floor=1e-5, decay="constant"),
        data=DataConfig(vocab=51_200),
    )


def gpt_22b() -> Recipe:
    return published("22b")


def gpt_175b() -> Recipe:
    return published("175b")


def gpt_530b() -> Recipe:
    return published("530b")


def gpt_1t() -> Recipe:
    return published("1t")


def counterpart(size: str, layers: int = 4) -> Recipe:
    """A small model with the same attention term 5as/h as the published one, so that each technique saves the same share
    of its activations (table 2). Sequence 256; hidden is the size below that makes the number of heads whole."""
    _, hidden, heads, _, _, _ = TABLE_3[size]
    small = {"22b": 192, "175b": 192, "530b": 160, "1t": 160}[size]
    return Recipe(
        name=f"sequence_parallelism-{size}-laptop",
        model=LanguageModelConfig(pattern=f"[*-]*{layers}", hidden=small, heads=heads * 2048 // 256 * small // hidden,
                                  vocab=4096, sequence=256, dropout=0.1, attention_dropout=0.1),
        execution=Execution("paper"),
        training=TrainingConfig(steps=50, batch=8, micro_batch=8),
        rate=LearningRate(peak=1e-3, total=50, warmup=10, floor=1e-4),
    )


def laptop_22b() -> Recipe:
    return counterpart("22b")


def laptop_175b() -> Recipe:
    return counterpart("175b")


def laptop_530b() -> Recipe:
    return counterpart("530b")


def laptop_1t() -> Recipe:
    return counterpart("1t")


def laptop() -> Recipe:
    """Trains on the default corpus in about a minute on two cores; what `make reproduce` runs."""
    return laptop_long().for_steps(100)


def laptop_long() -> Recipe:
    """The same model on 8.2 million tokens, nearly once through the default corpus: about half an hour on two cores.

    It should beat a 5-gram model of the same corpus on held-out packages by 0.05 bits per byte or more.
    """
    return Recipe(
        name="sequence_parallelism-laptop",
        model=LanguageModelConfig(pattern="[*-]*6", hidden=192, heads=6, vocab=4096, sequence=256),
        training=TrainingConfig(steps=4000, batch=8, micro_batch=8, evaluate_every=500, save_every=500),
        rate=LearningRate(peak=2e-3, total=4000, warmup=200, floor=1e-4),
        optimizer=AdamWConfig(),
    )
