"""Figure 9 as far as it needs no schedule.

A stage holds one micro-batch more than the next, so a curve's slope is what one micro-batch leaves on it.
"""

from collections.abc import Iterator

from common.claims import Ask, Reading, Result, produces
from common.claims.published import Facts
from papers.sequence_parallelism.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, GIB, MIB, Formula, variables

CURVES = {"dealloc": 0, "no-dealloc": 1}
"""The curves and how many output tensors of a stage each keeps."""
INNER = slice(2, 11)  # ranks 2 to 32 of those that were read: neither embedding nor output


def _slope(name: str) -> Formula:
    """GiB per rank."""
    def between_ends(facts: Facts) -> float:
        curve = facts[f"figure9-{name}"]
        ranks, memory = (curve.value(key)[INNER] for key in ("pipeline_rank", "memory_gib"))
        return (memory[0] - memory[-1]) / (ranks[-1] - ranks[0])
    return between_ends


@produces(
    *(exact(f"figure9-{name}", "slope", Reading(2 / 30), _slope(name), unit="GiB",
            text="slope between ranks 2 and 32, as one micro-batch of a stage under full recomputation")
      for name in CURVES),
    minutes=0.01,
)
def figure9_slope(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    sizes = variables(FACTS, "530b")
    full, present = layer("530b", "full"), layer("530b", "tp-sp-selective")
    each, sequence = sizes["L"] // sizes["p"], full.config.sequence
    mask = sequence**2 * sizes["b"]  # bytes
    for name, outputs in CURVES.items():
        ours = (each + outputs) * full.saved_bytes  # a stage's output is as large as the input of a layer
        more = _slope(name)(FACTS) * GIB - ours
        yield Result(f"figure9-{name}/slope", ours / GIB,
                     detail=f"inputs of {each} layers and {outputs} output; selective recomputation with "
                            f"sequence parallelism keeps {each * present.saved_bytes / GIB:.3f} GiB",
                     cause=f"the curve falls by {more / MIB:.1f} MiB more per rank than the tensors that the "
                           f"paper names; a mask of one byte for each of {sequence} x {sequence} scores, "
                           f"which our attention makes anew, would be {mask / MIB:.1f} MiB and give "
                           f"{(ours + mask) / GIB:.4f}")


PRODUCERS = (figure9_slope,)
