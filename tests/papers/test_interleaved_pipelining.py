"""The reproduction of arXiv:2104.04473: numbers against arithmetic written out here, verdicts, recipes."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import matplotlib
import pytest

from common.claims.judge import Row
from common.claims.listing import claims_of
from common.claims.published import load
from common.claims.run import rows_of, run
from common.training.command import recipes as named_recipes
from papers.interleaved_pipelining import figures, recipes, tables
from papers.interleaved_pipelining.reproduce import DERIVED, EXACT, PAPER
from tests.common.claims.sample_paper import ORIGIN

FACTS = load(PAPER.published)
S, V = 2048, 51200
# layers, hidden, heads, t, p, d, batch, micro-batch, chunks (table 1 and the authors' scripts)
TABLE_1 = {
    "1-7b": (24, 2304, 24, 1, 1, 32, 512, 16, 1),
    "3-6b": (30, 3072, 32, 2, 1, 32, 512, 16, 1),
    "7-5b": (36, 4096, 32, 4, 1, 32, 512, 16, 1),
    "18b": (40, 6144, 48, 8, 1, 32, 1024, 8, 1),
    "39b": (48, 8192, 64, 8, 2, 32, 1536, 4, 1),
    "76b": (60, 10240, 80, 8, 4, 32, 1792, 2, 3),
    "145b": (80, 12288, 96, 8, 8, 24, 2304, 2, 2),
    "310b": (96, 16384, 128, 8, 16, 15, 2160, 1, 2),
    "530b": (105, 20480, 128, 8, 35, 9, 2520, 1, 3),
    "1008b": (128, 25600, 160, 8, 64, 6, 3072, 1, 1),
}
PIPELINED = {name: row for name, row in TABLE_1.items() if row[4] > 1}
INTERLEAVED = {name: row for name, row in TABLE_1.items() if row[8] > 1}
MILLION, GIB, DAY = 1e6, 2**30, 86_400


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    """Every exact and derived row, run now."""
    functions = {producer.name for module in (*EXACT, *DERIVED) for producer in module.PRODUCERS}
    wanted = [claim.id for claim in claims_of(PAPER, FACTS) if claim.function in functions]
    outcome = run(PAPER, ORIGIN, wanted)
    assert outcome.failures == []
    return {row.claim.id: row for row in rows_of(PAPER, outcome.results) if row.claim.id in outcome.results}


def ours(rows: dict[str, Row], id: str):
    return rows[id].result.ours


def micro_batches(row: tuple) -> int:
    *_, d, batch, b, _ = row
    return batch // (d * b)


def test_every_published_claim_is_listed_once() -> None:
    claims = claims_of(PAPER, FACTS)
    assert {claim.source for claim in claims} == {entry.id for entry in FACTS}
    assert len(FACTS.entries) == 129
    for claim in claims:
        assert (claim.kind == "context") + bool(claim.function) + bool(claim.waits) == 1, claim.id


INPUTS = {
    "heads", "hidden", "layers", "tp", "pp", "dp", "gpus", "global_batch", "micro_batch", "model_parallel",
    "pipeline_parallel", "data_parallel", "tokens_billion",
}  # fmt: skip


def test_what_is_only_shown_is_what_a_run_was_given() -> None:
    shown = {claim.id.partition("/") for claim in claims_of(PAPER, FACTS) if claim.kind == "context"}
    assert {key for _, _, key in shown if key} - INPUTS == {
        "percent_of_peak_deepspeed", "aggregate_pflops_deepspeed", "gpus_approx"}
    assert {source for source, _, key in shown if not key} == {
        "setup-cluster", "setup-peak", "setup-vocab", "setup-seq", "setup-precision", "setup-throughput-definition",
        "setup-script-hyperparameters", "setup-script-recompute", "eq-iterations", "figure1-models", "figure3-example",
        "figure4-example", "text-data-layout", "text-zero-infinity-years", "text-checkpoint-read",
        "text-checkpoint-write"}


TWO_VALUES = {
    "setup-e2e-schedule/interleaved_rows",
    "figure13-b32/model_billion_text",
    "figure14-b32/batch_sizes",
    "figure15-b32/collective",
    "text-weak-scaling-models/params_billion_pp1",
    "text-weak-scaling-models/params_billion_pp8",
    "text-interleaved-gain-abstract/throughput_gain_percent_at_least",
    "text-interleaved-gain-intro/throughput_gain_percent_at_most",
    "text-suboptimal-mix/slowdown_factor_up_to",
    "text-microbatch-gain/throughput_gain_percent",
    "text-recompute-loss/throughput_loss_percent_up_to",
    "text-fusion-530b/tflops_per_gpu_after",
}


def test_verdicts_are_those_expected(rows: dict[str, Row]) -> None:
    verdicts = {id: row.verdict for id, row in rows.items()}
    assert {id for id, verdict in verdicts.items() if verdict == "missed"} == {"text-checkpoint-size/checkpoint_tb"}
    assert {id for id, verdict in verdicts.items() if verdict == "paper-inconsistent"} == TWO_VALUES
    assert set(verdicts.values()) == {"met", "missed", "paper-inconsistent"}
    assert len(verdicts) > 150


def parameters(layers: int, h: int) -> int:
    """A layer: four h x h of attention and their 4h biases, an MLP of 2 x 4h², 5h biases, two norms of 2h."""
    return layers * (4 * h * h + 4 * h + 8 * h * h + 5 * h + 4 * h) + (V + S) * h + 2 * h


def flops(layers: int, h: int) -> int:
    """Of one sequence: each layer forward twice and backward, the output forward and backward."""
    forward = 2 * S * 12 * h * h + 2 * 2 * S * S * h
    return layers * 4 * forward + 3 * 2 * S * h * V


def test_parameters(rows: dict[str, Row]) -> None:
    for name, (layers, h, *_) in TABLE_1.items():
        for id in (f"table1-{name}/params_billion", f"eq-params/{name}"):
            assert ours(rows, id) == parameters(layers, h) / 1e9
    for id, row in rows.items():
        if id.startswith("table2-") and id.endswith("params_billion"):
            assert row.result.ours == parameters(*((96, 12288) if "175b" in id else (105, 20480))) / 1e9
    models = {"figure7-microbatch": (4, 4096), "figure12-default": (96, 12288), "figure13-b32": (32, 20480),
              "figure14-b32": (32, 3840), "figure15-b32": (32, 3840), "figure16-b128": (32, 15360),
              "figure17-recompute": (80, 12288), "figure18-unoptimized": (96, 12288)}
    for figure, model in models.items():
        assert ours(rows, f"{figure}/model_billion") == parameters(*model) / 1e9
    for layers, end in ((3, "pp1"), (24, "pp8")):
        assert ours(rows, f"text-weak-scaling-models/params_billion_{end}") == parameters(layers, 20480) / 1e9


def test_flops_of_an_iteration(rows: dict[str, Row]) -> None:
    for name, (layers, h, *_, batch, _, _) in TABLE_1.items():
        expected = batch * flops(layers, h) / 1e15
        assert ours(rows, f"eq-flops-iteration/{name}") == pytest.approx(expected, rel=1e-12)
    gpt3 = 1536 * flops(96, 12288) / 1e15
    assert ours(rows, "eq-flops-iteration/gpt3") == pytest.approx(gpt3, rel=1e-12)


def test_a_whole_model_runs_what_its_layers_and_ends_run() -> None:
    """The smallest row cut to 4 layers, traced whole, against its one layer taken 4 times."""
    import torch

    from common.grid import Grid
    from common.trace.trace import trace
    from papers.interleaved_pipelining.traces import work

    model = replace(recipes.gpt_1_7b().model, pattern="[*-]*4")
    whole = trace(model, Grid(), micro_batch=1, recompute="full", dtype=torch.float16)
    one = work("table1-1-7b")
    assert whole.flops() == 4 * one.layer + one.outside == flops(4, 2304)


def test_flops_of_a_layer(rows: dict[str, Row]) -> None:
    for i, (_, h, *_) in enumerate(TABLE_1.values()):
        parts = {"qkv": 6 * S * h * h, "attention_scores": 2 * S * S * h, "attention_over_values": 2 * S * S * h,
                 "attention_projection": 2 * S * h * h, "mlp": 16 * S * h * h}
        found = {part: ours(rows, f"eq-flops-layer-forward/{part}_flops")[i] for part in parts}
        assert found == pytest.approx({part: amount / 1e12 for part, amount in parts.items()}, rel=1e-12)
        whole = sum(parts.values()) / 1e12
        assert ours(rows, "eq-flops-layer-forward/total")[i] == pytest.approx(whole, rel=1e-12)
        assert ours(rows, "eq-flops-layer-total/total")[i] == pytest.approx(4 * whole, rel=1e-12)
        assert ours(rows, "eq-flops-logits/total")[i] == pytest.approx(6 * S * h * V / 1e12, rel=1e-12)


def test_bubbles_are_exactly_the_formulas(rows: dict[str, Row]) -> None:
    plain = [(row[4] - 1) / micro_batches(row) for row in PIPELINED.values()]
    for name in ("gpipe", "1f1b"):
        assert list(ours(rows, f"eq-bubble-1f1b/{name}")) == plain
    mixed = [float(Fraction(row[4] - 1, micro_batches(row) * row[8])) for row in INTERLEAVED.values()]
    assert list(ours(rows, "eq-bubble-interleaved/interleaved")) == mixed
    assert list(ours(rows, "eq-bubble-time/default")) == [3 * (row[4] - 1) for row in PIPELINED.values()]
    assert list(ours(rows, "eq-bubble-time/ideal")) == [3 * micro_batches(row) for row in PIPELINED.values()]
    assert list(ours(rows, "eq-bubble-time/interleaved")) == [3 * (row[4] - 1) for row in INTERLEAVED.values()]
    assert ours(rows, "text-flush-share/percent_of_time_up_to") == pytest.approx(100 * 63 / 127)


def test_bubbles_of_figure_6_and_of_section_3(rows: dict[str, Row]) -> None:
    for n, batch in ((32, 32), (32, 128), (128, 128), (128, 512)):
        sizes = [2**i for i in range(6 if n == 32 else 7)]
        found = ours(rows, f"figure6-n{n}-b{batch}/bubble_fraction")
        assert list(found) == [(n - d) / batch for d in sizes]
    powers = (2, 4, 8, 16, 32)
    by_data = [(64 - 64 // p) / batch for batch, p in product((32, 512), powers)]
    assert list(ours(rows, "eq-bubble-vs-dp/figure14")) == by_data
    by_tensor = [(p - 1) / batch for batch, p in product((32, 128), powers)]
    assert list(ours(rows, "eq-bubble-vs-tp/figure13")) == by_tensor


def test_micro_batches_in_flight(rows: dict[str, Row]) -> None:
    assert list(ours(rows, "rule-stash-1f1b/gpipe")) == [micro_batches(row) for row in PIPELINED.values()]
    assert list(ours(rows, "rule-stash-1f1b/1f1b")) == [row[4] for row in PIPELINED.values()]
    assert "76.1B: 4, 3, 2, 1" in rows["rule-stash-1f1b/1f1b"].result.detail


def test_figure_8_from_figure_7(rows: dict[str, Row]) -> None:
    rates = dict(zip((1, 2, 4, 8, 16), (68, 78, 86, 89, 91), strict=True))
    for batch in (128, 512):
        times = [(batch / b + 7) * b / rate for b, rate in rates.items()]
        assert ours(rows, f"eq-batch-time/b{batch}") == pytest.approx(times, rel=1e-12)
        expected = [times[0] / time for time in times]
        assert ours(rows, f"figure8-b{batch}/normalized_throughput") == pytest.approx(expected, rel=1e-12)


def test_messages(rows: dict[str, Row]) -> None:
    handed = [b * S * h / MILLION for _, h, _, _, _, _, _, b, _ in PIPELINED.values()]
    for what in ("activations", "gradients"):
        assert list(ours(rows, f"eq-p2p-volume/{what}")) == handed
    assert list(ours(rows, "eq-scatter-gather/activations")) == [one / 8 for one in handed]
    cut = {name: row for name, row in TABLE_1.items() if row[3] > 1}
    expected = [8 * b * S * h * (t - 1) / t / MILLION for _, h, _, t, _, _, _, b, _ in cut.values()]
    assert ours(rows, "eq-tp-volume-layer/elements") == pytest.approx(expected, rel=1e-12)
    stages = [layers / p * 8 * S * h * 7 / 8 / MILLION for layers, h, p in ((105, 20480, 35), (128, 25600, 64))]
    assert ours(rows, "eq-tp-volume-stage/elements") == pytest.approx(stages, rel=1e-12)
    assert ours(rows, "eq-dp-ring/share") == pytest.approx([1 - 1 / row[5] for row in PIPELINED.values()])
    assert list(ours(rows, "eq-interleaved-comm/ratio")) == [row[8] for row in INTERLEAVED.values()]
    over_all = [(row[4] * row[8] - 1) / (row[4] - 1) for row in INTERLEAVED.values()]
    assert ", ".join(f"{ratio:.2f}" for ratio in over_all) in rows["eq-interleaved-comm/ratio"].result.detail


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_executor_sends_as_many_messages_as_the_schedule_says(chunks: int) -> None:
    """GPT-3 on 3 stages of one layer or 2 each, a middle rank, 3 micro-batches: both directions, each chunk."""
    from papers.interleaved_pipelining.traces import executed

    found = recipes.published("test", (3 * chunks, 12288, 96), recipes.Grid(tp=8, pp=3), batch=3, chunks=chunks)
    sent = [message for message in executed(found, rank=8, micro_batches=3) if message.name == "send"]
    assert len(sent) == 2 * 3 * chunks
    assert {message.bytes for message in sent} == {2 * S * 12288 // 8}


def test_memory_by_checkpoints(rows: dict[str, Row]) -> None:
    unit = S * 12288
    layer = unit * (10 + 24 / 8 + 5 * 96 * S / 12288 / 8)
    expected = [((c - 1) * 2 * unit + 8 // c * layer) / GIB for c in (1, 2, 4, 8)]
    assert ours(rows, "eq-checkpoint-memory/gpt3") == pytest.approx(expected, rel=1e-12)
    for (layers, h, a, t, p, *_), found in zip(TABLE_1.values(), ours(rows, "eq-checkpoint-optimum/checkpoints"),
                                               strict=True):
        inside = 10 + 24 / t + 5 * a * S / h / t
        assert found == pytest.approx(math.sqrt(layers / p * inside / 2), rel=1e-5)


def test_the_checkpoint_keeps_twelve_bytes_for_each_parameter(rows: dict[str, Row]) -> None:
    row = rows["text-checkpoint-size/checkpoint_tb"]
    assert row.result.ours == pytest.approx(12 * parameters(128, 25600) / 1e12, rel=1e-12)
    assert "13.69 bytes" in row.cause and "14.11 TB" in row.cause and "13.78 where" in row.cause


def test_training_times(rows: dict[str, Row]) -> None:
    for entry in FACTS:
        if entry.id.startswith("table2-"):
            layers, h = (96, 12288) if "175b" in entry.id else (105, 20480)
            rate = entry.values["gpus"] * entry.values["tflops_per_gpu"] * 1e12
            expected = 300e9 / S * flops(layers, h) / rate / DAY
            assert ours(rows, f"{entry.id}/training_days_300b_tokens") == pytest.approx(expected, rel=1e-12)
    assert ours(rows, "text-train-time-gpt3/days") == pytest.approx(8 * 300e9 * 175e9 / (1024 * 140e12) / DAY)
    assert ours(rows, "text-train-time-1t/days") == pytest.approx(8 * 450e9 * 1008e9 / (3072 * 163e12) / DAY)


def test_the_blocks_of_the_readme(rows: dict[str, Row]) -> None:
    models = tables.models(list(rows.values())).splitlines()
    assert models[-1] == "| 1008B | 8, 64, 6 | 512, 1 | 1,008.0 | 1,008.039 | 51,390.51 | 51,390.51 | 12.3 % |"
    assert models[2].startswith("| 1.7B | 1, 1, 32 | 1, 1 | 1.7 | 1.652 |") and models[2].endswith("| 0.0 % |")
    days = tables.days(list(rows.values())).splitlines()
    assert days[2] == "| ZeRO-3 | 174.6 billion | 384 | 4 | 144 | 90 | 90.0 |" and len(days) == 14
    assert tables.models([]) == tables.days([]) == "Not run yet."


def test_recipes_are_the_published_runs() -> None:
    """Grid, batch and shape of every row of table 1 and of each curve's points."""
    from papers.interleaved_pipelining.traces import recipe

    for name, (layers, h, a, t, p, d, batch, b, v) in TABLE_1.items():
        found = recipe(f"table1-{name}")
        assert (found.model.depth, found.model.hidden, found.model.heads) == (layers, h, a)
        assert (found.grid.tp, found.grid.pp, found.grid.dp) == (t, p, d)
        assert (found.training.batch, found.training.micro_batch, found.execution.chunks) == (batch, b, v)
        config = FACTS[f"table1-{name}"].config
        assert (layers, h, a, t, p, d, batch, b, v) == tuple(config[key] for key in (
            "layers", "hidden", "heads", "tp", "pp", "dp", "global_batch", "micro_batch", "interleave"))


