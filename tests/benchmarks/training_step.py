"""One training step of the same model with the same weights: ours beside transformers and megatron-core, on this machine.

hidden 512, 8 layers, sequence 512, GPT-2's shape; forward, backward, clipping to 1.0 and torch's fused AdamW on each side.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from common.checkpoint.huggingface import export_hf
from common.device import keep_freed_memory, physical_cores
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.flops import model_flops
from common.models.record import Record
from common.training.optimizer import AdamWConfig
from common.training.step import Execution, Training, build, train_step
from tests.benchmarks.pairs import PAIRS, Paired, alternate
from tests.oracles import megatron

MODEL = LanguageModelConfig(pattern="[*-]*8", hidden=512, heads=8, vocab=8192, sequence=512)
BATCH = 4
ADAMW = AdamWConfig()


@dataclass(frozen=True)
class Contest:
    """peer: transformers or megatron-core. least: the ratio of step times to reach, None where only utilisation counts."""

    name: str
    peer: str
    dropout: float
    compiled: bool = False
    kernels: str = "sdpa"
    least: float | None = None
    least_utilisation: float | None = None


CONTESTS = (
    Contest("transformers, eager", "transformers", 0.0, least=1.0, least_utilisation=0.8),
    Contest("transformers, eager, dropout", "transformers", 0.1, least=1.15),
    Contest("transformers, compiled", "transformers", 0.0, compiled=True, least=1.0),
    Contest("transformers, compiled, dropout", "transformers", 0.1, compiled=True, least=1.15),
    Contest("megatron-core", "megatron-core", 0.0, least=1.2),
    Contest("megatron-core, dropout", "megatron-core", 0.1, least=1.2),
    Contest("megatron-core, the papers' kernels", "megatron-core", 0.0, kernels="paper", least_utilisation=0.6),
)


def record(step: int) -> Record:
    tokens = torch.randint(0, MODEL.vocab, (BATCH, MODEL.sequence + 1), generator=torch.Generator().manual_seed(step))
    positions = torch.arange(MODEL.sequence).expand(BATCH, -1)
    counted = torch.ones(BATCH, MODEL.sequence, dtype=torch.bool)
    return Record(tokens[:, :-1], tokens[:, 1:], counted, positions, None,
                  tuple(range(step * BATCH, (step + 1) * BATCH)), step, 1)


def ours(contest: Contest) -> tuple[Training, Callable[[], float]]:
    model = replace(MODEL, dropout=contest.dropout, attention_dropout=contest.dropout)
    training = build(model, Execution(contest.kernels, compile=contest.compiled), ADAMW, SERIAL, seed=0)
    steps = iter(range(10**6))

    def step() -> float:
        return train_step(training, [record(next(steps))], 1e-4, ADAMW.clip).loss

    return training, step


def _peer_step(model: nn.Module, loss_of: Callable[[Record], Tensor]) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(ADAMW.beta1, ADAMW.beta2), eps=ADAMW.eps,
                                  weight_decay=ADAMW.weight_decay, fused=True)
    steps = iter(range(10**6))

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(record(next(steps)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), ADAMW.clip)
        optimizer.step()
        return loss.item()

    return step


def transformers_step(training: Training, contest: Contest, attention: str) -> Callable[[], float]:
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        export_hf(training.model, SERIAL, path)
        p = contest.dropout
        config = AutoConfig.from_pretrained(path, resid_pdrop=p, embd_pdrop=p, attn_pdrop=p, use_cache=False)
        model = AutoModelForCausalLM.from_pretrained(path, config=config, attn_implementation=attention).train()
    forward = torch.compile(model) if contest.compiled else model

    def loss(r: Record) -> Tensor:
        logits = forward(input_ids=r.tokens).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), r.labels.flatten())

    return _peer_step(model, loss)


def megatron_step(training: Training, contest: Contest) -> Callable[[], float]:
    model = megatron.build(training.model.config).train()
    megatron.load(dict(training.model.named_parameters()), model, training.model.config)
    hidden = megatron.mask(record(0))
    return _peer_step(model, lambda r: model(r.tokens, r.positions, hidden, labels=r.labels).mean())


@contextmanager
def peer(training: Training, contest: Contest) -> Iterator[tuple[str, Callable[[], float]]]:
    """The other side's name and step; of transformers' attentions, the faster one on this machine."""
    with megatron.single_rank() if contest.peer == "megatron-core" else nullcontext():
        if contest.peer == "megatron-core":
            yield "local spec", megatron_step(training, contest)
            return
        eager, sdpa = (transformers_step(training, replace(contest, compiled=False), a) for a in ("eager", "sdpa"))
        faster = "sdpa" if alternate(eager, sdpa, 9).ratio < 1 else "eager"
        yield faster, transformers_step(training, contest, faster)


def run(contest: Contest) -> dict:
    """Times one contest; first the losses of both sides on the same data must agree."""
    torch.set_num_threads(physical_cores())
    keep_freed_memory()
    torch.compiler.reset()
    training, step = ours(contest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with peer(training, contest) as (variant, other):
            a, b = step(), other()
            if abs(a - b) > (0.05 if contest.dropout else 1e-4):
                raise RuntimeError(f"{contest.name}: losses of the first step differ, {a} and {b}")
            return _result(contest, variant, alternate(step, other, PAIRS))


def _result(contest: Contest, variant: str, timed: Paired) -> dict:
    low, high = timed.interval
    return {
        "contest": contest.name, "peer": f"{contest.peer} ({variant})", "kernels": contest.kernels,
        "dropout": contest.dropout, "compiled": contest.compiled, "ratio": timed.ratio, "interval": [low, high],
        "least": contest.least, "utilisation": timed.utilisation(model_flops(MODEL, BATCH)),
        "least_utilisation": contest.least_utilisation, "ours_s": list(timed.ours), "theirs_s": list(timed.theirs),
        "peak_flops": list(timed.peaks),
    }
