"""One case of a layout, run and compared with one process.

Parity, per tensor: |a - b| <= tol * max(|b|, 1e-3 * global norm / sqrt(tensors)), in 2-norms, since some gradients (a key
bias under softmax) are zero by mathematics.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from common.collectives import all_reduce
from common.grid import Grid
from common.layout import Layout
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.parallel.gradients import gather_whole
from common.parameters import Facts, Slice
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, build, forward_backward, mean_loss, train_step
from tests.distributed import ranks

GPT = LanguageModelConfig(pattern="[*-]*2", hidden=64, heads=4, vocab=101, sequence=24)
LLAMA = replace(GPT, kv_heads=2, ffn=40, norm="rmsnorm", activation="swiglu", positions="rotary", tied=False, bias=False,
                qkv_bias=True)
ADAMW = {"fp64": AdamWConfig(clip=0.5), "fp32": AdamWConfig(clip=0.5, eps=1e-3), "bf16": AdamWConfig(clip=0.5, eps=1e-3)}


@dataclass(frozen=True)
class Case:
    """A layout, how it runs, and a model; everything else is fixed."""

    grid: Grid = Grid()
    sequence_parallel: bool = False
    recompute: str = "none"
    kernels: str = "paper"
    dropout: float = 0.0
    documents: bool = False
    precision: str = "fp32"
    model: LanguageModelConfig = GPT
    schedule: str = "1f1b"
    chunks: int = 1
    scatter_gather: bool = True
    sharded: bool = False
    batch: int = 4
    micro: int | None = None
    overlap: str = Execution.overlap

    @property
    def execution(self) -> Execution:
        return Execution(self.kernels, self.sequence_parallel, self.recompute, self.precision, schedule=self.schedule,
                         chunks=self.chunks, scatter_gather=self.scatter_gather, sharded_optimizer=self.sharded,
                         bucket=5000, overlap=self.overlap)

    @property
    def serial(self) -> "Case":
        """The same training on one process."""
        return replace(self, grid=Grid(), sequence_parallel=False, recompute="none", schedule="1f1b", chunks=1,
                       scatter_gather=True, sharded=False, micro=None)

    def __str__(self) -> str:
        g = self.grid
        return (f"tp{g.tp} pp{g.pp}x{self.chunks} {self.schedule} dp{g.dp} zero{int(self.sharded)} "
                f"sp{int(self.sequence_parallel)} {self.recompute} {self.kernels} "
                f"dropout{self.dropout} docs{int(self.documents)} {self.precision} {self.model.norm}")


def records(case: Case, step: int, dp: int = 1, index: int = 0, batch: int = 4, micro: int = 2) -> list[Record]:
    """Data rank `index`'s micro-batches of the global batch of `batch` sequences at `step`.

    Loss masks differ in length from sequence to sequence; one sequence has no counted token at all.
    """
    length, vocab = case.model.sequence, case.model.vocab
    gen = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, vocab, (batch, length + 1), generator=gen)
    counted = torch.arange(length) < torch.tensor([length, 5, 0, length // 2]).repeat(batch // 4)[:, None]
    ids = (torch.arange(length) // 7).expand(batch, length)
    positions = (torch.arange(length) % 7 if case.documents else torch.arange(length)).expand(batch, length)
    mine = range(index * batch // dp, (index + 1) * batch // dp)
    return [Record(tokens[i:j, :-1], tokens[i:j, 1:], counted[i:j], positions[i:j], ids[i:j] if case.documents else None,
                   tuple(step * batch + n for n in range(i, j)), step, 1)
            for i in list(mine)[::micro] for j in [min(i + micro, mine.stop)]]


def outcome(case: Case, rank: int = 0) -> dict[str, np.ndarray]:
    """Loss, every whole gradient, norm and clipped gradients of the first step, and all parameters after three.

    Of the parameters, those of this rank's stages.
    """
    layout = Layout(case.grid, rank)
    model = replace(case.model, dropout=case.dropout, attention_dropout=case.dropout)
    adamw = ADAMW[case.precision]
    training = build(model, case.execution, adamw, layout, seed=7)
    gradients, micro = training.gradients, case.micro or 2

    def batch(step):
        return records(case, step, layout.size("dp"), layout.index("dp"), case.batch, micro)

    def whole(runs, what):
        return {f"{what}.{n}": gather_whole(assembled(runs.get(n), f, layout, case.sharded), f, layout).double().numpy()
                for n, _, f in gradients.parameters}

    def reduced():
        return {piece.name: Slice(piece.gradient, piece.start) for piece in gradients.pieces()}

    for stage in training.stages:
        stage.train()
    loss, _ = forward_backward(training, batch(0))
    gradients.reduce()
    found = {"loss": loss.numpy(), **whole(reduced(), "gradient")}
    found["norm"] = gradients.clip(adamw.clip).numpy()
    found |= whole(reduced(), "clipped")
    training.optimizer.step(1e-2)
    for step in (1, 2):
        result = train_step(training, batch(step), 1e-2, adamw.clip)
    found["loss after"] = np.array(result.loss)
    found |= whole(training.optimizer.state()["parameters"], "parameter")
    found["held-out loss"] = np.array(mean_loss(training.pipeline, batch(3))[0])
    layout.close()
    return found


def assembled(run: Slice | None, facts: Facts, layout: Layout, sharded: bool) -> torch.Tensor:
    """This rank's whole stored part, from the runs that the data ranks hold of it."""
    shape = facts.local_shape(layout)
    if not sharded:
        return run.data.view(shape)
    whole = torch.zeros(math.prod(shape), dtype=torch.float64)
    if run is not None:
        whole[run.start:run.start + run.data.numel()] = run.data.double()
    return all_reduce(whole, layout.group("dp")).view(shape)


