"""The page of a plan, for a terminal and as data: layout, memory, time, rates, what does not divide, what is extrapolated."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from common.predict.efficiency import ATTENTIONS, SCOPES
from common.predict.iteration import Prediction
from common.predict.machine import Cluster
from common.predict.memory import RankMemory
from common.training.config_json import to_json
from infra.plan_divide import uneven
from infra.plan_range import covered

TOKENS_PER_PARAMETER = 20  # arXiv:2203.15556, table 3
NOTHING = 1e-6  # share of an iteration; rounding of sums, or as good
SMALLEST = 5e5  # bytes; smaller terms have no line of their own
USED = {"model": "MFU", "hardware": "HFU"}


def page(found: Prediction, known: Cluster, tokens: float | None, notes: Sequence[str], searched: bool
         ) -> Iterator[RenderableType]:
    """known: the cluster of the prediction. tokens: to train on. searched: the layout was not asked for but found."""
    memory, name = found.memory, f"{found.recipe.name} on {found.ranks:,} x {known.name}"
    verdict = "fits" if memory.fits else "[red]does not fit[/]"
    yield Rule(f"[bold]{escape(name)}[/]: {found.seconds:.3g} s an iteration, MFU {found.utilisation():.1%}, {verdict}",
               align="left")
    yield _facts(_model(found), _layout(found, known, searched), _cluster(found, known))
    flights = _joined(memory.peak.in_flight)
    yield _title(f"Memory of pipeline rank {memory.peak.rank}, the fullest, with {flights} micro-batches in flight")
    yield _memory(memory.peak, memory.limit)
    if len(memory.ranks) > 1:
        least = min(memory.ranks, key=lambda rank: rank.needed)
        yield Text(f"of {len(memory.ranks)} pipeline ranks, rank {least.rank} needs the least: {_gb(least.needed)} GB; tensor "
                   "and data ranks of one are alike", style="dim")
    yield _title("Time of an iteration, mean over pipeline ranks")
    yield _time(found)
    yield _title("Rates")
    yield _rates(found, tokens)
    yield from _listed("Does not divide", (f"{u.what}: {u.costs}; {u.would} would" for u in uneven(found.recipe, known)),
                       "everything divides evenly")
    outside = covered().outside(found.recipe, known)
    yield from _listed("Extrapolated, outside of what was checked", outside, _within())
    if outside:
        yield Text("  " + _range())
    if notes:
        yield from _listed("Notes", notes, "")


def _facts(*groups: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for group in groups:
        for name, text in group:
            table.add_row(name, escape(text))
    return table


def parameters(found: Prediction) -> int:
    """Of the whole model, tied ones once."""
    return sum(times * piece.logical for stage in found.stages for piece, times in stage.parts)


def _model(found: Prediction) -> Iterator[tuple[str, str]]:
    model = found.recipe.model
    groups = f" in {model.groups} groups" if model.groups != model.heads else ""
    yield "model", (f"{_count(parameters(found))} parameters: {model.depth} layers, hidden {model.hidden:,}, {model.heads} heads"
                    f"{groups} of {model.dim}, mlp {model.inner:,} ({model.activation}), vocabulary {model.vocab:,}, "
                    f"sequence {model.sequence:,}")


def _layout(found: Prediction, known: Cluster, searched: bool) -> Iterator[tuple[str, str]]:
    recipe = found.recipe
    grid, execution, training = recipe.grid, recipe.execution, recipe.training
    nodes = -(-grid.world // known.node.ranks)
    yield "layout" + (" found" if searched else ""), (
        f"tp {grid.tp} x dp {grid.dp} x pp {grid.pp} = {grid.world:,} ranks on {nodes:,} node{'s' * (nodes > 1)} of "
        f"{known.node.ranks}; {execution.schedule}" + (f" in {execution.chunks} chunks" if execution.chunks > 1 else ""))
    yield "batch", (f"{training.batch:,} sequences, {found.tokens:,} tokens: {recipe.micro_batches} micro-batches of "
                    f"{training.micro_batch} a rank")
    on = [name for name, used in (("sequence parallel", execution.sequence_parallel),
                                  ("sharded optimizer", execution.sharded_optimizer)) if used]
    yield "execution", ", ".join([execution.precision, f"recompute {execution.recompute}", *on,
                                  f"messages beside computing: {execution.overlap}"])


def _cluster(found: Prediction, known: Cluster) -> Iterator[tuple[str, str]]:
    device, precision = known.accelerator, found.recipe.execution.precision
    yield "cluster", known.description
    yield "accelerator", (f"{device.name}, {found.peak / 1e12:,.4g} TFLOP/s dense {precision}, "
                          f"{found.memory.limit / 1e9:.1f} GB for a process")
    yield "kernel set", found.recipe.execution.kernels
    if known.assumed:
        yield "assumed", f"{len(known.assumed)} of {len(known.sources)} values: {', '.join(known.assumed)}"


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        left = name in ("", "certainty", "convention")
        table.add_column(name, justify="left" if left else "right", no_wrap=not left, header_style="dim")
    return table


def _memory(rank: RankMemory, limit: float) -> Table:
    table = _table("", "GB", "certainty")
    for group, size in rank.by_group().items():
        terms = [term for term in rank.terms if term.group == group and term.bytes >= SMALLEST]
        if not terms:
            continue
        alone = len(terms) == 1
        table.add_row(f"[bold]{escape(group)}[/]" + (f": {escape(terms[0].name)}" if alone else ""), _gb(size),
                      terms[0].certainty if alone else "")
        for term in sorted(terms, key=lambda term: -term.bytes) if not alone else ():
            table.add_row(f"  {escape(term.name)}", f"[dim]{_gb(term.bytes)}[/]", term.certainty)
    table.add_row("sum", _gb(rank.total), style="bold")
    table.add_row("fragmentation, apart", _gb(rank.apart), "assumed")
    table.add_row("needed", _gb(rank.needed), style="bold")
    free = limit - rank.needed
    table.add_row("free" if free >= 0 else "too much", _gb(abs(free)), f"of {_gb(limit)} GB", style="green" if free >= 0 else "red")
    return table


def _time(found: Prediction) -> Table:
    table = _table("", "s", "share")
    for name, seconds in found.time.items():
        if seconds > NOTHING * found.seconds:
            table.add_row(name, f"{seconds:,.4g}", f"{seconds / found.seconds:.1%}")
    table.add_row("sum", f"{found.seconds:,.4g}", "100.0%", style="bold")
    if found.hidden:
        table.add_row("tensor-parallel communication beside computing", f"{found.hidden:,.4g}", "", style="dim")
    return table


def _rates(found: Prediction, tokens: float | None) -> Table:
    precision = found.recipe.execution.precision
    table = _table("", "TFLOP/s", "of peak", "convention")
    for scope in SCOPES:
        for attention in ATTENTIONS:
            rate = found.flops_per_second(scope, attention)
            work = "what the mathematics asks for" if scope == "model" else "what runs, recomputation too"
            table.add_row(f"{USED[scope]}, causal attention {attention}", f"{rate / 1e12:,.4g}", f"{rate / found.peak:.1%}",
                          f"{work}; peak: dense {precision}")
    table.add_row("tokens/s", f"{found.tokens_per_second:,.0f}", "", f"{found.tokens_per_second / found.ranks:,.1f} a rank")
    budget = tokens or TOKENS_PER_PARAMETER * parameters(found)
    why = "" if tokens else f", {TOKENS_PER_PARAMETER} for each parameter (--tokens takes others)"
    table.add_row("days", _days(found.days(budget)), "", f"for {_count(budget)} tokens{why}")
    return table


def _listed(title: str, lines: Iterable[str], none: str) -> Iterator[RenderableType]:
    lines = list(lines)
    yield _title(title) if lines else Text(f"\n{none}", style="dim")
    for line in lines:
        grid = Table.grid(padding=(0, 1))
        grid.add_row("  -", escape(line))
        yield grid


def _range() -> str:
    all_of = covered()
    spans = [f"{name} {low:,} to {high:,}" for name, (low, high) in all_of.numbers.items() if low < high]
    return (f"checked: {all_of.rows} measured recipes of {', '.join(all_of.papers)} on "
            f"{', '.join(sorted(all_of.accelerators))}; {', '.join(spans)}")


def _within() -> str:
    return f"within what was checked: {_range().removeprefix('checked: ')}"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.{2 if size >= 1e9 else 3}f}"


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _joined(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{numbers[0]}, {numbers[1]} ... {numbers[-1]}"


def _count(number: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"


def as_json(found: Prediction, known: Cluster, tokens: float | None, notes: Sequence[str]) -> dict[str, Any]:
    """What the page shows, in bytes, seconds, FLOP/s and shares."""
    peak, budget = found.memory.peak, tokens or TOKENS_PER_PARAMETER * parameters(found)
    return {
        "recipe": to_json(found.recipe), "cluster": known.name, "kernels": found.recipe.execution.kernels,
        "parameters": parameters(found), "seconds": found.seconds, "time": found.time, "hidden": found.hidden,
        "memory": {
            "limit": found.memory.limit, "fits": found.memory.fits, "rank": peak.rank, "in_flight": list(peak.in_flight),
            "terms": [{"group": t.group, "name": t.name, "bytes": t.bytes, "certainty": t.certainty} for t in peak.terms],
            "total": peak.total, "fragmentation": peak.apart, "needed": [rank.needed for rank in found.memory.ranks]},
        "flops_per_second": {f"{USED[s]}, causal attention {a}": found.flops_per_second(s, a)
                             for s in SCOPES for a in ATTENTIONS},
        "utilisation": {f"{USED[s]}, causal attention {a}": found.utilisation(s, a) for s in SCOPES for a in ATTENTIONS},
        "peak": found.peak, "tokens_per_second": found.tokens_per_second,
        "budget": {"tokens": budget, "days": found.days(budget)},
        "uneven": [item._asdict() for item in uneven(found.recipe, known)],
        "extrapolated": covered().outside(found.recipe, known), "assumed": list(known.assumed), "notes": list(notes),
    }
