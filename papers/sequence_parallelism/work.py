"""Floating-point work: appendix A, equations 7 to 9 and the overheads of section 5.

Counted from the operations that one rank runs, two FLOPs per multiply-add of a matrix product, the square of
attention whole; times tensor ranks, layers and micro-batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from common.claims import Ask, Contradiction, Quantity, Relative, Result, Rounding, produces
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import FACTS, MODELS, NAMES, SIZES, formula, formulas, parts, variables

TERA, PETA = 1e12, 1e15
CLOSE = Relative(0.001)
BOTH = ("forward", "backward")
LAYER_PARTS = {
    "qkv_flops": ("attention.mixer.qkv", ""),
    "attention_scores_flops": ("attention.mixer", "aten.baddbmm"),
    "attention_over_values_flops": ("attention.mixer", "aten.bmm"),
    "attention_projection_flops": ("attention.mixer.output", ""),
    "mlp_flops": ("mlp", ""),
}
"""Parts of appendix A: the module that runs them, and which of its own operations where it runs several."""
WORDS = "one extra forward of the attention core, 4Bs²h per layer; equation 8 adds 12Bs²h"


@dataclass(frozen=True)
class Work:
    """FLOPs of one iteration over all ranks. again: what selective recomputation runs a second time."""

    model: int
    again: int

    @property
    def hardware(self) -> int:
        return self.model + self.again


def iteration(size: str) -> Work:
    """(layer trace x layers + embedding and output) x tensor ranks x micro-batches, of the present work."""
    from papers.sequence_parallelism.traces import first_layer, last_layer, layer

    one = layer(size, "tp-sp-selective")
    ends = first_layer(size).flops(*BOTH, module="embedding") + last_layer(size).flops(*BOTH, module="output")
    layers, times = one.config.depth, one.grid.tp * (variables(FACTS, size)["B"] // one.micro_batch)
    return Work(times * (layers * one.flops(*BOTH) + ends), times * layers * one.flops("recompute"))


def by_the_text(size: str) -> float:
    """Equation 7 and 4Bs^2h per layer."""
    sizes = variables(FACTS, size)
    again = 4 * sizes["B"] * sizes["s"] ** 2 * sizes["h"] * sizes["L"]
    return FACTS["eq7-model-flops"].evaluate(**sizes) + again


LAYER, LOGITS = "eq-flops-layer-forward", "eq-flops-logits"
ONE_SEQUENCE = f", one sequence ({MODELS})"


def _part(key: str) -> Quantity:
    name = key.removesuffix("_flops").replace("_", " ")
    return exact(LAYER, key, CLOSE, parts(LAYER, key, TERA, B=1), unit="TFLOP", text=f"{name}{ONE_SEQUENCE}")


@produces(
    *map(_part, LAYER_PARTS),
    exact(LAYER, "total", CLOSE, formulas(LAYER, TERA, B=1), unit="TFLOP", text=f"total{ONE_SEQUENCE}"),
    exact(LOGITS, "forward", CLOSE, formulas(LOGITS, TERA, B=1), unit="TFLOP", text=f"forward{ONE_SEQUENCE}"),
    exact("text-table4-expected", "expected_percent", Rounding(), text="extra FLOPs of full recomputation"),
    minutes=0.02,
)
def appendix_a(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import last_layer, layer

    traced = [layer(size, "tp") for size in SIZES]
    for key, (module, operation) in LAYER_PARTS.items():
        counted = tuple(_per_sequence(found, _own(found, module, operation)) for found in traced)
        yield Result(f"{LAYER}/{key}", counted, detail=f"module {module}, over the 8 tensor ranks")
    yield Result(f"{LAYER}/total", tuple(_per_sequence(found, found.flops("forward")) for found in traced))
    ends = [last_layer(size) for size in SIZES]
    forward, backward = ([found.flops(phase, module="output") for found in ends] for phase in BOTH)
    yield Result(f"{LOGITS}/forward", tuple(map(_per_sequence, ends, forward)),
                 detail=f"backward runs {backward[0] / forward[0]:g} times as many")
    full = layer("22b", "full")
    yield Result("text-table4-expected/expected_percent", 100 * full.flops("recompute") / full.flops(*BOTH),
                 detail="counted: the forward again, over forward and backward")


def _per_sequence(found, flops: int) -> float:
    """TFLOPs of one sequence over all tensor ranks."""
    return flops * found.grid.tp / found.micro_batch / TERA


def _own(found, module: str, operation: str) -> int:
    """Forward FLOPs of a module, or of one operation that it runs itself."""
    name = f"layers.{found.first}.branches.{module}"
    if not operation:
        return found.flops("forward", module=name)
    return sum(o.flops for o in found.operations
               if (o.phase, o.module, o.name) == ("forward", name, operation))


def _iteration(source: str, size: str) -> Quantity:
    return exact(source, size, CLOSE, formula(source, size, PETA), unit="PFLOP", text=NAMES[size])


@produces(
    *(_iteration("eq7-model-flops", size) for size in SIZES),
    *(_iteration("eq8-hardware-flops", size) for size in SIZES),
    exact("eq9-hw-over-model", "ratio", Relative(0.005), formulas("eq9-hw-over-model"), unit="", text=MODELS),
    exact("text-selective-gpt3", "flops_overhead_percent", Rounding(), text="extra FLOPs", headline=True),
    exact("text-selective-mtnlg", "flops_overhead_percent", Rounding(), text="extra FLOPs"),
    minutes=0.02,
)
def flops_per_iteration(ask: Ask) -> Iterator[Result]:
    work = {size: iteration(size) for size in SIZES}
    text = {size: by_the_text(size) for size in SIZES}
    model = {size: formula("eq7-model-flops", size)(FACTS) for size in SIZES}
    for size, found in work.items():
        yield Result(f"eq7-model-flops/{size}", found.model / PETA, detail="forward and backward")
        yield Result(f"eq8-hardware-flops/{size}", found.hardware / PETA, detail="and what is run again",
                     contradiction=Contradiction("the text of equation 8", text[size] / PETA, WORDS))
    ratios = tuple(text[size] / model[size] for size in SIZES)
    yield Result("eq9-hw-over-model/ratio", tuple(found.hardware / found.model for found in work.values()),
                 contradiction=Contradiction("the text of equation 8", ratios, WORDS))
    for name, size in (("gpt3", "175b"), ("mtnlg", "530b")):
        stated, counted = 100 * (text[size] / model[size] - 1), 100 * work[size].again / work[size].model
        yield Result(f"text-selective-{name}/flops_overhead_percent", counted,
                     detail="FLOPs run again over those of forward and backward",
                     contradiction=Contradiction("the text of equation 8", stated, WORDS))


PRODUCERS = (appendix_a, flops_per_iteration)
