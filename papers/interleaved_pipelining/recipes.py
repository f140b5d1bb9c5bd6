"""The models of arXiv:2104.04473 as published, and a small one that trains on a laptop under any layout.

    python -m papers.interleaved_pipelining.train gpt_1t --help
    python -m papers.interleaved_pipelining.train laptop_ptd_p

Micro-batch sizes and interleaving are those of the authors' scripts, where the paper does not state them.
"""

import math
from dataclasses import replace
from functools import partial

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.precision.loss_scale import LossScaleConfig
from common.training.optimizer import AdamWConfig
from common.training.recipe import Recipe, TrainingConfig
from common.training.schedules import LearningRate
from common.training.step import Execution
from data.config import SMALL_CORPUS, DataConfig

# layers, hidden, heads, tp, pp, dp, global batch, micro-batch, chunks per device (table 1)
TABLE_1 = {
    "1.7b": (24, 2304, 24, 1, 1, 32, 512, 16, 1),
    "3.6b": (30, 3072, 32, 2, 1, 32, 512, 16, 1),
    "7.5b": (36, 4096, 32, 4, 1, 32, 512, 16, 1),
    "18b": (40, 6144, 48, 8, 1, 32, 1024, 8, 1),
    "39b": (48, 8192, 64, 8, 2, 32, 1536, 4, 1),
    "76b": (60, 10240, 80, 8, 4, 32, 1792, 2, 3),
    "145b": (80, 12288, 96, 8, 8, 24, 2304, 2, 2),
    "310b": (96, 16384, 128, 8, 16, 15, 2160, 1, 2),
    "530b": (105, 20480, 128, 8, 35, 9, 2520, 1, 3),
    "1t": (128, 25600, 160, 8, 64, 6, 3072, 1, 1),
}


def published(name: str, model: tuple[int, int, int], grid: Grid, batch: int, micro_batch: int = 1, chunks: int = 1,
              recompute: str = "full", scatter_gather: bool = True) -> Recipe:
    """model: layers, hidden, heads. Vocabulary 51,200, sequence 2048 (section 5.1); mixed precision, each layer recomputed.

    Messages are waited for and gradients go between data ranks in 16 bits, as in the authors' code of the time. The rest is what their scripts set, but for two things: there the rate is at its floor after 320 of the 500
    iterations and the loss scale stays; here the rate decays over all 500, and the scale starts at the same value.
    """
    layers, hidden, heads = model
    return Recipe(
        name=f"interleaved_pipelining-{name}",
        model=LanguageModelConfig(pattern=f"[*-]*{layers}", hidden=hidden, heads=heads, vocab=51_200, sequence=2048,
                                  dropout=0.1, attention_dropout=0.1),
        grid=grid,
        execution=Execution("paper", recompute=recompute, precision="fp16", loss_scale=LossScaleConfig(8192.0),
                            schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks,
                            scatter_gather=scatter_gather, reduce_in="parameters", overlap="none"),
        training=TrainingConfig(steps=500, batch=batch, micro_batch=micro_batch),
        rate=LearningRate(peak=1e-4, total=500, warmup=5, floor=1e-5),
        optimizer=AdamWConfig(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, clip=1.0),
        data=DataConfig(vocab=51_200),
    )


def table_1(size: str) -> Recipe:
    """One row of table 1."""
    *model, tp, pp, dp, batch, micro_batch, chunks = TABLE_1[size]
    return published(size, tuple(model), Grid(tp=tp, dp=dp, pp=pp), batch, micro_batch, chunks)


def gpt_1_7b() -> Recipe:
    return table_1("1.7b")


def gpt_3_6b() -> Recipe:
    return table_1("3.6b")


def gpt_7_5b() -> Recipe:
    return table_1("7.5b")


def gpt_18b() -> Recipe:
    return table_1("18b")


def gpt_39b() -> Recipe:
    return table_1("39b")


def gpt_76b() -> Recipe:
    return table_1("76b")


def gpt_145b() -> Recipe:
    return table_1("145b")


def gpt_310b() -> Recipe:
    return table_1("310b")


def gpt_530b() -> Recipe:
    return table_1("530b")


