"""Equations 5 and 6, full recomputation and the interleaving factor: what the first stage holds.

A traced stage times the micro-batches that the schedule itself has in flight on it.
"""

from collections.abc import Iterator

from common.claims import Ask, Relative, Result, produces
from common.claims.published import Facts
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, GIB, MIB, NAMES, SIZES, formula, variables

TOTALS = {
    "eq5-total-first-stage": "tp-sp",
    "eq6-total-selective": "tp-sp-selective",
    "eq-total-full-recompute": "full",
}
"""The totals over a stage's micro-batches and the technique that each is of."""
LARGER = SIZES[1:]
INTERLEAVED = ("175b", "530b")
CHUNKS = (2, 3, 4, 6, 12)
"""All that cut the 12 layers of a rank of the 175B evenly."""
FACTOR, MASK = "eq-interleave-factor", "eq-extra-embedding"
CLOSE = Relative(0.001)


def _factors(facts: Facts) -> tuple[float, ...]:
    return tuple(formula(FACTOR, "175b", m=m)(facts) / variables(facts, "175b")["L"] for m in CHUNKS)


@produces(
    *(exact(name, size, CLOSE, formula(name, size, GIB), unit="GiB",
            text=f"{NAMES[size]}, a traced stage times its micro-batches in flight under 1F1B")
      for name in TOTALS for size in LARGER),
    *(exact(MASK, size, CLOSE, formula(MASK, size, MIB), unit="MiB", text=f"{NAMES[size]}, under 1F1B")
      for size in LARGER),
    *(exact(FACTOR, size, CLOSE, formula(FACTOR, size), unit="layers",
            text=f"{NAMES[size]}, layers in flight on the first rank") for size in INTERLEAVED),
    exact(FACTOR, "175b_factors", CLOSE, _factors, unit="",
          text=f"175B, the factor with {', '.join(map(str, CHUNKS))} chunks"),
    minutes=0.05,
)
def first_stage(ask: Ask) -> Iterator[Result]:
    from common.pipeline.simulate import peak_held
    from papers.sequence_parallelism.in_flight import held, schedule
    from papers.sequence_parallelism.traces import in_layers, stage

    for size in LARGER:
        most = peak_held(schedule(size, chunks=1))[0]
        for name, technique in TOTALS.items():
            one = stage(size, technique, 0)
            kept = one.saved["layer.input"] if technique == "full" else in_layers(one.saved)
            yield Result(f"{name}/{size}", most * kept / GIB,
                         detail=f"{most} micro-batches in flight, each with {one.last - one.first} layers of "
                                f"{kept / (one.last - one.first) / MIB:.2f} MiB")
        mask, own = stage(size, "tp-sp", 0).saved["embedding.dropout_mask"], held(size, "tp-sp").in_flight[0]
        yield Result(f"{MASK}/{size}", most * mask / MIB,
                     detail=f"{most} micro-batches in flight; under the model's own schedule {own} pass the first chunk "
                            f"before one returns, and hold {own * mask / MIB:.4g} MiB")
    layers = variables(FACTS, "175b")["L"]
    for size in INTERLEAVED:
        yield Result(f"{FACTOR}/{size}", layers_in_flight(size, variables(FACTS, size)["m"]),
                     detail="micro-batches of each chunk times its layers, at the peak of the interleaved schedule")
    yield Result(f"{FACTOR}/175b_factors", tuple(layers_in_flight("175b", chunks) / layers for chunks in CHUNKS))


def layers_in_flight(size: str, chunks: int) -> int:
    """On the first rank of the interleaved schedule, each layer counted once for each micro-batch."""
    from common.pipeline.simulate import peak_held
    from common.pipeline.stages import cuts
    from papers.sequence_parallelism.in_flight import schedule
    from papers.sequence_parallelism.traces import model

    plan = schedule(size, chunks)
    layers = [last - first for first, last in cuts(model(size)[0].layers, plan.stages)]
    return peak_held(plan, layers)[0]


PRODUCERS = (first_stage,)
