"""What the software of third-party runs did otherwise than this project does, each with its source.

BLOOM's tuning ran on DeepSpeed's pipeline, as arXiv:2201.11990 did, and takes its factor. With fp32 gradients
its optimizer adds up the 16-bit ones of every backward pass, which are there beside them (DeepSpeed,
runtime/bf16_optimizer.py, update_hp_grads); otherwise it keeps gradients in 16 bits alone. MPT's attention
was FlashAttention written in Triton, and its loss one kernel that keeps the 16-bit logits alone and makes
their gradient in their place (llm-foundry, scripts/train/benchmarking/submit_benchmarks.py, attn_impl;
models/mpt, loss_fn).
"""

from collections.abc import Callable
from dataclasses import replace

from common.predict.constants import constants
from common.predict.fully_sharded import FullyShardedPrediction
from common.predict.machine import Cluster
from common.predict.memory import EXACT, FRAGMENTATION, Memory, RankMemory, Term
from common.predict.price import Costs
from common.predict.stages import Stage
from common.predict.third_party_points import Point

FAMILY = {"bloom": "mt_nlg"}
NOTES = {
    "bloom": "operations take the software factor of arXiv:2201.11990, fitted there, as both ran on "
             "DeepSpeed's pipeline; gradients are kept in 16 bits, or in 32 with the 16-bit ones of a pass "
             "beside them",
    "mpt": "attention in Triton, 1.4 times as long forward and 2 times backward as FlashAttention-2 "
           "(arXiv:2307.08691, section 4.1); a loss that keeps 16-bit logits alone",
}
"""The same in short, by source."""
TRITON_FORWARD, TRITON_BACKWARD = 1.4, 2.0
"""How many times longer FlashAttention in Triton takes than FlashAttention-2 (arXiv:2307.08691, section 4.1:
1.3 to 1.5, and 2)."""
TRITON = ("mpt",)
LOGITS, TEMPORARIES = "loss.logits", "temporaries"


def costs(point: Point, where: Cluster) -> Costs:
    """The cost model of the machine, with the source's software."""
    values = constants()
    if point.source in TRITON:
        values = replace(values, generations=tuple(
            replace(g, forward=g.forward / TRITON_FORWARD, backward=g.backward / TRITON_BACKWARD)
            for g in values.generations))
    software = values.software[FAMILY[point.source]] if point.source in FAMILY else 1.0
    return Costs(where, values=values, software=software)


def memory(point: Point, found) -> Memory:
    """Of a prediction, with what the source's software keeps."""
    if point.source == "bloom":
        return _each(found.memory, _narrow if point.gradients == "16 bits" else _beside)
    if point.source == "mpt":
        return fused_loss(found)
    return found.memory


def _each(whole: Memory, change: Callable[[RankMemory], RankMemory]) -> Memory:
    return replace(whole, ranks=tuple(map(change, whole.ranks)))


def _narrow(rank: RankMemory) -> RankMemory:
    """With gradients kept in 16 bits in place of 32."""
    terms = (replace(t, bytes=t.bytes / 2) if t.name == "gradients" else t for t in rank.terms)
    return replace(rank, terms=tuple(terms))


def _beside(rank: RankMemory) -> RankMemory:
    """With the 16-bit gradients of a backward pass, as many bytes as the parameters."""
    (size,) = (t.bytes for t in rank.terms if t.name == "weights")
    found = Term("parameters and optimizer", "gradients of a pass", size, EXACT)
    return replace(rank, terms=(*rank.terms, found))


def fused_loss(found: FullyShardedPrediction) -> Memory:
    """The largest of the other temporaries remains: those of the loss are the logits themselves."""
    (stage,) = found.stages
    others = Stage(stage.parts[:-1]).moment

    def changed(rank: RankMemory) -> RankMemory:
        sizes = {t.name: others if t.group == TEMPORARIES else t.bytes / 2
                 for t in rank.terms if t.group == TEMPORARIES or t.name == LOGITS}
        terms = tuple(replace(t, bytes=sizes.get(t.name, t.bytes)) for t in rank.terms)
        saved = rank.total - sum(t.bytes for t in terms)
        return replace(rank, terms=terms, apart=rank.apart - FRAGMENTATION * saved)

    return _each(found.memory, changed)
