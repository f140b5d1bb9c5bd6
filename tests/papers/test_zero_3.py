"""Table 2's ZeRO-3 rows: recipes against the printed table, and what their causes say against arithmetic."""

import re
import tomllib

import pytest

from common.predict.hardware import cluster
from common.predict.price import Costs
from papers import FOLDER
from papers.interleaved_pipelining import zero_3
from papers.interleaved_pipelining.predicted import NAMED, PREDICTED
from papers.interleaved_pipelining.recipes import table_2_zero_3
from tests.common.predict.small import PlainCosts

PRINTED = {
    entry["id"]: entry["values"] | entry["config"]
    for entry in tomllib.loads((FOLDER / "interleaved_pipelining/published.toml").read_text())["claim"]
    if entry["id"].startswith("table2-zero3-")
}


@pytest.mark.parametrize("row", PRINTED)
def test_recipes_are_the_printed_rows(row):
    printed, (found,) = PRINTED[row], NAMED[f"{row}/tflops_per_gpu"].recipes
    model, grid, training = found.model, found.grid, found.training
    assert (model.depth, model.hidden, model.heads, model.sequence, model.vocab) == tuple(
        printed[key] for key in ("layers", "hidden", "heads", "seq", "vocab")
    )
    assert grid.world == grid.dp == printed["gpus"] and found.execution.recompute == "full"
    assert (training.batch, training.micro_batch) == (printed["global_batch"], printed["micro_batch"])


def test_no_row_is_fitted_and_all_are_predicted():
    assert len(PRINTED) == 6 and not any(PREDICTED.fitted.startswith(row) for row in PRINTED)


def test_every_parameter_of_a_layer_travels_three_times():
    """Two norms, four products and their biases, queries apart from keys and values: 14 parameters with
    12 h^2 + 13 h elements, in 96 layers."""
    h, costs = 12288, PlainCosts(message_seconds=2.0)
    assert zero_3.each_alone(table_2_zero_3("175b", 768), costs) == 3 * 96 * 14 * 2.0
    assert {ranks for _, _, ranks in costs.sent} == {tuple(range(768))} and len(costs.sent) == 14
    assert sum(size for _, size, _ in costs.sent) == 2 * (12 * h * h + 13 * h)


def test_a_node_takes_in_all_that_it_does_not_keep():
    """Parameters of the layers twice, those outside once, and all gradients, in 16 bits; padding below 0.1 %."""
    selene = cluster("selene")
    found = zero_3.predict(table_2_zero_3("175b", 384), Costs(selene))
    h = 12288
    layers, outside = 96 * (12 * h * h + 13 * h), (51200 + 2048) * h + 2 * h
    expected = 2 * (3 * layers + 2 * outside) * (1 - 8 / 384)
    assert zero_3.taken_in(found, 8) == pytest.approx(expected, rel=1e-3)


def test_the_cause_divides_what_the_printed_rate_leaves():
    """Of 144 TFLOP/s on 384 GPUs: an iteration by equation 3, less operations as predicted with messages that
    take no time."""

    class Free(Costs):
        def message(self, name, size, ranks):
            return 0.0

    recipe = table_2_zero_3("175b", 384)
    h, layers, s = 12288, 96, 2048
    flops = 96 * 1536 * s * layers * h * h * (1 + s / (6 * h) + 51200 / (16 * layers * h))
    computing = zero_3.predict(recipe, Free(cluster("selene"), software=PREDICTED.costs().software)).seconds
    left = flops / 384 / 144e12 - computing
    text = zero_3.cause(recipe, PREDICTED.costs(), 144)
    assert float(re.search(r"leaves ([\d.]+) s", text)[1]) == pytest.approx(left, abs=0.1)
    taken = 1e9 * float(re.search(r"([\d,]+) GB that every node", text)[1].replace(",", ""))
    assert float(re.search(r"(\d+) GB/s, less", text)[1]) == pytest.approx(taken / left / 1e9, abs=0.6)


def test_overlap_can_only_help():
    recipe, costs = table_2_zero_3("175b", 768), PREDICTED.costs()
    waited, beside = (zero_3.predict(recipe, costs, overlap).seconds for overlap in (False, True))
    assert beside < waited
    (row,) = NAMED["table2-zero3-175b-768/tflops_per_gpu"].predicted(PREDICTED)
    assert row == pytest.approx(zero_3.predict(recipe, costs).flops_per_second() / 1e12)
