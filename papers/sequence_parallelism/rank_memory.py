"""Figure 1: memory of one GPU, a rank of the first stage, and the models' parameters.

Bytes are those that the traces of a rank's stages hold: weights, main weights, gradients and moments of the optimizer,
and what forward keeps for backward, times the micro-batches that the schedule has in flight.
"""

import re
from collections.abc import Iterator

from common.claims import Ask, Quantity, Reading, Relative, Result, Rounding, produces
from common.claims.published import Facts
from common.claims.quantities import exact
from papers.sequence_parallelism.itemised import itemised
from papers.sequence_parallelism.outside_layers import EXTRAS
from papers.sequence_parallelism.sizes import FACTS, GIB, NAMES, SIZES, Formula, variables

BARS = {"baseline": ("tp", "table2-tp"), "present_work": ("tp-sp-selective", "table2-tp-sp-selective")}
"""The two bars of a model: the technique traced and the formula of its layers."""
LARGER = SIZES[1:]
REST = "indices, labels and statistics"
STATE = ("weights", "main weights", "gradients", "first moments", "second moments")


def layers(facts: Facts, size: str) -> float:
    """Layers' worth of activations on the first stage (section 4.2.3): L without interleaving."""
    sizes = variables(facts, size)
    return facts["eq-interleave-factor"].evaluate(**sizes) if sizes["m"] > 1 else sizes["L"]


def _one_layer(size: str, bar: str) -> Formula:
    """The plotted activations divided among the layers they are said to be of."""
    return lambda facts: facts[f"figure1-{size}"].values[f"activations_{bar}_gib"] / layers(facts, size)


def _all_layers(size: str, bar: str) -> Formula:
    return lambda facts: layers(facts, size) * facts[BARS[bar][1]].evaluate(**variables(facts, size)) / GIB


def _whole(size: str, bar: str) -> tuple[Quantity, ...]:
    name, total = bar.replace("_", " "), f"total_{bar}_gib"
    which = "its 48 layers" if size == "22b" else "layers of the first stage"
    state = "parameters, optimizer" + ("" if size == "22b" else " (mean over ranks)")

    def quantity(key: str, tolerance, text: str, published: Formula | None = None) -> Quantity:
        return exact(f"figure1-{size}", key, tolerance, published, unit="GiB", text=f"{name}, {text}",
                     headline=(size, key) == ("22b", "rank_baseline"))

    return (
        quantity(f"layers_{bar}", Relative(0.001), f"{which} against the formula", _all_layers(size, bar)),
        quantity(f"activations_{bar}_gib", Reading(2), f"{which} against the bar"),  # the difference of two readings
        quantity(total, Reading(), f"{state} and layers against the bar"),
        quantity(f"rank_{bar}", Reading(), "the whole rank against the bar",
                 lambda facts: facts[f"figure1-{size}"].value(total)),
    )


