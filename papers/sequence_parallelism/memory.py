"""Activation memory of one layer: table 2, the terms of equations 1, 2 and 4, and what section 5 says.

Formula and trace stand side by side. What we call ours is summed from the tensors that real layers keep.
"""

from collections.abc import Iterator

from common.claims import Ask, Equal, Quantity, Relative, Result, Rounding, produces
from common.claims.quantities import exact
from papers.sequence_parallelism.sizes import (
    GIB,
    MIB,
    MODELS,
    NAMES,
    SIZES,
    Formula,
    formula,
    formulas,
    parts,
    variables,
)

CLOSE = Relative(0.001)
TABLE_2 = ("none", "tp", "tp-sp", "tp-selective", "tp-sp-selective", "full")
TERMS = {
    "eq1-parts-attention/qkv_input": ("attention.qkv_input",),
    "eq1-parts-attention/qk_matmul_inputs": ("attention.q", "attention.k"),
    "eq1-parts-attention/softmax_output": ("attention.softmax",),
    "eq1-parts-attention/softmax_dropout_mask": ("attention.softmax_mask",),
    "eq1-parts-attention/attention_over_values_dropout_output": ("attention.dropped",),
    "eq1-parts-attention/attention_over_values_v": ("attention.v",),
    "eq1-parts-attention/projection_input": ("attention.output_input",),
    "eq1-parts-attention/attention_dropout_mask": ("attention.dropout_mask",),
    "eq1-parts-mlp/first_linear_input": ("mlp.up_input",),
    "eq1-parts-mlp/second_linear_input": ("mlp.down_input",),
    "eq1-parts-mlp/gelu_input": ("mlp.activation_input",),
    "eq1-parts-mlp/dropout_mask": ("mlp.dropout_mask",),
    "eq1-parts-layernorm/two_norms": ("attention.norm_input", "mlp.norm_input"),
}
"""Each term of equation 1 and the tensors that make it up, by the names they carry in common/layers."""


def _table2(name: str, size: str) -> Quantity:
    return exact(f"table2-{name}", size, CLOSE, formula(f"table2-{name}", size, GIB), unit="GiB",
                 text=NAMES[size], headline=(name, size) == ("tp-sp-selective", "1t"))


