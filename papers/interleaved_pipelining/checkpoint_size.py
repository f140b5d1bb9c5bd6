"""The size of the trillion-parameter checkpoint (section 5.10), from the kinds of tensors that ours keeps."""

from collections.abc import Iterator

from common.claims import Ask, Result, Rounding, produces
from common.claims.quantities import exact
from papers.interleaved_pipelining.sizes import FACTS, GIGA, TERA

SIZE = "text-checkpoint-size"
HALF = 2  # bytes of the fp16 weight, which is the main weight rounded and which ours does not keep


@produces(
    exact(SIZE, "checkpoint_tb", Rounding(), text="as this project's checkpoint keeps it"),
    minutes=0.01,
)
def checkpoint(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.traces import checkpoint_bytes_per_parameter, parameters, recipe

    kinds = checkpoint_bytes_per_parameter()
    number = parameters(recipe("table1-1008b").model)
    each, printed = sum(kinds.values()), FACTS[SIZE].values["checkpoint_tb"]
    with_half = (each + HALF) * number
    terms = ", ".join(f"{name} {size:g}" for name, size in kinds.items())
    yield Result(f"{SIZE}/checkpoint_tb", each * number / TERA,
                 detail=f"bytes for each parameter: {terms}",
                 cause=f"the printed size is {printed * TERA / number:.2f} bytes for each parameter, ours keeps "
                       f"{each:g} ({terms}); with {HALF} more for fp16 weights it would be "
                       f"{with_half / TERA:.2f} TB, which is {with_half / GIGA / 1024:.2f} where 1,024 GB are "
                       "called a TB")


PRODUCERS = (checkpoint,)
