"""Measured here: the bytes that a layer really adds to a training step, against the formulas of table 2.

The counterparts of recipes.py have the published 5as/h. Figure 7 is for tp 8, which this does not reach: the
formulas are taken at the tensor-parallel size that ran, one process and two.
"""

from collections.abc import Iterator

from common.claims import Ask, Quantity, Relative, Result, produces
from common.claims.quantities import measured
from papers.sequence_parallelism.sizes import MIB, NAMES, variables

MICRO_BATCH, SEQUENCE = 2, 256
HIDDEN = {"22b": 192, "530b": 160}
"""Of the counterparts with the largest and the smallest 5as/h; `check` holds this to recipes.py, which loads
torch."""
ALONE = {"none": "table2-none", "tp-selective": "table2-tp-selective", "full": "table2-full"}
CUT = ("tp", "tp-sp", "tp-selective", "tp-sp-selective", "full")


def _published(source: str, ranks: int):
    """The formula at the counterparts' sizes."""

    def mib(facts) -> tuple[float, ...]:
        return tuple(facts[source].evaluate(**_sizes(facts, size), t=ranks) / MIB for size in HIDDEN)

    return mib


def _sizes(facts, size: str) -> dict[str, float]:
    """The counterpart's sizes: heads from the published 5as/h, which it keeps."""
    published = variables(facts, size)
    heads = published["a"] * published["s"] / published["h"] * HIDDEN[size] / SEQUENCE
    return {"a": heads, "b": MICRO_BATCH, "h": HIDDEN[size], "s": SEQUENCE}


def _quantity(source: str, ranks: int) -> Quantity:
    where = "one process" if ranks == 1 else f"{ranks} ranks, tp {ranks}"
    models = ", ".join(NAMES[size] for size in HIDDEN)
    return measured(source, f"live_tp{ranks}", Relative(0.01), _published(source, ranks), unit="MiB",
                    text=f"live bytes that a counterpart's layer adds to a real step, {where} ({models})")


def check(facts) -> None:
    """The formulas have to be taken at the sizes that run."""
    from papers.sequence_parallelism.recipes import counterpart

    for size in HIDDEN:
        config = counterpart(size).model
        runs = {"a": config.heads, "b": MICRO_BATCH, "h": config.hidden, "s": config.sequence}
        if runs != _sizes(facts, size):
            raise ValueError(
                f"the counterpart of {size} has {runs}, the formulas are taken at {_sizes(facts, size)}"
            )


@produces(
    *(_quantity(source, 1) for source in ALONE.values()),
    *(_quantity(f"table2-{technique}", 2) for technique in CUT),
    minutes=0.25,
)
def live_layers(ask: Ask) -> Iterator[Result]:
    from common.layout import SERIAL
    from infra.launch import run_local
    from papers.sequence_parallelism.live_bytes import all_bytes, on_rank

    check(ask.facts)
    sizes = tuple(HIDDEN)
    alone = tuple(name for name, source in ALONE.items() if ask.wants(f"{source}/live_tp1"))
    for technique, found in all_bytes(SERIAL, sizes, alone, MICRO_BATCH).items():
        yield _result(f"{ALONE[technique]}/live_tp1", found)
    cut = tuple(name for name in CUT if ask.wants(f"table2-{name}/live_tp2"))
    if cut:
        first, second = run_local(on_rank, 2, sizes, cut, MICRO_BATCH, timeout=120)
        for technique in cut:
            larger = [
                max(pair, key=lambda found: found.live)
                for pair in zip(first[technique], second[technique], strict=True)
            ]
            yield _result(f"table2-{technique}/live_tp2", larger)


def _result(id: str, found) -> Result:
    meter = ", ".join(f"{each.saved / MIB:.3f}" for each in found)
    return Result(
        id,
        tuple(each.live / MIB for each in found),
        detail=f"peak of live tensors in bf16; the meter counts {meter} MiB, norms' statistics included",
        cause="the peak of a rank held a buffer that the communication library had not let go of",
    )


PRODUCERS = (live_layers,)
