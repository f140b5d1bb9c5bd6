"""Blocks of the README made from the paper's rows: the models of table 1, and the training times of table 2."""

from collections.abc import Sequence

from common.claims.judge import Row
from papers.interleaved_pipelining.sizes import FACTS, INTERLEAVED, PIPELINED, TABLE_1, TABLE_2, variables

NOT_RUN = "Not run yet."


def _results(rows: Sequence[Row]) -> dict[str, object]:
    return {row.claim.id: row.result.ours for row in rows if row.result is not None}


def models(rows: Sequence[Row]) -> str:
    """Table 1: parameters and FLOPs, printed or by equation and counted, and the bubble of each row's schedule."""
    ours = _results(rows)
    bubbles = _bubbles(ours)
    if bubbles is None or any(f"{row}/params_billion" not in ours for row in TABLE_1):
        return NOT_RUN
    published = {row.claim.id: row.claim.published for row in rows}
    lines = ["| model | t, p, d | m, v | parameters, printed | counted | PFLOP, equation 3 | counted | bubble |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for row, name in TABLE_1.items():
        z = variables(row)
        flops = f"eq-flops-iteration/{row.removeprefix('table1-')}"
        cells = (name, f"{z['t']}, {z['p']}, {z['d']}", f"{z['m']}, {z['v']}",
                 f"{FACTS[row].values['params_billion']:,}", f"{ours[f'{row}/params_billion']:,.3f}",
                 f"{published[flops]:,.2f}", f"{ours[flops]:,.2f}", f"{100 * bubbles.get(row, 0):.1f} %")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _bubbles(ours: dict[str, object]) -> dict[str, float] | None:
    """Of the rows with several stages: interleaved where the scripts interleave."""
    ids = {"eq-bubble-1f1b/1f1b": PIPELINED, "eq-bubble-interleaved/interleaved": INTERLEAVED}
    if any(id not in ours for id in ids):
        return None
    return {row: bubble for id, members in ids.items() for row, bubble in zip(members, ours[id], strict=True)}


def days(rows: Sequence[Row]) -> str:
    """Table 2: days to train on 300 billion tokens, printed and from counted FLOPs and the printed rate."""
    ours = _results(rows)
    ids = {row: f"{row}/training_days_300b_tokens" for row in TABLE_2}
    if any(id not in ours for id in ids.values()):
        return NOT_RUN
    lines = ["| scheme | parameters | GPUs | micro-batch | TFLOP/s per GPU, printed | days, printed | from counted FLOPs |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row, id in ids.items():
        z = FACTS[row].values
        lines.append(f"| {z['scheme']} | {z['params_billion']} billion | {z['gpus']} | {z['micro_batch']} | "
                     f"{z['tflops_per_gpu']} | {z['training_days_300b_tokens']} | {ours[id]:.1f} |")
    return "\n".join(lines)