def outcomes(context, cases: list[Case]) -> list[dict[str, np.ndarray] | None]:
    """Runs on every rank; those with the first tensor and data index return what they found, for their stages."""
    found = [(outcome(case, context.rank), Layout(case.grid, context.rank)) for case in cases]
    return [x if all(layout.index(a) == 0 for a in ("tp", "dp", "cp")) else None for x, layout in found]


def joined(parts: list[dict[str, np.ndarray] | None]) -> dict[str, np.ndarray]:
    """What all pipeline ranks found of one case; what several of them hold must be the same."""
    whole: dict[str, np.ndarray] = {}
    for part in filter(None, parts):
        for name, x in part.items():
            if name in whole:
                np.testing.assert_allclose(x, whole[name], rtol=1e-12, atol=0, err_msg=f"{name} on two stages")
            whole[name] = x
    return whole


def run(world: int, cases: list[Case]) -> list[dict[str, np.ndarray]]:
    """The outcome of each case on `world` ranks."""
    return [joined(list(parts)) for parts in zip(*ranks(world, outcomes, cases), strict=True)]


@cache
def serial_outcome(case: Case) -> dict[str, np.ndarray]:
    return outcome(case.serial)


def deviation(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Per tensor, the distance over the scale that parity divides by."""
    assert found.keys() == expected.keys()
    floors = {}
    for kind in ("gradient", "clipped", "parameter"):
        norms = [np.linalg.norm(x) for n, x in expected.items() if n.startswith(kind + ".")]
        floors[kind] = 1e-3 * np.linalg.norm(norms) / math.sqrt(len(norms))
    return {n: float(np.linalg.norm(found[n] - x) / max(np.linalg.norm(x), floors.get(n.split(".")[0], 0)))
            for n, x in expected.items()}


def assert_parity(case: Case, found: dict[str, np.ndarray], tolerance: float) -> None:
    worst = deviation(found, serial_outcome(case.serial))
    name = max(worst, key=worst.get)
    assert worst[name] <= tolerance, f"{case}: {name} deviates by {worst[name]:.2e}, more than {tolerance:.0e}"


def assert_half_precision(case: Case, found: dict[str, np.ndarray]) -> None:
    """As close to one process in fp32 as one process in the half type is: rounding is random, so the distance is compared
    as a whole, with room for a quarter more."""
    exact = serial_outcome(replace(case.serial, precision="fp32"))
    own, other = deviation(serial_outcome(case.serial), exact), deviation(found, exact)
    for kind in ("loss", "gradient", "norm", "clipped", "parameter"):
        one, many = (np.sqrt(np.mean([v**2 for n, v in d.items() if n.startswith(kind)])) for d in (own, other))
        assert many <= 1.25 * one + 1e-3, f"{case}: {kind} {many:.2e} against {one:.2e}"
