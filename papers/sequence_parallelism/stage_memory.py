"""Figure 9 and appendix B: memory of each pipeline rank of the 530B, with output tensors let go once sent and without.

The slopes of the figure are those of full recomputation without sequence parallelism under 1F1B, so that is what is
traced here: a stage's bytes times the micro-batches that the schedule has in flight on each rank.
"""

from collections.abc import Iterator, Sequence

from common.claims import Ask, Equal, Reading, Result, produces
from common.claims.published import Facts
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, GIB, MIB, Formula, variables

CURVES = {"dealloc": 0, "no-dealloc": 1}
"""The curves and how many output tensors of a stage each keeps."""
RANKS = FACTS["figure9-dealloc"].value("pipeline_rank")
INNER = slice(2, 11)  # ranks 2 to 32 of those that were read: neither embedding nor output
FORMULA = "text-dealloc-formula"


def _curve(facts: Facts, name: str) -> Sequence[float]:
    return facts[f"figure9-{name}"].value("memory_gib")


def _slope(name: str) -> Formula:
    """GiB per rank."""
    def between_ends(facts: Facts) -> float:
        memory = _curve(facts, name)[INNER]
        return (memory[0] - memory[-1]) / (RANKS[INNER][-1] - RANKS[INNER][0])
    return between_ends


def _spike(name: str) -> Formula:
    """GiB by which rank 0 exceeds rank 1."""
    return lambda facts: _curve(facts, name)[0] - _curve(facts, name)[1]


def _gap(facts: Facts) -> tuple[float, ...]:
    return tuple(above - below for above, below in zip(_curve(facts, "no-dealloc"), _curve(facts, "dealloc"), strict=True))


def in_flight(facts: Facts, size: str) -> tuple[int, ...]:
    """Outstanding micro-batches of each stage by appendix C."""
    p = variables(facts, size)["p"]
    return tuple(facts["text-microbatch-window"].evaluate(p=p, S=stage) for stage in range(p))


def _saved(facts: Facts) -> tuple[float, ...]:
    """MiB by appendix B's formula on each rank that has an output tensor."""
    sizes = variables(facts, "530b")
    return tuple(2 * facts[FORMULA].evaluate(**sizes, r=r) / MIB for r in in_flight(facts, "530b")[:-1])


@produces(
    *(exact(f"figure9-{name}", "slope", Reading(2 / 30), _slope(name), unit="GiB",
            text="slope between ranks 2 and 32, as one micro-batch of a stage under full recomputation")
      for name in CURVES),
    *(exact(f"figure9-{name}", "spike", Reading(2), _spike(name), unit="GiB", text="rank 0 above rank 1")
      for name in CURVES),
    *(exact(f"figure9-{name}", "memory_gib", Reading(), text=f"ranks {', '.join(map(str, RANKS))}") for name in CURVES),
    exact("figure9-no-dealloc", "gap", Reading(2), _gap, unit="GiB", text="above the curve with deallocation, same ranks"),
    exact(FORMULA, "530b", Equal(), _saved, unit="MiB", text="530B at 2 bytes for each element, ranks 0 to 33"),
    minutes=0.02,
)
def figure9(ask: Ask) -> Iterator[Result]:
    from common.pipeline.simulate import peak_held
    from papers.sequence_parallelism.in_flight import beyond_kept, schedule
    from papers.sequence_parallelism.traces import layer, stage

    plan = schedule("530b", chunks=1)
    ends = [stage("530b", "full", number) for number in (0, 1, plan.stages - 1)]
    stages = [ends[0], *ends[1:2] * (plan.stages - 2), ends[2]]
    kept = [sum(found.saved.values()) for found in stages]
    output = layer("530b", "full").saved["layer.input"]  # what a stage hands on is the input of the next one's first layer
    handed = [output] * (plan.stages - 1) + [0]
    held = {name: peak_held(plan, [k + times * h for k, h in zip(kept, handed, strict=True)])
            for name, times in CURVES.items()}
    peak = {name: [h + beyond_kept(found) for h, found in zip(held[name], stages, strict=True)] for name in CURVES}
    for name, times in CURVES.items():
        slope = stages[1].saved["layer.input"] + times * output
        yield from _of_curve(name, slope, held[name], [peak[name][rank] for rank in RANKS])
    gaps = [above - below for above, below in zip(peak["no-dealloc"], peak["dealloc"], strict=True)]
    yield Result("figure9-no-dealloc/gap", tuple(gaps[rank] / GIB for rank in RANKS),
                 detail="output tensors of the micro-batches in flight; the last stage sends none")
    yield Result(f"{FORMULA}/530b", tuple(gap / MIB for gap in gaps[:-1]),
                 detail=f"micro-batches in flight under 1F1B times an output tensor of {output / MIB:.0f} MiB, as traced")


def _of_curve(name: str, slope: float, held: Sequence[float], peak: Sequence[float]) -> Iterator[Result]:
    """slope: bytes of one micro-batch; held: bytes kept on every rank; peak: on the ranks read, with what a pass holds."""
    facts, sizes = FACTS, variables(FACTS, "530b")
    mask = sizes["s"] ** 2 * sizes["b"]  # bytes
    more = _slope(name)(facts) * GIB - slope
    yield Result(f"figure9-{name}/slope", slope / GIB,
                 detail="the inputs of a stage's layers" + " and its output" * CURVES[name],
                 cause=f"the curve falls by {more / MIB:.1f} MiB more per rank than the tensors that the paper names; a "
                       f"mask of one byte for each of {sizes['s']} x {sizes['s']} scores, which our attention makes "
                       f"anew, would be {mask / MIB:.1f} MiB and give {(slope + mask) / GIB:.4f}")
    yield Result(f"figure9-{name}/spike", (held[0] - held[1]) / GIB,
                 detail=f"one micro-batch more, and {sizes['p']} masks of the embedding's dropout")
    flying = in_flight(facts, "530b")
    off = [(p + flying[rank] * mask) / GIB - read
           for rank, p, read in zip(RANKS, peak, _curve(facts, name), strict=True)]
    yield Result(f"figure9-{name}/memory_gib", tuple(p / GIB for p in peak),
                 detail="kept by the micro-batches in flight, and what one backward pass holds beyond that for a moment",
                 cause=f"ours has no such mask; with {mask / MIB:.1f} MiB of it for each micro-batch in flight it lies "
                       f"{min(off):+.2f} to {max(off):+.2f} GiB off the curve")


PRODUCERS = (figure9,)
