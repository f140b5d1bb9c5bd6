"""The page of a plan, for a terminal and as data."""

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
from common.training.config_json import to_json
from infra.plan_divide import uneven
from infra.plan_range import covered
from infra.plan_tables import (
    USED,
    count,
    default_tokens,
    gb,
    joined,
    memory_table,
    parameters,
    rates_table,
    time_table,
)


def page(
    found: Prediction, known: Cluster, tokens: float | None, notes: Sequence[str], searched: bool
) -> Iterator[RenderableType]:
    """known: the prediction's cluster. tokens: to train on. searched: the layout was not given but found."""
    memory, name = found.memory, f"{found.recipe.name} on {found.ranks:,} x {known.name}"
    verdict = "fits" if memory.fits else "[red]does not fit[/]"
    rates = f"{found.seconds:.3g} s an iteration, MFU {found.utilisation():.1%}"
    yield Rule(f"[bold]{escape(name)}[/]: {rates}, {verdict}", align="left")
    yield _facts(_model(found), _layout(found, known, searched), _cluster(found, known))
    flights = joined(memory.peak.in_flight)
    yield _title(
        f"Memory of pipeline rank {memory.peak.rank}, the fullest; micro-batches in flight: {flights}"
    )
    yield memory_table(memory.peak, memory.limit)
    if len(memory.ranks) > 1:
        least = min(memory.ranks, key=lambda rank: rank.needed)
        yield Text(
            f"of {len(memory.ranks)} pipeline ranks, rank {least.rank} needs the least: {gb(least.needed)} "
            "GB; tensor and data ranks of one are alike",
            style="dim",
        )
    yield _title("Time of an iteration, mean over pipeline ranks")
    yield time_table(found)
    yield _title("Rates")
    yield rates_table(found, tokens)
    yield from _listed(
        "Does not divide",
        (f"{u.what}: {u.costs}; {u.would} would" for u in uneven(found.recipe, known)),
        "everything divides evenly",
    )
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


def _model(found: Prediction) -> Iterator[tuple[str, str]]:
    model = found.recipe.model
    groups = f" in {model.groups} groups" if model.groups != model.heads else ""
    yield (
        "model",
        (
            f"{count(parameters(found))} parameters: {model.depth} layers, hidden {model.hidden:,}, "
            f"{model.heads} heads{groups} of {model.dim}, mlp {model.inner:,} ({model.activation}), "
            f"vocabulary {model.vocab:,}, sequence {model.sequence:,}"
        ),
    )


def _layout(found: Prediction, known: Cluster, searched: bool) -> Iterator[tuple[str, str]]:
    recipe = found.recipe
    grid, execution, training = recipe.grid, recipe.execution, recipe.training
    nodes = -(-grid.world // known.node.ranks)
    yield (
        "layout" + (" found" if searched else ""),
        (
            f"tp {grid.tp} x dp {grid.dp} x pp {grid.pp} = {grid.world:,} rank{'s' * (grid.world > 1)} "
            f"on {nodes:,} node{'s' * (nodes > 1)} of {known.node.ranks}; {execution.schedule}"
            + (f" in {execution.chunks} chunks" if execution.chunks > 1 else "")
        ),
    )
    yield (
        "batch",
        (
            f"{training.batch:,} sequences, {found.tokens:,} tokens: {recipe.micro_batches} micro-batches of "
            f"{training.micro_batch} a rank"
        ),
    )
    on = [
        name
        for name, used in (
            ("sequence parallel", execution.sequence_parallel),
            ("sharded optimizer", execution.sharded_optimizer),
        )
        if used
    ]
    yield (
        "execution",
        ", ".join(
            [
                execution.precision,
                f"recompute {execution.recompute}",
                *on,
                f"messages beside computing: {execution.overlap}",
            ]
        ),
    )


def _cluster(found: Prediction, known: Cluster) -> Iterator[tuple[str, str]]:
    device, precision = known.accelerator, found.recipe.execution.precision
    yield "cluster", known.description
    yield (
        "accelerator",
        (
            f"{device.name}, {found.peak / 1e12:,.4g} TFLOP/s dense {precision}, "
            f"{found.memory.limit / 1e9:.1f} GB for a process"
        ),
    )
    yield "kernel set", found.recipe.execution.kernels
    if known.assumed:
        yield "assumed", f"{len(known.assumed)} of {len(known.sources)} values: {', '.join(known.assumed)}"


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


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
    return (
        f"checked: {all_of.rows} measured recipes of {', '.join(all_of.papers)} on "
        f"{', '.join(sorted(all_of.accelerators))}; {', '.join(spans)}"
    )


def _within() -> str:
    return f"within what was checked: {_range().removeprefix('checked: ')}"


def as_json(found: Prediction, known: Cluster, tokens: float | None, notes: Sequence[str]) -> dict[str, Any]:
    """What the page shows, in bytes, seconds, FLOP/s and shares."""
    peak, budget = found.memory.peak, tokens or default_tokens(found)
    return {
        "recipe": to_json(found.recipe),
        "cluster": known.name,
        "kernels": found.recipe.execution.kernels,
        "parameters": parameters(found),
        "seconds": found.seconds,
        "time": found.time,
        "hidden": found.hidden,
        "memory": {
            "limit": found.memory.limit,
            "fits": found.memory.fits,
            "rank": peak.rank,
            "in_flight": list(peak.in_flight),
            "terms": [
                {"group": t.group, "name": t.name, "bytes": t.bytes, "certainty": t.certainty}
                for t in peak.terms
            ],
            "total": peak.total,
            "fragmentation": peak.apart,
            "needed": [rank.needed for rank in found.memory.ranks],
        },
        "flops_per_second": {
            f"{USED[s]}, causal attention {a}": found.flops_per_second(s, a)
            for s in SCOPES
            for a in ATTENTIONS
        },
        "utilisation": {
            f"{USED[s]}, causal attention {a}": found.utilisation(s, a) for s in SCOPES for a in ATTENTIONS
        },
        "peak": found.peak,
        "tokens_per_second": found.tokens_per_second,
        "budget": {"tokens": budget, "days": found.days(budget)},
        "uneven": [item._asdict() for item in uneven(found.recipe, known)],
        "extrapolated": covered().outside(found.recipe, known),
        "assumed": list(known.assumed),
        "notes": list(notes),
    }
