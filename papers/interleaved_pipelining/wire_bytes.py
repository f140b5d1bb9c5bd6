"""Measured here: what real ranks put on the wire between stages (sections 2.2.2, 3.2 and 4.1), one training step each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.claims import Ask, Equal, Result, produces
from common.claims.quantities import measured
from papers.interleaved_pipelining.sizes import value

RANKS, TENSOR, CHUNKS = 4, 2, 2
FLOAT = 4  # bytes of an fp32 element
SIZES = {"b": 2, "s": 64, "h": 64}
"""Of the laptop model of recipes.py, which loads torch; what runs is held to them."""


@dataclass(frozen=True)
class Way:
    """A layout on four ranks; the rest of them are pipeline ranks."""

    tp: int
    chunks: int
    scatter_gather: bool

    def recipe(self):
        from common.grid import Grid
        from papers.interleaved_pipelining.recipes import laptop_under

        schedule = "interleaved" if self.chunks > 1 else "1f1b"
        return laptop_under(Grid(tp=self.tp, pp=RANKS // self.tp), schedule=schedule, chunks=self.chunks,
                            scatter_gather=self.scatter_gather)


WHOLE, SLICED = Way(TENSOR, 1, False), Way(TENSOR, 1, True)
PLAIN, INTERLEAVED = Way(1, 1, True), Way(1, CHUNKS, True)


@dataclass(frozen=True)
class Sent:
    """Of one rank in one step. activations, gradients: bytes to the stages after and before its own."""

    activations: int
    gradients: int
    loss: float


def sent_on_rank(context, ways: Sequence[Way]) -> list[Sent]:
    """Each way's forward and backward on this rank, over random tokens."""
    import torch

    from common.layout import Layout
    from common.models.record import Record
    from common.training.step import build, forward_backward

    found = []
    for way in ways:
        recipe = way.recipe()
        layout = Layout(recipe.grid, context.rank)
        training = build(recipe.model, recipe.execution, recipe.optimizer, layout, recipe.training.seed)
        b, s = recipe.training.micro_batch, recipe.model.sequence
        assert {"b": b, "s": s, "h": recipe.model.hidden} == SIZES
        gen = torch.Generator().manual_seed(1)
        records = []
        for i in range(recipe.micro_batches):
            tokens = torch.randint(recipe.model.vocab, (b, s + 1), generator=gen)
            records.append(Record(tokens[:, :-1], tokens[:, 1:], torch.ones(b, s, dtype=torch.bool),
                                  torch.arange(s).expand(b, s), samples=tuple(range(i * b, i * b + b))))
        loss, _ = forward_backward(training, records)
        onward, back = training.pipeline.sent_by_direction
        found.append(Sent(onward, back, loss.item()))
    return found


def _elements(sent: int, micro_batches: int) -> float:
    """Of one micro-batch, from the bytes of a step."""
    return sent / FLOAT / micro_batches


WIRE = {"activations": "sent on by a tensor rank of the first stage", "gradients": "sent back by one of the last"}
WHERE = f"laptop model, tp {TENSOR}, pp {RANKS // TENSOR}"


@produces(
    *(measured("eq-p2p-volume", f"wire_{what}", Equal(), lambda facts: value("eq-p2p-volume", **SIZES), unit="elements",
               text=f"{what}, {words}, for a micro-batch; {WHERE}") for what, words in WIRE.items()),
    *(measured("eq-scatter-gather", f"wire_{what}", Equal(),
               lambda facts: value("eq-scatter-gather", **SIZES, t=TENSOR), unit="elements",
               text=f"{what} with scatter/gather; {WHERE}") for what in WIRE),
    measured("eq-scatter-gather", "wire_ratio", Equal(), lambda facts: TENSOR, unit="",
             text=f"bytes of all ranks in a step without over with scatter/gather; {WHERE}"),
    measured("eq-interleaved-comm", "wire_ratio", Equal(), lambda facts: CHUNKS, unit="",
             text=f"bytes of a middle device in a step, {CHUNKS} chunks over one; laptop model, pp {RANKS}"),
    minutes=0.1,
)
def wire_bytes(ask: Ask) -> Iterator[Result]:
    from infra.launch import run_local

    ways = (WHOLE, SLICED, PLAIN, INTERLEAVED)
    by_rank = run_local(sent_on_rank, RANKS, ways, timeout=300)
    whole, sliced, plain, interleaved = zip(*by_rank, strict=True)
    count = WHOLE.recipe().micro_batches
    detail = f"{count} micro-batches, fp32, counted at the sender"
    for source, ranks in (("eq-p2p-volume", whole), ("eq-scatter-gather", sliced)):
        yield Result(f"{source}/wire_activations", _elements(ranks[0].activations, count), detail=detail)
        yield Result(f"{source}/wire_gradients", _elements(ranks[-1].gradients, count), detail=detail)
    bytes_of = [sum(rank.activations + rank.gradients for rank in ranks) for ranks in (whole, sliced)]
    yield Result("eq-scatter-gather/wire_ratio", bytes_of[0] / bytes_of[1],
                 detail=f"{bytes_of[0]:,} and {bytes_of[1]:,} bytes; loss {whole[0].loss:.6f} and {sliced[0].loss:.6f}")
    middle = [rank[1].activations + rank[1].gradients for rank in (interleaved, plain)]
    yield Result("eq-interleaved-comm/wire_ratio", middle[0] / middle[1], detail=f"{middle[0]:,} and {middle[1]:,} bytes")


PRODUCERS = (wire_bytes,)
