"""Floating-point work: equation 3 and the appendix, from counted operations (section 5.1).

Counted from the operations that one rank runs, two FLOPs per multiply-add of a matrix product, the square of
attention whole; times tensor ranks. The layers of these models do the same work, so a model is one traced layer times their
number, and the embedding and output that were traced with it.
"""

from collections.abc import Iterator

from common.claims import Ask, Equal, Quantity, Relative, Result, Rounding, produces
from common.claims.formula import evaluate
from common.claims.published import Facts
from common.claims.quantities import exact
from papers.interleaved_pipelining.sizes import (
    DAY,
    FACTS,
    PETA,
    TABLE_1,
    TERA,
    at_rows,
    names,
    value,
    variables,
)

CLOSE = Relative(0.001)
GPT_3 = "table2-ptdp-175b-1536"
MODELS = {**{row: row.removeprefix("table1-") for row in TABLE_1}, GPT_3: "gpt3"}
"""Rows of which an iteration is counted, and the keys of their claims."""
ROWS = tuple(TABLE_1)
PARTS = {
    "qkv_flops": ("attention.mixer.qkv", ""),
    "attention_scores_flops": ("attention.mixer", "aten.baddbmm"),
    "attention_over_values_flops": ("attention.mixer", "aten.bmm"),
    "attention_projection_flops": ("attention.mixer.output", ""),
    "mlp_flops": ("mlp", ""),
}
"""Parts of the appendix: the module that runs them, and which of its own operations where it runs several."""
LAYER, TOTAL, LOGITS = "eq-flops-layer-forward", "eq-flops-layer-total", "eq-flops-logits"
ONE_SEQUENCE = f"one sequence, {names(ROWS)}"


def iteration(source: str, batch: int) -> int:
    """FLOPs of an iteration over all ranks, what recomputation runs again included."""
    from papers.interleaved_pipelining.traces import work

    return batch * work(source).whole


def _iteration(row: str) -> Quantity:
    return exact("eq-flops-iteration", MODELS[row], CLOSE,
                 lambda facts: value("eq-flops-iteration", **variables(row)) / PETA, unit="PFLOP",
                 text=TABLE_1.get(row, "GPT-3, 174.6B"), headline=row == "table1-1008b")


@produces(*map(_iteration, MODELS), minutes=0.15)
def flops_per_iteration(ask: Ask) -> Iterator[Result]:
    for row, key in MODELS.items():
        if ask.wants(id := f"eq-flops-iteration/{key}"):
            yield Result(id, iteration(row, variables(row)["B"]) / PETA,
                         detail="forward, forward again, backward of all layers; output once, not recomputed")


def _part(key: str) -> Quantity:
    def tflops(facts: Facts) -> tuple[float, ...]:
        return tuple(evaluate(facts[LAYER].values[key], variables(row, B=1)) / TERA for row in ROWS)
    return exact(LAYER, key, CLOSE, tflops, unit="TFLOP",
                 text=f"{key.removesuffix('_flops').replace('_', ' ')}, {ONE_SEQUENCE}")


@produces(
    *map(_part, PARTS),
    exact(LAYER, "total", CLOSE, at_rows(LAYER, ROWS, TERA, B=1), unit="TFLOP", text=f"total, {ONE_SEQUENCE}"),
    exact(TOTAL, "total", CLOSE, at_rows(TOTAL, ROWS, TERA, side=0, B=1), unit="TFLOP",
          text=f"forward twice and backward, {ONE_SEQUENCE}"),
    exact(LOGITS, "total", CLOSE, at_rows(LOGITS, ROWS, TERA, B=1), unit="TFLOP",
          text=f"forward and backward, {ONE_SEQUENCE}"),
    exact("setup-flops-convention", "forward_passes_counted", Equal(), text="forward passes of a layer"),
    exact("setup-flops-convention", "backward_cost_in_forwards", Equal(), text="backward over forward of a layer"),
    exact("text-recompute-loss", "extra_flops_percent", Rounding(),
          lambda facts: facts["text-recompute-loss"].values["throughput_loss_percent_up_to"], unit="%",
          text="FLOPs that recomputation adds to a layer, the text's 33 %"),
    minutes=0.02,
)
def appendix(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.traces import work

    found = [work(row) for row in ROWS]
    for key, (module, operation) in PARTS.items():
        yield Result(f"{LAYER}/{key}", tuple(_forward(row, module, operation) / TERA for row in ROWS),
                     detail=f"module {module}, over all tensor ranks")
    yield Result(f"{LAYER}/total", tuple(one.forward / TERA for one in found))
    yield Result(f"{TOTAL}/total", tuple(one.layer / TERA for one in found))
    yield Result(f"{LOGITS}/total", tuple(one.outside / TERA for one in found),
                 detail="all that is no layer; the embedding runs no matrix product")
    one = found[-1]
    yield Result("setup-flops-convention/forward_passes_counted", (one.forward + one.recompute) / one.forward)
    yield Result("setup-flops-convention/backward_cost_in_forwards", one.backward / one.forward)
    yield Result("text-recompute-loss/extra_flops_percent", 100 * one.recompute / (one.forward + one.backward),
                 detail="a third more work, which is a quarter less throughput")


def _forward(row: str, module: str, operation: str) -> float:
    """FLOPs of one sequence in the forward pass of a module, or of one operation that it runs itself."""
    from papers.interleaved_pipelining.traces import one_layer

    found = one_layer(row)
    name = f"layers.0.branches.{module}"
    if operation:
        flops = sum(o.flops for o in found.operations
                    if (o.phase, o.module, o.name) == ("forward", name, operation))
    else:
        flops = found.flops("forward", module=name)
    return flops * found.grid.tp / found.micro_batch


TRAINED = {"gpt3": ("text-train-time-gpt3", GPT_3), "1t": ("text-train-time-1t", "table1-1008b")}


def _by_equation_4(name: str):
    def days(facts: Facts) -> float:
        run = facts[TRAINED[name][0]].values
        return value("eq-training-time", T=run["tokens_billion"] * 1e9, P=run["params_billion"] * 1e9,
                     n=run["gpus"], X=run["tflops_per_gpu"] * TERA) / DAY
    return days


def days(source: str, tokens: float, gpus: int, tflops: float) -> float:
    """Of training on so many tokens: iterations times counted FLOPs over what the GPUs achieve."""
    sequences = tokens / variables(source)["s"]
    return iteration(source, 1) * sequences / (gpus * tflops * TERA * DAY)


@produces(
    *(exact("eq-training-time", name, Relative(0.05), _by_equation_4(name), unit="days",
            text=f"counted FLOPs against the approximation, {title}")
      for name, title in (("gpt3", "GPT-3"), ("1t", "one trillion"))),
    minutes=0.01,
)
def approximation(ask: Ask) -> Iterator[Result]:
    for name, (text, row) in TRAINED.items():
        run = FACTS[text].values
        yield Result(f"eq-training-time/{name}",
                     days(row, run["tokens_billion"] * 1e9, run["gpus"], run["tflops_per_gpu"]),
                     detail="equation 4 takes 8 FLOPs for each token and parameter, which leaves out attention and "
                            "that the output is not recomputed")


PRODUCERS = (flops_per_iteration, appendix, approximation)