FIGURES = {
    "figure7-microbatch": ("micro_batch", lambda b: recipes.figure_7(b)),
    "figure11-b8": ("pipeline_parallel", lambda p: recipes.figure_11(p, 8)),
    "figure11-b128": ("pipeline_parallel", lambda p: recipes.figure_11(p, 128)),
    "figure12-default": ("global_batch", lambda batch: recipes.figure_12(batch, chunks=1)),
    "figure12-interleaved": ("global_batch", lambda batch: recipes.figure_12(batch)),
    "figure13-b32": ("pp", lambda p: recipes.figure_13(p, 32)),
    "figure13-b128": ("pp", lambda p: recipes.figure_13(p, 128)),
    "figure14-b32": ("pp", lambda p: recipes.figure_14(p, 32)),
    "figure14-b512": ("pp", lambda p: recipes.figure_14(p, 512)),
    "figure15-b32": ("tp", lambda t: recipes.figure_15(t, 32)),
    "figure15-b128": ("tp", lambda t: recipes.figure_15(t, 128)),
    "figure15-b512": ("tp", lambda t: recipes.figure_15(t, 512)),
    "figure16-b128": ("micro_batch", lambda b: recipes.figure_16(b, 128)),
    "figure16-b512": ("micro_batch", lambda b: recipes.figure_16(b, 512)),
    "figure17-recompute": ("global_batch", lambda batch: recipes.figure_17(batch)),
    "figure17-no-recompute": ("global_batch", lambda batch: recipes.figure_17(batch, "none")),
    "figure18-unoptimized": ("global_batch", lambda batch: recipes.figure_18(batch, scatter_gather=False)),
    "figure18-scatter-gather": ("global_batch", lambda batch: recipes.figure_18(batch)),
    "table2-ptdp-175b-384": (None, lambda _: recipes.table_2("175b", 384)),
    "table2-ptdp-175b-768": (None, lambda _: recipes.table_2("175b", 768)),
    "table2-ptdp-175b-1536": (None, lambda _: recipes.table_2("175b", 1536)),
    "table2-ptdp-530b-560": (None, lambda _: recipes.table_2("530b", 560)),
    "table2-ptdp-530b-1120": (None, lambda _: recipes.table_2("530b", 1120)),
    "table2-ptdp-530b-2240": (None, lambda _: recipes.table_2("530b", 2240)),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_recipes_of_figures_are_the_published_points(figure: str) -> None:
    key, make = FIGURES[figure]
    entry = FACTS[figure]
    for i, point in enumerate(entry.values[key] if key else [None]):
        found = make(point)
        found.check()
        stated = dict(entry.config) | {name: values[i] for name, values in entry.values.items()
                                       if isinstance(values, list) and name != "from_script"}
        stated["layers"] = stated.get("layers", stated.get("layers_per_stage", 0) * found.grid.pp)
        if figure == "figure7-microbatch":
            stated["global_batch"] = stated["micro_batch"]
        ways = {
            "layers": found.model.depth, "hidden": found.model.hidden, "heads": found.model.heads,
            "seq": found.model.sequence, "vocab": found.model.vocab, "tp": found.grid.tp, "pp": found.grid.pp,
            "pipeline_parallel": found.grid.pp, "dp": found.grid.dp, "gpus": found.grid.world,
            "global_batch": found.training.batch, "micro_batch": found.training.micro_batch,
            "interleave": found.execution.chunks,
        }  # fmt: skip
        assert {name: value for name, value in ways.items() if name in stated} == {
            name: stated[name] for name in ways if name in stated}
    assert found.execution.scatter_gather == (figure != "figure18-unoptimized")
    assert found.execution.recompute == ("none" if figure == "figure17-no-recompute" else "full")


def test_recipes_that_have_a_name_are_ready_to_run() -> None:
    found = named_recipes(recipes)
    assert {"gpt_1_7b", "gpt_1t", "gpt3_175b", "figure11_121b", "figure18_175b"} <= set(found)
    for recipe in found.values():
        recipe.check()
    script = FACTS["setup-script-hyperparameters"].values
    recipe = found["gpt_1t"]
    assert (recipe.rate.peak, recipe.rate.floor, recipe.training.steps) == (
        script["lr"], script["min_lr"], script["train_iters"])
    assert (recipe.optimizer.beta1, recipe.optimizer.beta2, recipe.optimizer.eps, recipe.optimizer.weight_decay) == (
        script["adam_beta1"], script["adam_beta2"], script["adam_eps"], script["weight_decay"])
    assert recipe.model.dropout == recipe.model.attention_dropout == script["hidden_dropout"]
    assert recipe.execution.loss_scale.initial == script["loss_scale"]


def texts(path: Path) -> list[str]:
    return [element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_figures(rows: dict[str, Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    found = {}
    for figure in figures.FIGURES:
        path = tmp_path / f"{figure.name}.svg"
        figure.draw(path, rows)
        found[figure.name] = texts(path)
    # Micro-batch 7 on each of four devices: forward and backward, in each of two chunks where there are two.
    assert found["figure3"].count("7") == 8 and found["figure4"].count("7") == 8 + 16
    assert {"n=128, b'=512, simulated", "plotted in the paper", "64"} <= set(found["figure6"])
    assert {"0.95", "0.96", "1.21", "1.22", "batch 512"} <= set(found["figure8"])
    assert {"4.31", "0.87", "traced"} <= set(found["checkpoints"])


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "papers.interleaved_pipelining.reproduce", *arguments],
                          capture_output=True, text=True, check=False, cwd=PAPER.folder.parents[1])


def test_the_command_prints_json_and_nothing_else() -> None:
    done = command("figure6-n32-b32", "table2-zero3-175b-384", "--json")
    assert done.returncode == 0, done.stderr
    claims = {claim["id"]: claim for claim in json.loads(done.stdout)["claims"]}
    one, other = claims["figure6-n32-b32/bubble_fraction"], claims["table2-zero3-175b-384/tflops_per_gpu"]
    assert (one["kind"], one["verdict"], one["ours"]) == ("exact", "met", [31 / 32, 30 / 32, 28 / 32, 0.75, 0.5, 0.0])
    assert (other["kind"], other["verdict"]) == ("predicted", "missed") and "every node takes in" in other["cause"]
    assert one["origin"]["run"] == "now"
