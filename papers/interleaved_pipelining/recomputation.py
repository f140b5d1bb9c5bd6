"""How many layers to recompute at once (section 3.5), from the tensors that real layers keep."""

from collections.abc import Iterator
from math import sqrt

from common.claims import Absolute, Ask, Equal, Relative, Result, produces
from common.claims.formula import evaluate
from common.claims.quantities import exact
from papers.interleaved_pipelining.sizes import TABLE_1, formula, names, variables

GIB = 2**30
STAGE = "table2-ptdp-175b-384"
MEMORY, OPTIMUM, INTERVAL = "eq-checkpoint-memory", "eq-checkpoint-optimum", "text-checkpoint-interval"


def layers_of_stage(source: str) -> int:
    sizes = variables(source)
    return sizes["l"] // sizes["p"]


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


CHECKPOINTS = divisors(layers_of_stage(STAGE))


def stated(source: str) -> dict[str, float]:
    """l, A_input and A_intermediate of a stage, in bytes.

    The paper gives none; those of arXiv:2205.05198, equation 2, are of the same layer.
    """
    z = variables(source)
    unit = z["s"] * z["b"] * z["h"]
    inside = unit * (10 + 24 / z["t"] + 5 * z["a"] * z["s"] / (z["h"] * z["t"]))
    return {"l": layers_of_stage(source), "A_input": 2 * unit, "A_intermediate": inside}


def traced(source: str) -> dict[str, float]:
    """The same from traces of a layer, recomputed and not."""
    from papers.interleaved_pipelining.traces import layer, one_layer

    return {"l": layers_of_stage(source), "A_input": one_layer(source).saved["layer.input"],
            "A_intermediate": layer(source).saved_bytes}


def memory(sizes: dict[str, float], checkpoints: float) -> float:
    """The paper's formula, bytes."""
    return evaluate(formula(MEMORY), {"c": checkpoints, **sizes})


def optimum(sizes: dict[str, float]) -> float:
    """The paper's number of checkpoints; it may exceed the layers."""
    return sqrt(sizes["l"] * sizes["A_intermediate"] / sizes["A_input"])


def least(sizes: dict[str, float]) -> float:
    """Where the formula's memory is least, by golden-section search."""
    low, high, golden = 0.1, 1000.0, (sqrt(5) - 1) / 2
    while high - low > 1e-6:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if memory(sizes, left) < memory(sizes, right):
            high = right
        else:
            low = left
    return low


def best_interval(sizes: dict[str, float]) -> int:
    """Layers per checkpoint with the least memory, of those that divide the stage."""
    return sizes["l"] // min(divisors(sizes["l"]), key=lambda checkpoints: memory(sizes, checkpoints))


ONE_INPUT = Absolute(stated(STAGE)["A_input"] / GIB, "the input of one layer")


@produces(
    exact(MEMORY, "gpt3", ONE_INPUT, lambda facts: tuple(memory(stated(STAGE), c) / GIB for c in CHECKPOINTS),
          unit="GiB", text=f"a stage of GPT-3, 8 layers, {', '.join(map(str, CHECKPOINTS))} checkpoints"),
    exact(OPTIMUM, "checkpoints", Relative(1e-4), lambda facts: tuple(optimum(stated(row)) for row in TABLE_1),
          unit="", text=f"checkpoints where the memory of a stage is least, {names(tuple(TABLE_1))}"),
    *(exact(INTERVAL, f"layers_{end}", Equal(), text=f"{word} of the models of Table 1")
      for end, word in (("min", "smallest"), ("max", "largest"))),
    minutes=0.1,
)
def checkpoints(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.traces import kept_in_stage

    yield Result(f"{MEMORY}/gpt3", tuple(kept_in_stage(STAGE, c) / GIB for c in CHECKPOINTS),
                 detail="kept while backward runs through the last group, which has been made again; the formula "
                        "counts the input of that group twice")
    yield Result(f"{OPTIMUM}/checkpoints", tuple(least(traced(row)) for row in TABLE_1),
                 detail="where the memory formula with traced bytes of a layer is least")
    found = {row: best_interval(traced(row)) for row in TABLE_1}
    for end, choose in (("min", min), ("max", max)):
        yield Result(f"{INTERVAL}/layers_{end}", choose(found.values()),
                     detail="layers between checkpoints with the least memory, of those that divide a stage: "
                            f"{', '.join(f'{TABLE_1[row]} {layers}' for row, layers in found.items())}")


PRODUCERS = (checkpoints,)
