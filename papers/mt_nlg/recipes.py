"""The model of arXiv:2201.11990 as published, and a small one of the same shape that trains on a laptop.

    python -m papers.mt_nlg.train laptop
"""

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.training.optimizer import AdamWConfig
from common.training.recipe import Recipe, TrainingConfig
from common.training.schedules import LearningRate
from common.training.step import Execution
from data.config import SMALL_CORPUS, DataConfig

BATCH, SEQUENCE, TOKENS = 1920, 2048, 270e9
STEPS = round(TOKENS / (BATCH * SEQUENCE))


def on_nodes(nodes: int) -> Recipe:
    """530B on so many nodes of eight GPUs (section 2.3): tensor ranks within a node, 35 stages, data ranks as they go.

    Every layer is recomputed, bfloat16 with fp32 gradients. Messages are waited for, as in the pipeline that the paper
    built on; stages are not interleaved.
    """
    return Recipe(
        name=f"mt_nlg-530b-{nodes}",
        model=LanguageModelConfig(pattern="[*-]*105", hidden=20480, heads=128, vocab=51_200, sequence=SEQUENCE,
                                  dropout=0.1, attention_dropout=0.1),
        grid=Grid(tp=8, dp=nodes // 35, pp=35),
        execution=Execution("paper", recompute="full", precision="bf16", sharded_optimizer=True, overlap="none"),
        training=TrainingConfig(steps=STEPS, batch=BATCH, micro_batch=1),
        rate=LearningRate(peak=5e-5, total=STEPS, warmup=254, floor=5e-6),
        optimizer=AdamWConfig(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0),
        data=DataConfig(vocab=51_200),
    )


def mt_nlg_530b() -> Recipe:
    """On the 280 nodes of the first row."""
    return on_nodes(280)


def laptop() -> Recipe:
    """The same way to run, three layers and stages: a minute on two cores."""
    return Recipe(
        name="mt_nlg-laptop",
        model=LanguageModelConfig(pattern="[*-]*6", hidden=96, heads=4, vocab=1024, sequence=128, dropout=0.1,
                                  attention_dropout=0.1),
        grid=Grid(pp=2),
        execution=Execution("paper", recompute="full"),
        training=TrainingConfig(steps=60, batch=8, micro_batch=2),
        rate=LearningRate(peak=1e-3, total=60, warmup=6, floor=1e-4),
        optimizer=AdamWConfig(beta1=0.9, beta2=0.95),
        data=SMALL_CORPUS,
    )