def gpt_1t() -> Recipe:
    return table_1("1t")


GPT_3 = (96, 12288, 96)
TABLE_2 = {"175b": (GPT_3, 12, 1536), "530b": (TABLE_1["530b"][:3], 35, 2240)}


def table_2(size: str, gpus: int) -> Recipe:
    """PTD-P as in table 2, tp 8. It does not state the schedule: 175B interleaves as in figure 12, 530B as in table 1."""
    model, pp, batch = TABLE_2[size]
    grid = Grid(tp=8, dp=gpus // (8 * pp), pp=pp)
    return published(f"{size}-{gpus}", model, grid, batch, chunks={"175b": 4, "530b": 3}[size])


def table_2_zero_3(size: str, gpus: int) -> Recipe:
    """ZeRO-3 as in table 2: data ranks alone, one micro-batch each. 530B with four sequences did not fit the 560 GPUs that
    its batch fills, so there are 640, and the batch is larger.

    In bf16, which has the bytes and the rates of fp16 and needs no loss scale (common/parallel/fully_sharded.py).
    """
    model, _, batch = TABLE_2[size]
    batch = gpus * math.ceil(batch / gpus)
    recipe = published(f"zero-3-{size}-{gpus}", model, Grid(dp=gpus), batch, batch // gpus)
    return replace(recipe, execution=Execution("paper", recompute="full", precision="bf16"))


def gpt3_175b() -> Recipe:
    """On the most GPUs of table 2."""
    return table_2("175b", 1536)


def figure_7(micro_batch: int) -> Recipe:
    """A billion parameters on one GPU."""
    return published("figure7", (4, 4096, 128), Grid(), batch=micro_batch, micro_batch=micro_batch)


def figure_11(pp: int, batch: int) -> Recipe:
    """Weak scaling of the pipeline: three layers of hidden size 20480 for each stage."""
    return published("figure11", (3 * pp, 20480, 128), Grid(tp=8, pp=pp), batch)


def figure_12(batch: int, chunks: int = 4) -> Recipe:
    """GPT-3 on 96 GPUs, interleaved or, with one chunk, not."""
    return published("figure12", GPT_3, Grid(tp=8, pp=12), batch, chunks=chunks)


def figure_13(pp: int, batch: int) -> Recipe:
    """162B on 64 GPUs, tensor against pipeline parallelism."""
    return published("figure13", (32, 20480, 128), Grid(tp=64 // pp, pp=pp), batch)


SIX_BILLION = (32, 3840, 32)


def figure_14(pp: int, batch: int) -> Recipe:
    """5.9B on 64 GPUs, data against pipeline parallelism."""
    return published("figure14", SIX_BILLION, Grid(dp=64 // pp, pp=pp), batch)


def figure_15(tp: int, batch: int) -> Recipe:
    """5.9B on 64 GPUs, data against tensor parallelism."""
    return published("figure15", SIX_BILLION, Grid(tp=tp, dp=64 // tp), batch)


def figure_16(micro_batch: int, batch: int) -> Recipe:
    """91B on 64 GPUs, by micro-batch size."""
    return published("figure16", (32, 15360, 128), Grid(tp=8, pp=8), batch, micro_batch)


def figure_17(batch: int, recompute: str = "full") -> Recipe:
    """145B on 128 GPUs, with recomputation or without."""
    return published("figure17", TABLE_1["145b"][:3], Grid(tp=8, pp=16), batch, recompute=recompute)


def figure_18(batch: int, scatter_gather: bool = True) -> Recipe:
    """GPT-3 on 96 GPUs, interleaved, with the scatter/gather optimisation or without."""
    return published("figure18", GPT_3, Grid(tp=8, pp=12), batch, chunks=4, scatter_gather=scatter_gather)


def figure11_121b() -> Recipe:
    return figure_11(8, 128)


def figure12_175b() -> Recipe:
    return figure_12(60)


def figure13_162b() -> Recipe:
    return figure_13(8, 128)


def figure14_6b() -> Recipe:
    return figure_14(2, 512)


def figure15_6b() -> Recipe:
    return figure_15(2, 512)


def figure16_91b() -> Recipe:
    return figure_16(2, 512)


def figure17_145b() -> Recipe:
    return figure_17(256)


def figure18_175b() -> Recipe:
    return figure_18(60, scatter_gather=False)


def laptop_under(grid: Grid = Grid(), steps: int = 100, **execution) -> Recipe:  # noqa: B008 (a frozen value)
    """The laptop model under one layout, always with the same batches, dropout masks and seed.

    Its 8 layers, 4 heads and 4 micro-batches fit every layout of up to 4 ranks. At three times this rate training is
    chaotic, and rounding alone, in fp64 too, grows to a hundredth of the loss within 100 steps.
    """
    return Recipe(
        name="interleaved_pipelining-laptop",
        model=LanguageModelConfig("[*-]*8", hidden=64, heads=4, vocab=1024, sequence=64, dropout=0.1, attention_dropout=0.1),
        grid=grid,
        execution=Execution("paper", **execution),
        training=TrainingConfig(steps=steps, batch=8, micro_batch=2),
        rate=LearningRate(peak=1e-3, total=steps, warmup=min(10, steps), floor=1e-4),
        data=SMALL_CORPUS,
    )


def laptop() -> Recipe:
    """On one process."""
    return laptop_under()


def laptop_ptd_p() -> Recipe:
    """Tensor, pipeline and data parallelism composed on eight ranks, with two chunks on each and a sharded optimizer."""
    return laptop_under(Grid(tp=2, dp=2, pp=2), schedule="interleaved", chunks=2, sharded_optimizer=True)


LAYOUTS = {
    "one process": laptop_under,
    "dp 4": partial(laptop_under, Grid(dp=4)),
    "dp 4, sharded optimizer": partial(laptop_under, Grid(dp=4), sharded_optimizer=True),
    "tp 4": partial(laptop_under, Grid(tp=4)),
    "tp 2 with sequence parallelism, dp 2, selective recomputation": partial(
        laptop_under, Grid(tp=2, dp=2), sequence_parallel=True, recompute="selective"),
    "pp 4, 1F1B": partial(laptop_under, Grid(pp=4)),
    "pp 4, zero bubble": partial(laptop_under, Grid(pp=4), schedule="zb-h1"),
    "pp 4 in 2 chunks, interleaved, full recomputation": partial(
        laptop_under, Grid(pp=4), schedule="interleaved", chunks=2, recompute="full"),
    "tp 2, pp 2 in 2 chunks, interleaved": partial(laptop_under, Grid(tp=2, pp=2), schedule="interleaved", chunks=2),
    "pp 2, GPipe, dp 2, sharded optimizer": partial(
        laptop_under, Grid(dp=2, pp=2), schedule="gpipe", sharded_optimizer=True),
}
"""Ten ways to run the laptop model, each a function of the number of steps."""


def laptop_stages(hidden: int, sequence: int, batch: int, micro_batch: int, recompute: str = "none") -> Recipe:
    """Two stages of two layers, alike: the vocabulary is too small to weigh on either."""
    return Recipe(
        name="interleaved_pipelining-laptop-stages",
        model=LanguageModelConfig("[*-]*4", hidden=hidden, heads=4, vocab=257, sequence=sequence),
        grid=Grid(pp=2),
        execution=Execution("paper", recompute=recompute),
        training=TrainingConfig(steps=20, batch=batch, micro_batch=micro_batch),
        rate=LearningRate(peak=1e-3, total=20, floor=1e-4),
        data=replace(SMALL_CORPUS, vocab=257),
    )


def laptop_figure_16(micro_batch: int, batch: int) -> Recipe:
    """Small enough that a larger micro-batch makes better use of a processor, as of a GPU in figure 7."""
    return laptop_stages(128, 64, batch, micro_batch)


def laptop_figure_17(batch: int, recompute: str = "full") -> Recipe:
    """Large enough that recomputation costs its operations rather than its calls; micro-batches of one sequence."""
    return laptop_stages(192, 128, batch, 1, recompute)


def laptop_figure16() -> Recipe:
    return laptop_figure_16(4, 16)


def laptop_figure17() -> Recipe:
    return laptop_figure_17(16)
