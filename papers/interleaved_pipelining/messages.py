"""Communication: between stages, tensor ranks and data ranks (sections 2.2.2, 2.3, 3.2, 3.3.1 and 4.1).

Messages are those that the executor and the layers of one rank send at the published size.
"""

from collections import Counter
from collections.abc import Iterator

from common.claims import Ask, Contradiction, Equal, Relative, Result, produces
from common.claims.quantities import exact
from papers.interleaved_pipelining.sizes import (
    INTERLEAVED,
    PIPELINED,
    TABLE_1,
    at_rows,
    names,
    value,
    variables,
)

SAME = Relative(1e-12)
MILLION = 1e6
HALF = 2  # bytes of an fp16 element
UNIT = "million elements"
STAGES = ("table1-530b", "table1-1008b")  # three and two layers each, in one chunk


def ring_bytes(message) -> float:
    """What each rank sends in a ring all-reduce: a reduce-scatter and an all-gather of one tensor."""
    assert message.name == "all_reduce"
    return 2 * (message.size - 1) / message.size * message.bytes


def handed_on(row: str, scatter_gather: bool, what: str) -> float:
    """Elements of a micro-batch that one tensor rank sends on (activations) or back (gradients).

    Its stage is in the middle of the pipeline; of two stages, the first sends activations and the last gradients.
    """
    from papers.interleaved_pipelining.traces import passed

    p = variables(row)["p"]
    stage = 0 if (p, what) == (2, "activations") else p // 2
    (sent,) = [m for m in passed(row, stage, scatter_gather) if (m.name, m.group) == ("send", f"pp {what}")]
    return sent.bytes / HALF


@produces(
    *(exact("eq-p2p-volume", what, SAME, at_rows("eq-p2p-volume", PIPELINED, MILLION), unit=UNIT,
            text=f"{what}, {names(PIPELINED)}") for what in ("activations", "gradients")),
    exact("eq-scatter-gather", "activations", SAME, at_rows("eq-scatter-gather", PIPELINED, MILLION), covers=("tp",),
          unit=UNIT, text=f"activations with scatter/gather, {names(PIPELINED)}"),
    exact("text-chunks-per-tp", "copies", Equal(), text="copies sent by the tensor ranks, without"),
    exact("text-chunks-per-tp", "chunk_fraction", Equal(), text="share that each sends, with"),
    minutes=0.06,
)
def between_stages(ask: Ask) -> Iterator[Result]:
    for what in ("activations", "gradients"):
        yield Result(f"eq-p2p-volume/{what}",
                     tuple(handed_on(row, False, what) / MILLION for row in PIPELINED),
                     detail="one micro-batch, sent by one tensor rank of a middle stage")
    cut = tuple(handed_on(row, True, "activations") for row in PIPELINED)
    yield Result("eq-scatter-gather/activations", tuple(one / MILLION for one in cut),
                 detail="the receiver's tensor ranks gather the whole")
    sizes = variables(PIPELINED[-1])
    whole = handed_on(PIPELINED[-1], False, "activations")
    yield Result("text-chunks-per-tp/copies", sizes["t"] * whole / (sizes["b"] * sizes["s"] * sizes["h"]),
                 detail="what all tensor ranks of a stage send, over the elements of its output")
    yield Result("text-chunks-per-tp/chunk_fraction", cut[-1] / whole)


def sent_by(schedule) -> Counter[int]:
    """How many messages each rank sends in an iteration."""
    from common.pipeline.events import Events

    events = Events.of(schedule)
    return Counter(events.rank[events.source[events.sent]].tolist())