@produces(
    exact("figure1-22b", "params_optimizer_gib", Reading(), text="parameters and optimizer"),
    *_whole("22b", "baseline"),
    *_whole("22b", "present_work"),
    minutes=0.02,
)
def figure1_22b(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import whole_22b

    rank = whole_22b("tp")
    yield Result("figure1-22b/params_optimizer_gib", rank.state_bytes / GIB,
                 detail=f"{_terms(rank)}; {_embedding('22b') / GIB:.2f} GiB are for embedding, positions and final norm")
    yield from _bars("22b", rank.state_bytes)


def _terms(rank) -> str:
    """Bytes of parameters and optimizer by term, and per parameter."""
    terms = ", ".join(f"{name} {size / GIB:.2f}" for name, size in rank.state.items() if size > GIB / 100)
    copies = rank.parameters - rank.logical_parameters / rank.grid.tp
    return (f"{terms} GiB; {rank.state_bytes / rank.parameters:.2f} bytes for each of the "
            f"{rank.parameters / 1e9:.3f} billion elements that a rank stores, {copies / 1e6:.1f} million of "
            "them copies of what other tensor ranks store as well")


def _bars(size: str, state: float) -> Iterator[Result]:
    """Both bars of a model; state: the bytes of parameters and optimizer that its bars show."""
    from papers.sequence_parallelism.in_flight import held

    for bar, (technique, _) in BARS.items():
        rank = held(size, technique)
        outside = rank.total - sum(rank.state.values()) - rank.layers
        more = sum(rank.state.values()) - state
        flying = f"micro-batches in flight: {', '.join(map(str, rank.in_flight))}"
        if len(rank.in_flight) > 1:
            flying += " of the first, second, ... chunk"
        yield Result(f"figure1-{size}/layers_{bar}", rank.layers / GIB, detail=flying)
        yield Result(f"figure1-{size}/activations_{bar}_gib", rank.layers / GIB, detail=flying)
        yield Result(f"figure1-{size}/total_{bar}_gib", (state + rank.layers) / GIB)
        left_out = f"the bar leaves out {outside / GIB:.2f} GiB that are kept outside the layers"
        if more:
            left_out = (f"the bar is a mean over ranks: the first stage holds {more / GIB:.2f} GiB more, of parameters "
                        f"and optimizer, for the embedding; it leaves out {outside / GIB:.2f} GiB kept outside the layers")
        yield Result(f"figure1-{size}/rank_{bar}", rank.total / GIB,
                     detail=f"{itemised(_parts(rank))}; {(rank.total + rank.moment) / GIB:.2f} GiB at the peak of the "
                            "trace, with what forward and backward hold for a moment",
                     cause=f"{left_out} ({', '.join(_named_parts(rank))}); without them ours is "
                           f"{(state + rank.layers) / GIB:.2f}")


def _parts(rank) -> dict[str, float]:
    """GiB of a rank: layers, what is kept outside them by tensor, parameters and optimizer by kind."""
    named = {tensor: rank.kept[tensor] for tensor in _named_parts(rank)}
    rest = sum(rank.kept.values()) - rank.layers - sum(named.values())
    parts = {"layers": rank.layers, **named, REST: rest, **{kind: rank.state[kind] for kind in STATE}}
    return {name: size / GIB for name, size in parts.items()}


def _named_parts(rank) -> list[str]:
    """The terms of section 4.3 that this rank keeps."""
    return [tensor for tensor in EXTRAS.values() if tensor in rank.kept]


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
    from papers.sequence_parallelism.in_flight import held
    from papers.sequence_parallelism.traces import layer

    for size in LARGER:
        state = held(size, "tp").state
        first = sum(state.values())
        yield Result(f"figure1-{size}/params_optimizer_gib", _mean_state(size) / GIB,
                     detail="all layers, the embedding on the first stage and its copy on the last; a rank of the first "
                            f"stage holds {first / GIB:.2f} GiB, {_embedding(size) / GIB:.2f} of them for embedding and "
                            f"positions, or {(first - state['gradients'] / 2) / GIB:.2f} with gradients of 2 bytes and so "
                            "16 bytes for a parameter")
        for bar, (technique, _) in BARS.items():
            yield Result(f"figure1-{size}/layer_{bar}", layer(size, technique).saved_bytes / GIB,
                         detail="one layer, rank 0 of tp 8; the bar is divided among L layers times the "
                                "interleaving factor")


def _embedding(size: str) -> float:
    """Bytes of parameters and optimizer outside the layers of the first stage."""
    from papers.sequence_parallelism.in_flight import schedule
    from papers.sequence_parallelism.traces import layer, stage

    first = stage(size, "tp", 0, schedule(size).chunks)
    return first.state_bytes - (first.last - first.first) * layer(size, "tp").state_bytes


def _mean_state(size: str) -> float:
    """Bytes of parameters and optimizer, mean over the stages."""
    from papers.sequence_parallelism.in_flight import schedule
    from papers.sequence_parallelism.traces import stage

    plan = schedule(size)
    ends = [stage(size, "tp", number, plan.chunks).state_bytes for number in (0, 1, plan.stages - 1)]
    first, middle, last = ends
    return (first + (plan.stages - 2) * middle + last) / plan.ranks


@produces(*(quantity for size in LARGER for bar in BARS for quantity in _whole(size, bar)), minutes=0.03)
def figure1_first_stages(ask: Ask) -> Iterator[Result]:
    for size in LARGER:
        if ask.wants(f"figure1-{size}/*"):
            yield from _bars(size, _mean_state(size))


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
        total = traced[0].config.depth * one + (first - one) + (last - one)
        yield Result(f"table3-{size}/parameters", total / (1e12 if size == "1t" else 1e9),
                     detail="every layer, the embedding once, and the final norm")


PRODUCERS = (figure1_22b, figure1_layers, figure1_first_stages, table3)
