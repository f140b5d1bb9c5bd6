"""The published numbers of each paper against that paper's own arithmetic: a slip in copying breaks it."""

import pytest

from common.claims.formula import evaluate
from common.claims.published import Facts, load
from papers import FOLDER

MODELS = ("22b", "175b", "530b", "1t")


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load(FOLDER / "sequence_parallelism" / "published.toml")


def sizes(facts: Facts, model: str) -> dict[str, float]:
    """The variables of the paper's formulas for one of its models."""
    config = facts[f"table3-{model}"].config
    return {
        "a": config["heads"],
        "b": config["micro_batch"],
        "h": config["hidden"],
        "L": config["layers"],
        "s": config["seq"],
        "t": config["tp"],
        "v": config["vocab"],
        "B": config["global_batch"],
    }


def test_the_file_is_whole(facts: Facts) -> None:
    assert (len(facts.entries), facts.slug, facts.arxiv) == (95, "sequence_parallelism", "2205.05198")


@pytest.mark.parametrize("model", MODELS)
def test_table_3_repeats_itself(facts: Facts, model: str) -> None:
    entry = facts[f"table3-{model}"]
    printed = {key: value for key, value in entry.values.items() if key != "model"}
    assert printed == {key: entry.config[key] for key in printed}
    assert entry.config["gpus"] == entry.config["tp"] * entry.config["pp"] * entry.config["dp"]
    assert entry.config["hidden"] % entry.config["heads"] == 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("formula", "percent"), [("eq7-model-flops", "mfu_percent"), ("eq8-hardware-flops", "hfu_percent")]
)
def test_table_5_follows_from_the_flop_formulas(facts: Facts, model: str, formula: str, percent: str) -> None:
    row = facts[f"table5-{model}"]
    flops = facts[formula].evaluate(**sizes(facts, model))
    peak = 1e12 * facts["setup-peak"].values["peak_tflops_per_gpu"]
    share = 100 * flops / (row.values["iteration_s_present_work"] * row.config["gpus"] * peak)
    assert share == pytest.approx(row.values[percent], abs=0.2)


@pytest.mark.parametrize("model", MODELS)
def test_table_5_gains_follow_from_the_times(facts: Facts, model: str) -> None:
    values = facts[f"table5-{model}"].values
    gain = 100 * (values["iteration_s_full_recompute"] / values["iteration_s_present_work"] - 1)
    assert gain == pytest.approx(values["throughput_increase_percent"], abs=0.15)


def test_table_4_adds_up(facts: Facts) -> None:
    rows = [entry for entry in facts if entry.id.startswith("table4-")]
    assert len(rows) == 5
    base = facts["table4-baseline"].values["combined_ms"]
    for entry in rows:
        values = entry.values
        assert values["forward_ms"] + values["backward_ms"] == pytest.approx(values["combined_ms"], abs=0.01)
        overhead = 100 * (values["combined_ms"] / base - 1)
        assert overhead == pytest.approx(values.get("overhead_percent", 0), abs=0.5)


@pytest.mark.parametrize(
    ("figure", "table"),
    [
        ("figure7-sequence-parallel", "table2-tp-sp"),
        ("figure7-selective", "table2-tp-selective"),
        ("figure7-both", "table2-tp-sp-selective"),
        ("figure7-full", "table2-full"),
    ],
)
def test_figure_7_follows_from_table_2(facts: Facts, figure: str, table: str) -> None:
    entry = facts[figure]
    for model, bar in zip(MODELS, entry.values["percent_of_baseline"], strict=True):
        variables = sizes(facts, model)
        share = 100 * facts[table].evaluate(**variables) / facts["table2-tp"].evaluate(**variables)
        assert bar == pytest.approx(share, abs=entry.read_error)


@pytest.mark.parametrize("model", MODELS)
def test_figure_1_bars_are_sums(facts: Facts, model: str) -> None:
    entry = facts[f"figure1-{model}"]
    for bar in ("baseline", "present_work"):
        total = entry.values["params_optimizer_gib"] + entry.values[f"activations_{bar}_gib"]
        assert total == pytest.approx(entry.values[f"total_{bar}_gib"], abs=entry.read_error)


def test_equation_1_is_the_sum_of_its_parts(facts: Facts) -> None:
    variables = sizes(facts, "22b")
    total = 0.0
    for name in ("attention", "mlp", "layernorm"):
        entry = facts[f"eq1-parts-{name}"]
        parts = [part for part in entry.values.values() if isinstance(part, str)]
        total += entry.evaluate(**variables)
        if parts:
            assert sum(evaluate(part, variables) for part in parts) == entry.evaluate(**variables)
    assert total == pytest.approx(facts["table2-none"].evaluate(**variables), rel=1e-12)
