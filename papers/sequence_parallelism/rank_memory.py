"""Figure 1: memory of one GPU. The whole 22B, and of the larger models what needs no schedule.

Bytes are those that the trace of a rank holds: weights, main weights, gradients and moments of the optimizer,
and what forward keeps for backward.
"""

import re
from collections.abc import Iterator

from common.claims import Ask, Quantity, Reading, Relative, Result, Rounding, produces
from common.claims.published import Facts
from papers.sequence_parallelism.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, GIB, NAMES, SIZES, Formula, variables

BARS = {"baseline": ("tp", "table2-tp"), "present_work": ("tp-sp-selective", "table2-tp-sp-selective")}
"""The two bars of a model: the technique traced and the formula of its layers."""
LARGER = SIZES[1:]


def layers(facts: Facts, size: str) -> float:
    """Layers' worth of activations on the first stage (section 4.2.3): L without interleaving."""
    sizes = variables(facts, size)
    return facts["eq-interleave-factor"].evaluate(**sizes) if sizes["m"] > 1 else sizes["L"]


def _one_layer(size: str, bar: str) -> Formula:
    """The plotted activations divided among the layers they are said to be of."""
    return lambda facts: facts[f"figure1-{size}"].values[f"activations_{bar}_gib"] / layers(facts, size)


def _all_layers(bar: str) -> Formula:
    def gib(facts: Facts) -> float:
        sizes = variables(facts, "22b")
        return sizes["L"] * facts[BARS[bar][1]].evaluate(**sizes) / GIB
    return gib


def _whole(bar: str) -> tuple[Quantity, ...]:
    name, total = bar.replace("_", " "), f"total_{bar}_gib"

    def quantity(key: str, tolerance, text: str, published: Formula | None = None) -> Quantity:
        return exact("figure1-22b", key, tolerance, published, unit="GiB", text=f"{name}, {text}",
                     headline=key == "rank_baseline")

    return (
        quantity(f"layers_{bar}", Relative(0.001), "its 48 layers against the formula", _all_layers(bar)),
        quantity(f"activations_{bar}_gib", Reading(), "its 48 layers against the bar"),
        quantity(total, Reading(), "parameters, optimizer and layers against the bar"),
        quantity(f"rank_{bar}", Reading(), "the whole rank against the bar",
                 lambda facts: facts["figure1-22b"].value(total)),
    )


@produces(
    exact("figure1-22b", "params_optimizer_gib", Reading(), text="parameters and optimizer"),
    *_whole("baseline"),
    *_whole("present_work"),
    minutes=0.02,
)
def figure1_22b(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import in_layers, whole_22b

    traced = {bar: whole_22b(technique) for bar, (technique, _) in BARS.items()}
    state = traced["baseline"].state_bytes
    yield Result("figure1-22b/params_optimizer_gib", state / GIB, detail=_terms(traced["baseline"]))
    for bar, rank in traced.items():
        kept = in_layers(rank)
        rest = rank.saved_bytes + rank.statistics_bytes - kept
        yield Result(f"figure1-22b/layers_{bar}", kept / GIB)
        yield Result(f"figure1-22b/activations_{bar}_gib", kept / GIB)
        yield Result(f"figure1-22b/total_{bar}_gib", (state + kept) / GIB)
        yield Result(f"figure1-22b/rank_{bar}", (state + kept + rest) / GIB, detail=_peak(rank),
                     cause=f"the bar leaves out {rest / GIB:.2f} GiB that are kept outside the layers "
                           "(embedding mask, final norm, output projection, logits); without them ours is "
                           f"{(state + kept) / GIB:.2f}")


def _terms(rank) -> str:
    """Bytes of parameters and optimizer by term, and per parameter."""
    terms = ", ".join(f"{name} {size / GIB:.2f}" for name, size in rank.state.items() if size > GIB / 100)
    copies = rank.parameters - rank.logical_parameters / rank.grid.tp
    return (f"{terms} GiB; {rank.state_bytes / rank.parameters:.2f} bytes for each of the "
            f"{rank.parameters / 1e9:.3f} billion elements that a rank stores, {copies / 1e6:.1f} million of "
            "them copies of what other tensor ranks store as well")


def _peak(rank) -> str:
    peak = rank.state_bytes + max(rank.peaks["forward"], rank.peaks["backward"])
    return f"{peak / GIB:.2f} GiB at the peak of the trace, with what forward and backward hold for a moment"


def _bar_of_one_layer(size: str, bar: str) -> Quantity:
    """The plotted activations are the difference of two readings."""
    return exact(f"figure1-{size}", f"layer_{bar}", Reading(2 / layers(FACTS, size)), _one_layer(size, bar),
                 unit="GiB", text=f"{bar.replace('_', ' ')}, one layer")


@produces(
    *(exact(f"figure1-{size}", "params_optimizer_gib", Reading(),
            text="parameters and optimizer, mean over ranks") for size in LARGER),
    *(_bar_of_one_layer(size, bar) for size in LARGER for bar in BARS),
    minutes=0.03,
)
def figure1_layers(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import first_layer, last_layer, layer

    for size in LARGER:
        traced = layer(size, "tp-sp"), first_layer(size), last_layer(size)
        one, first, last = (each.state_bytes for each in traced)
        sizes = variables(FACTS, size)
        mean = (sizes["L"] * one + (first - one) + (last - one)) / sizes["p"]
        stage = sizes["L"] / sizes["p"] * one + first - one
        yield Result(f"figure1-{size}/params_optimizer_gib", mean / GIB,
                     detail="all layers, the embedding on the first stage and its copy on the last; a rank "
                            f"of the first stage holds {stage / GIB:.1f} GiB")
        for bar, (technique, _) in BARS.items():
            yield Result(f"figure1-{size}/layer_{bar}", layer(size, technique).saved_bytes / GIB,
                         detail="one layer, rank 0 of tp 8; the bar is divided among L layers times the "
                                "interleaving factor")


def _named(size: str) -> Formula:
    """The size that is the model's name."""
    return lambda facts: int(re.match(r"\d+", facts[f"table3-{size}"].value("model")).group())


@produces(
    *(exact(f"table3-{size}", "parameters", Rounding(), _named(size), text=f"parameters of {NAMES[size]}",
            unit="trillion" if size == "1t" else "billion") for size in SIZES),
    minutes=0.02,
)
def table3(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import first_layer, last_layer, layer

    for size in SIZES:
        traced = layer(size, "tp-sp"), first_layer(size), last_layer(size)
        one, first, last = (each.logical_parameters for each in traced)
        config = traced[0].config
        copy = config.vocab * config.hidden  # the last stage's own copy of the embedding
        total = config.depth * one + (first - one) + (last - one) - copy
        yield Result(f"table3-{size}/parameters", total / (1e12 if size == "1t" else 1e9),
                     detail="every layer, the embedding once, and the final norm")


PRODUCERS = (figure1_22b, figure1_layers, table3)
