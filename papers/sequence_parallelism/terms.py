"""Blocks of the README made from the paper's rows: the terms of a layer, and figure 1 in three lines."""

from collections.abc import Sequence

from common.claims.judge import Row
from papers.sequence_parallelism.itemised import items
from papers.sequence_parallelism.memory import TERMS
from papers.sequence_parallelism.micro_batch_windows import GAINS
from papers.sequence_parallelism.outside_layers import EXTRAS
from papers.sequence_parallelism.rank_memory import BARS, REST, STATE
from papers.sequence_parallelism.sizes import FACTS, NAMES, SIZES

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
    """Every bar in three lines, what the formula leaves out itemised."""
    found = _by_id(rows)
    bars = [(size, bar) for size in SIZES for bar in BARS]
    needed = [f"figure1-{size}/{line}_{bar}" for size, bar in bars for line in ("layers", "rank")]
    if not all(id in found for id in (*needed, *(f"figure1-{size}/params_optimizer_gib" for size in SIZES))):
        return NOT_RUN
    heads = [f"{NAMES[size]} {bar.replace('_', ' ')}" for size, bar in bars]
    lines = ["| GiB | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(bars)]

    def line(text: str, values: Sequence[float | None], digits: int = 2) -> None:
        shown = ("" if value is None else f"{value:.{digits}f}" for value in values)
        lines.append(f"| {text} | " + " | ".join(shown) + " |")

    def row(key: str) -> list[Row]:
        return [found[f"figure1-{size}/{key.format(bar)}"] for size, bar in bars]

    ranks, layers = row("rank_{}"), row("layers_{}")
    parts = [items(each.result.detail) for each in ranks]
    whole = [each.result.ours for each in ranks]
    line("**1. Activations of the layers, formula**", [each.claim.published for each in layers])
    line("Activations of the layers, trace", [each.result.ours for each in layers])
    for name, tensor in EXTRAS.items():
        line(f"{FACTS[name].what.partition(' (')[0]} (`{tensor}`)", [part.get(tensor) for part in parts], 3)
    line(REST.capitalize() + " of the norms", [part[REST] for part in parts], 3)
    for kind in STATE:
        line(kind.capitalize(), [part[kind] for part in parts])
    line("**2. The whole rank, trace**", whole)
    line("The same with gradients of 2 bytes, 16 bytes per parameter",
         [total - part["gradients"] / 2 for total, part in zip(whole, parts, strict=True)])
    line("Parameters and optimizer, mean over ranks, trace", [each.result.ours for each in row("params_optimizer_gib")])
    line("That and the layers, trace", [each.result.ours for each in row("total_{}_gib")])
    line("**3. The bar, as plotted** (± 0.4 read)", [each.claim.published for each in row("total_{}_gib")])
    notes = [f"{NAMES[size]}: {found[f'figure1-{size}/params_optimizer_gib'].result.detail}; "
             f"{found[f'figure1-{size}/layers_baseline'].result.detail}." for size in SIZES]
    return "\n".join([*lines, "", "Parameters and optimizer, and what the schedule has in flight:", "",
                      *(f"- {note}" for note in notes)])


def windows(rows: Sequence[Row]) -> str:
    """Appendix C: what each rank can keep whole."""
    found = _by_id(rows)
    ids = {size: f"text-microbatch-recompute-{size}/kept_percent" for size in GAINS}
    if not all(id in found for id in ids.values()):
        return NOT_RUN
    return "\n".join(f"- {NAMES[size]}: {found[id].result.detail}." for size, id in ids.items())
