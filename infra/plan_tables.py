"""Tables of a plan: memory by term, time by term, rates by convention."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from common.predict.efficiency import ATTENTIONS, SCOPES
from common.predict.iteration import Prediction
from common.predict.memory import RankMemory

TOKENS_PER_PARAMETER = 20  # arXiv:2203.15556, table 3
NOTHING = 1e-6  # share of an iteration; rounding of sums, or as good
SMALLEST = 5e5  # bytes; smaller terms have no line of their own
USED = {"model": "MFU", "hardware": "HFU"}


def parameters(found: Prediction) -> int:
    """Of the whole model, tied ones once."""
    return sum(times * piece.logical for stage in found.stages for piece, times in stage.parts)


def default_tokens(found: Prediction) -> int:
    return TOKENS_PER_PARAMETER * parameters(found)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        left = name in ("", "certainty", "convention")
        table.add_column(name, justify="left" if left else "right", no_wrap=not left, header_style="dim")
    return table


def memory_table(rank: RankMemory, limit: float) -> Table:
    table = _table("", "GB", "certainty")
    for group, size in rank.by_group().items():
        terms = [term for term in rank.terms if term.group == group and term.bytes >= SMALLEST]
        if not terms:
            continue
        alone = len(terms) == 1
        table.add_row(
            f"[bold]{escape(group)}[/]" + (f": {escape(terms[0].name)}" if alone else ""),
            gb(size),
            terms[0].certainty if alone else "",
        )
        for term in sorted(terms, key=lambda term: -term.bytes) if not alone else ():
            table.add_row(f"  {escape(term.name)}", f"[dim]{gb(term.bytes)}[/]", term.certainty)
    table.add_row("sum", gb(rank.total), style="bold")
    table.add_row("fragmentation, apart", gb(rank.apart), "assumed")
    table.add_row("needed", gb(rank.needed), style="bold")
    free = limit - rank.needed
    table.add_row(
        "free" if free >= 0 else "too much",
        gb(abs(free)),
        f"of {gb(limit)} GB",
        style="green" if free >= 0 else "red",
    )
    return table


def time_table(found: Prediction) -> Table:
    table = _table("", "s", "share")
    for name, seconds in found.time.items():
        if seconds > NOTHING * found.seconds:
            table.add_row(name, f"{seconds:,.4g}", f"{seconds / found.seconds:.1%}")
    table.add_row("sum", f"{found.seconds:,.4g}", "100.0%", style="bold")
    if found.hidden:
        table.add_row(
            "tensor-parallel communication beside computing", f"{found.hidden:,.4g}", "", style="dim"
        )
    return table


def rates_table(found: Prediction, tokens: float | None) -> Table:
    precision = found.recipe.execution.precision
    table = _table("", "TFLOP/s", "of peak", "convention")
    for scope in SCOPES:
        for attention in ATTENTIONS:
            rate = found.flops_per_second(scope, attention)
            work = "what the mathematics asks for" if scope == "model" else "what runs, recomputation too"
            table.add_row(
                f"{USED[scope]}, causal attention {attention}",
                f"{rate / 1e12:,.4g}",
                f"{rate / found.peak:.1%}",
                f"{work}; peak: dense {precision}",
            )
    table.add_row(
        "tokens/s",
        f"{found.tokens_per_second:,.0f}",
        "",
        f"{found.tokens_per_second / found.ranks:,.1f} a rank",
    )
    budget = tokens or default_tokens(found)
    why = "" if tokens else f", {TOKENS_PER_PARAMETER} for each parameter (--tokens takes others)"
    table.add_row("days", _days(found.days(budget)), "", f"for {count(budget)} tokens{why}")
    return table


def gb(size: float) -> str:
    return f"{size / 1e9:,.{2 if size >= 1e9 else 3}f}"


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def joined(numbers: Sequence[int]) -> str:
    return (
        ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{numbers[0]}, {numbers[1]} ... {numbers[-1]}"
    )


def count(number: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"