@produces(
    exact("eq-interleaved-comm", "ratio", Equal(), lambda facts: tuple(variables(row)["v"] for row in INTERLEAVED),
          unit="", text=f"a middle device's messages, interleaved over default, {names(INTERLEAVED)}"),
    minutes=0.01,
)
def interleaving(ask: Ask) -> Iterator[Result]:
    from common.pipeline.schedules import interleaved, one_f_one_b

    ratios, whole = [], []
    for row in INTERLEAVED:
        sizes = variables(row)
        p, v, m = sizes["p"], sizes["v"], sizes["m"]
        more, default = sent_by(interleaved(p, v, m)), sent_by(one_f_one_b(p, m))
        ratios.append(more[p // 2] / default[p // 2])
        whole.append(more.total() / default.total())
    yield Result("eq-interleaved-comm/ratio", tuple(ratios),
                 detail="messages are of one size; over all devices, the ends included, "
                        f"{', '.join(f'{ratio:.2f}' for ratio in whole)}: (pv - 1)/(p - 1)")


ROWS = tuple(row for row in TABLE_1 if variables(row)["t"] > 1)


def tensor_elements(found) -> float:
    """Elements that each tensor rank sends in the forward and backward pass, recomputation left out."""
    return sum(map(ring_bytes, found.sent("forward", "backward", group="tp"))) / HALF


def _of_stage(facts) -> tuple[float, ...]:
    each = [(variables(row), variables(row)["l"] // variables(row)["p"]) for row in STAGES]
    return tuple(value("eq-tp-volume-stage", l_stage=layers, **sizes) / MILLION for sizes, layers in each)


COLLECTIVE = "figure15-b32/collective"


@produces(
    exact("eq-tp-volume-layer", "elements", SAME, at_rows("eq-tp-volume-layer", ROWS, MILLION), unit=UNIT,
          text="of a layer, rows of Table 1 with several tensor ranks"),
    exact("eq-tp-volume-stage", "elements", SAME, _of_stage, unit=UNIT,
          text=f"of a stage without interleaving, {names(STAGES)}"),
    exact("eq-tp-allreduce-count", "forward_allreduces_per_layer", Equal(), text="forward"),
    exact("eq-tp-allreduce-count", "backward_allreduces_per_layer", Equal(), text="backward"),
    exact("figure15-b32", "collective", Equal(), lambda facts: "all-to-all", unit="",
          text="what tensor ranks send, by section 5.4.3"),
    exact("eq-dp-ring", "share", SAME, at_rows("eq-dp-ring", PIPELINED, side=0), unit="",
          text=f"a rank's share of twice its gradients, {names(PIPELINED)}"),
    minutes=0.06,
)
def between_ranks(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.traces import layer, one_layer, stage

    yield Result("eq-tp-volume-layer/elements", tuple(tensor_elements(layer(row)) / MILLION for row in ROWS),
                 detail="four ring all-reduces, 2(t - 1)/t of each tensor")
    again = stage(STAGES[-1]).sent("recompute", group="tp")
    yield Result("eq-tp-volume-stage/elements", tuple(tensor_elements(stage(row)) / MILLION for row in STAGES),
                 detail="what recomputation sends again is left out, as in the paper: "
                        f"{len(again)} all-reduces more for {TABLE_1[STAGES[-1]]}")
    one = layer(STAGES[-1])
    for phase in ("forward", "backward"):
        found = [message.name for message in one.sent(phase, group="tp")]
        yield Result(f"eq-tp-allreduce-count/{phase}_allreduces_per_layer", found.count("all_reduce"))
    kinds = {message.name.replace("_", "-") for message in one.sent(group="tp")}
    yield Result(COLLECTIVE, ", ".join(sorted(kinds)),
                 contradiction=Contradiction("Section 2.3", "all-reduce", "what f and g are"))
    shares = []
    for row in PIPELINED:
        reduced = one_layer(row).sent(group="dp+cp")
        gradients = one_layer(row).state["gradients"]
        assert sum(m.bytes for m in reduced) == gradients
        shares.append(sum(map(ring_bytes, reduced)) / (2 * gradients))
    yield Result("eq-dp-ring/share", tuple(shares),
                 detail="ring all-reduces of all gradients, whose bytes do not depend on d")


PRODUCERS = (between_stages, interleaving, between_ranks)