@produces(*(_table2(name, size) for name in TABLE_2 for size in SIZES), minutes=0.1)
def table2(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    for name in TABLE_2:
        for size in SIZES:
            if ask.wants(id := f"table2-{name}/{size}"):
                found = layer(size, name)
                left_out = found.statistics_bytes / MIB
                yield Result(id, found.saved_bytes / GIB,
                             detail=f"one layer, rank 0 of tp {found.grid.tp}; the norms' statistics, which "
                                    f"section 4 leaves out, would add {left_out:.3g} MiB")


def _published_term(id: str) -> Formula:
    """MiB for each model, without parallelism."""
    source, key = id.split("/")
    return formulas(source, MIB) if key == "two_norms" else parts(source, key, MIB)


def _term(id: str) -> Quantity:
    source, key = id.split("/")
    name = "inputs of the two norms" if key == "two_norms" else key.replace("_", " ")
    return exact(source, key, CLOSE, _published_term(id), unit="MiB", group="Equation 1",
                 text=f"{name} ({MODELS})")


def _block(name: str) -> Quantity:
    return exact(f"eq1-parts-{name}", "total", CLOSE, formulas(f"eq1-parts-{name}", MIB), unit="MiB",
                 group="Equation 1", text=f"total ({MODELS})")


@produces(*map(_term, TERMS), *map(_block, ("attention", "mlp")), minutes=0.01)
def equation1_terms(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    def kept(*tensors: str) -> tuple[float, ...]:
        return tuple(sum(layer(size, "none").saved[tensor] for tensor in tensors) / MIB for size in SIZES)

    for id, tensors in TERMS.items():
        yield Result(id, kept(*tensors), detail=" + ".join(tensors))
    for block in ("attention", "mlp"):
        inside = [tensors for id, tensors in TERMS.items() if id.startswith(f"eq1-parts-{block}/")]
        members = sum(inside, ())
        yield Result(f"eq1-parts-{block}/total", kept(*members), detail=" + ".join(members))


WHOLE = (
    "eq1-parts-attention/qkv_input",
    "eq1-parts-attention/attention_dropout_mask",
    "eq1-parts-mlp/first_linear_input",
    "eq1-parts-mlp/dropout_mask",
    "eq1-parts-layernorm/two_norms",
)
"""The terms that tensor parallelism leaves whole on every rank: the 10sbh of equation 2."""


def _cut(technique: str) -> Formula:
    """Each term of equation 1 for the 22B, divided by t where the technique cuts it."""
    def mib(facts) -> tuple[float, ...]:
        sizes = variables(facts, "22b")
        ways = {id: 1 if technique == "tp" and id in WHOLE else sizes["t"] for id in TERMS}
        return tuple(_published_term(id)(facts)[0] / ways[id] for id in TERMS)
    return mib


@produces(
    exact("table2-tp", "terms", CLOSE, _cut("tp"), unit="MiB", group="Equation 2", text="its 13 terms, 22B"),
    exact("table2-tp-sp", "terms", CLOSE, _cut("tp-sp"), unit="MiB", group="Equation 4",
          text="its 13 terms, 22B"),
    minutes=0.01,
)
def equations2_and_4_terms(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    for technique in ("tp", "tp-sp"):
        saved = layer("22b", technique).saved
        kept = tuple(sum(saved[tensor] for tensor in tensors) / MIB for tensors in TERMS.values())
        yield Result(f"table2-{technique}/terms", kept, detail="; ".join(map(" + ".join, TERMS.values())))


SELECTIVE = {"gpt3": "175b", "mtnlg": "530b"}
SQUARE = ("attention.softmax", "attention.softmax_mask", "attention.dropped")
THRESHOLD = (512, 640, 672, 2048)
"""Sequences of the 22B at which 5as/h is 26.7, 33.3, 35 and 106.7: the rule of section 5 turns at 34."""


def _threshold(facts) -> tuple[int, ...]:
    rule = facts["rule-selective-threshold"]
    return tuple(int(rule.evaluate(**variables(facts, "22b", s=s))) for s in THRESHOLD)


@produces(
    *(exact(f"text-selective-{name}", "attention_term", Rounding(), text="5as/h") for name in SELECTIVE),
    *(exact(f"text-selective-{name}", "memory_saved_percent", Rounding(), text="memory saved")
      for name in SELECTIVE),
    exact("rule-selective-threshold", "holds", Equal(), _threshold, unit="", text="less than half is kept, "
          f"22B over sequences of {', '.join(map(str, THRESHOLD))} (1 yes, 0 no)"),
    minutes=0.03,
)
def section5_memory(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    def share(size: str, sequence: int | None = None) -> float:
        """What selective recomputation leaves of a layer's bytes, sequence parallel at tp 8."""
        kept, whole = (layer(size, technique, sequence) for technique in ("tp-sp-selective", "tp-sp"))
        return kept.saved_bytes / whole.saved_bytes

    for name, size in SELECTIVE.items():
        saved = layer(size, "none").saved
        sbh = saved["attention.qkv_input"] / 2
        yield Result(f"text-selective-{name}/attention_term", sum(saved[tensor] for tensor in SQUARE) / sbh,
                     detail=f"{' + '.join(SQUARE)} over sbh, which is half of attention.qkv_input")
        yield Result(f"text-selective-{name}/memory_saved_percent", 100 * (1 - share(size)),
                     detail="one layer, tp 8, sequence parallel")
    yield Result("rule-selective-threshold/holds", tuple(int(share("22b", s) < 0.5) for s in THRESHOLD),
                 detail="one layer, tp 8, sequence parallel")


PRODUCERS = (table2, equation1_terms, equations2_and_4_terms, section5_memory)
