"""What the first stage keeps outside its layers (section 4.3), from traces of whole single stages."""

from collections.abc import Iterator

from common.claims import Ask, AtMost, Contradiction, Quantity, Relative, Result, produces
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, MIB, formula, variables

CLOSE = Relative(0.001)
EXTRAS = {
    "eq-extra-embedding": "embedding.dropout_mask",
    "eq-extra-final-layernorm": "output.norm_input",
    "eq-extra-output-input": "output.projection_input",
    "eq-extra-logits": "loss.logits",
}
"""The terms of section 4.3 and the tensor that each is."""
WITH, WITHOUT = "22B, tp 8 with sequence parallelism", "22B, tp 8 without sequence parallelism"


def _with(name: str) -> Quantity:
    return exact(name, "22b", CLOSE, formula(name, "22b", MIB), unit="MiB", text=WITH)


def _without(name: str) -> Quantity:
    """These tensors are then whole on every rank, the formula at t = 1, but for the logits."""
    changes = {} if name == "eq-extra-logits" else {"t": 1}
    return exact(name, "22b_tp", CLOSE, formula(name, "22b", MIB, **changes), unit="MiB", text=WITHOUT)


def _spike(key: str, which: str) -> Quantity:
    published = formula("text-embedding-spike", "530b", MIB, p=1)
    return exact("text-embedding-spike", key, CLOSE, published, unit="MiB",
                 text=f"530B, one micro-batch in flight, {which} sequence parallelism")


@produces(
    *map(_with, (*EXTRAS, "eq-extra-total")),
    *map(_without, EXTRAS),
    exact("text-extra-negligible", "percent_of_activations_below", AtMost(), text="22B, bound stated"),
    _spike("530b_tp", "without"),
    _spike("530b", "with"),
    minutes=0.2,
)
def section43(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import first_layer, layer, whole_22b

    whole = {"22b": whole_22b("tp-sp-selective"), "22b_tp": whole_22b("tp")}
    for name, tensor in EXTRAS.items():
        for key, found in whole.items():
            yield Result(f"{name}/{key}", found.saved[tensor] / MIB, detail=tensor)
    extra = sum(whole["22b"].saved[tensor] for tensor in EXTRAS.values())
    yield Result("eq-extra-total/22b", extra / MIB, detail=" + ".join(EXTRAS.values()))
    activations = whole["22b"].config.depth * layer("22b", "tp-sp").saved_bytes
    yield Result("text-extra-negligible/percent_of_activations_below", 100 * extra / activations,
                 detail="the four tensors over 48 traced layers, sequence parallel, nothing recomputed",
                 contradiction=Contradiction("Section 4.3's own formula", round(_stated_share(), 2),
                                             "its terms over equation 5; a fraction below 0.01 seems to have "
                                             "got a percent sign"))
    mask = "embedding.dropout_mask"
    yield Result("text-embedding-spike/530b_tp", first_layer("530b", "tp").saved[mask] / MIB, detail=mask)
    cut = FACTS["eq-extra-embedding"].evaluate(**variables(FACTS, "530b", p=1)) / MIB
    yield Result("text-embedding-spike/530b", first_layer("530b").saved[mask] / MIB, detail=mask,
                 contradiction=Contradiction("Section 4.3", cut, "sequence parallelism cuts the mask over "
                                             "the tensor ranks; appendix B leaves out the 1/t"))


def _stated_share() -> float:
    """Percent, by the paper's own formulas."""
    sizes = variables(FACTS, "22b")
    return 100 * FACTS["eq-extra-total"].evaluate(**sizes) / FACTS["eq5-total-first-stage"].evaluate(**sizes)


PRODUCERS = (section43,)
