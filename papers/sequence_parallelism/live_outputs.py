"""Measured here: what a rank of a real pipeline saves by letting go of its output tensors, against appendix B."""

from collections.abc import Iterator

from common.claims import Ask, Relative, Result, produces
from common.claims.published import Facts
from common.claims.quantities import measured
from papers.sequence_parallelism.live_memory import HIDDEN, MICRO_BATCH, SEQUENCE, check
from papers.sequence_parallelism.sizes import MIB
from papers.sequence_parallelism.stage_memory import FORMULA

SIZE, RANKS, MICRO_BATCHES = "530b", 4, 8


def _saved(facts: Facts, r: int) -> float:
    """MiB at 2 bytes for each element, r micro-batches in flight."""
    return 2 * facts[FORMULA].evaluate(s=SEQUENCE, b=MICRO_BATCH, h=HIDDEN[SIZE], r=r) / MIB


def _on_ranks(facts: Facts) -> tuple[float, ...]:
    window = facts["text-microbatch-window"]
    return tuple(_saved(facts, window.evaluate(p=RANKS, S=stage)) for stage in range(RANKS - 1))


@produces(
    measured(FORMULA, "live_each", Relative(0.01), lambda facts: _saved(facts, 1), unit="MiB",
             text=f"live bytes for each further micro-batch in flight, {RANKS} ranks of a counterpart of the 530B"),
    measured(FORMULA, "live", Relative(0.01), _on_ranks, unit="MiB",
             text=f"live bytes at the peak of each rank but the last, {RANKS} ranks of a counterpart of the 530B"),
    minutes=0.1,
)
def live_outputs(ask: Ask) -> Iterator[Result]:
    from infra.launch import run_local
    from papers.sequence_parallelism.held_outputs import peaks

    check(ask.facts)
    found = run_local(peaks, RANKS, SIZE, MICRO_BATCHES, MICRO_BATCH, timeout=120)
    saved = [(held - let_go) / MIB for let_go, held in found]
    less = ", ".join(f"{let_go / MIB:.2f}" for let_go, _ in found)
    more = ", ".join(f"{held / MIB:.2f}" for _, held in found)
    detail = f"peaks of live tensors {less} MiB, with outputs held {more} MiB; full recomputation, {MICRO_BATCHES} micro-batches"
    yield Result(f"{FORMULA}/live_each", (saved[0] - saved[RANKS - 2]) / (RANKS - 2), detail=detail)
    yield Result(f"{FORMULA}/live", tuple(saved[:-1]), detail=detail,
                 cause="the message sent last is still on its way while the backward pass that makes the peak runs, so "
                       "letting go saves one output tensor less; each micro-batch in flight beyond it saves its own")


PRODUCERS = (live_outputs,)
