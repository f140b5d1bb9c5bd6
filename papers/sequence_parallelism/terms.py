"""Blocks of the README made from the paper's rows: the terms of a layer, and figure 1 in three lines."""

from collections.abc import Mapping, Sequence

from common.claims.judge import Row
from papers.sequence_parallelism.memory import TERMS
from papers.sequence_parallelism.outside_layers import EXTRAS
from papers.sequence_parallelism.sizes import FACTS, GIB, MIB

CUT = ("table2-tp/terms", "table2-tp-sp/terms")
NOT_RUN = "Not run yet."


def _by_id(rows: Sequence[Row]) -> dict[str, Row]:
    return {row.claim.id: row for row in rows if row.result is not None}


def equations(rows: Sequence[Row]) -> str:
    """Each term of equation 1 for the 22B, the tensors that make it up, what each equation leaves of it."""
    found = _by_id(rows)
    if not all(id in found for id in (*TERMS, *CUT)):
        return NOT_RUN
    lines = [
        "| term of the paper | bytes | tensors kept by the layer |"
        " equation 1 | trace | equation 2 | trace | equation 4 | trace |",
        "| --- | --- | --- |" + " ---: |" * 6,
    ]
    columns = []
    for i, id in enumerate(TERMS):
        row, others = found[id], [found[id] for id in CUT]
        source, key = id.split("/")
        formula = FACTS[source].values.get(key, FACTS[source].formula)
        tensors = ", ".join(f"`{name}`" for name in row.result.detail.split(" + "))
        text = row.claim.text.partition(" (")[0]
        pairs = [(row.claim.published[0], row.result.ours[0])]
        pairs += [(other.claim.published[i], other.result.ours[i]) for other in others]
        columns.append([value for pair in pairs for value in pair])
        lines.append(f"| {text} | `{formula}` | {tensors} | " + _numbers(columns[-1]))
    lines.append(f"| whole layer | `{FACTS['table2-none'].formula}` | | "
                 + _numbers([sum(column) for column in zip(*columns, strict=True)]))
    return "\n".join(lines)


def _numbers(values: Sequence[float]) -> str:
    return " | ".join(f"{value:,.0f}" for value in values) + " |"


def figure1(rows: Sequence[Row]) -> str:
    """The 22B in three lines for each bar, what the formula leaves out itemised."""
    found = _by_id(rows)
    needed = ["figure1-22b/params_optimizer_gib", *(f"figure1-22b/{line}_{bar}" for line in ("layers", "rank")
              for bar in ("baseline", "present_work"))]
    if not all(id in found for id in needed):
        return NOT_RUN
    lines = ["| GiB | baseline | present work |", "| --- | ---: | ---: |"]
    bars = {"baseline": "22b_tp", "present_work": "22b"}

    def line(text: str, values: Mapping[str, float], digits: int = 2) -> None:
        lines.append(f"| {text} | " + " | ".join(f"{values[bar]:.{digits}f}" for bar in bars) + " |")

    def both(key: str, published: bool = False) -> dict[str, float]:
        rows = {bar: found[f"figure1-22b/{key.format(bar)}"] for bar in bars}
        return {bar: row.claim.published if published else row.result.ours for bar, row in rows.items()}

    state = dict.fromkeys(bars, found[needed[0]].result.ours)
    extras = {name: {bar: found[f"{name}/{key}"].result.ours * MIB / GIB for bar, key in bars.items()}
              for name in EXTRAS}
    whole, layers = both("rank_{}"), both("layers_{}")
    known = {bar: state[bar] + layers[bar] + sum(extra[bar] for extra in extras.values()) for bar in bars}
    line("**1. Activations of the 48 layers, formula**", both("layers_{}", published=True))
    line("Activations of the 48 layers, trace", layers)
    line("Parameters and optimizer, trace", state)
    for name, tensor in EXTRAS.items():
        line(f"{FACTS[name].what.partition(' (')[0]} (`{tensor}`)", extras[name], 3)
    line("Indices, labels and statistics of the norms", {bar: whole[bar] - known[bar] for bar in bars}, 3)
    line("**2. The whole rank, trace**", whole)
    line("Parameters, optimizer and layers alone, trace", both("total_{}_gib"))
    line("**3. The bar, as plotted** (± 0.4 read)", both("total_{}_gib", published=True))
    return "\n".join([*lines, "", f"Parameters and optimizer: {found[needed[0]].result.detail}."])
