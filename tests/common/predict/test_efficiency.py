"""FLOPs against the equations of the papers, at published sizes and by hand."""

import pytest

from common.grid import Grid
from common.predict.efficiency import work
from common.predict.stages import stages
from common.training.step import Execution
from papers.interleaved_pipelining.recipes import gpt_7_5b
from tests.common.predict.small import GPT, LLAMA


def _work(model, batch, micro_batch=1, tp=1, **execution):
    settings = Execution(**{"kernels": "paper", "precision": "bf16"} | execution)
    return work(model, stages(model, settings, Grid(tp=tp), micro_batch), batch, micro_batch, tp)


def test_hardware_flops_are_equation_3():
    """arXiv:2104.04473, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh), every layer recomputed."""
    recipe = gpt_7_5b()
    model, b = recipe.model, recipe.training.batch
    s, h, l, v = model.sequence, model.hidden, model.depth, model.vocab
    found = work(
        model,
        stages(model, recipe.execution, recipe.grid, recipe.training.micro_batch),
        b,
        recipe.training.micro_batch,
        recipe.grid.tp,
    )
    assert found.flops("hardware") == pytest.approx(
        96 * b * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h)), rel=1e-12
    )


@pytest.mark.parametrize(
    "recompute, layers, attention", [("none", 72, 12), ("selective", 72, 16), ("full", 96, 16)]
)
@pytest.mark.parametrize("tp, micro_batch", [(1, 1), (2, 4)])
def test_model_and_hardware_flops_are_appendix_a(recompute, layers, attention, tp, micro_batch):
    """arXiv:2205.05198, equations 7 to 9. Selective recomputation runs the attention square again."""
    b, s, h, l, v = 8, GPT.sequence, GPT.hidden, GPT.depth, GPT.vocab
    found = _work(GPT, b, micro_batch, tp, recompute=recompute)
    output = 6 * b * s * h * v
    assert found.flops("model") == 72 * b * s * l * h**2 + 12 * b * s**2 * h * l + output
    assert found.flops("hardware") == layers * b * s * l * h**2 + attention * b * s**2 * h * l + output
    assert found.flops("model", "whole") - found.flops("model", "half") == 6 * b * s**2 * h * l
    assert (
        found.flops("hardware", "whole") - found.flops("hardware", "half") == attention / 2 * b * s**2 * h * l
    )


def test_grouped_queries_and_gates_by_hand():
    b, s, h, d, l = 2, LLAMA.sequence, LLAMA.hidden, LLAMA.dim, LLAMA.depth
    products = 2 * s * (h * (4 + 2 * 2) * d + 4 * d * h + 3 * h * 96)
    expected = 3 * b * (l * (products + 4 * s**2 * h) + 2 * s * h * 257)
    assert _work(LLAMA, b).flops("model") == expected


@pytest.mark.parametrize("scope, attention", [("all", "whole"), ("model", "none")])
def test_other_conventions_are_refused(scope, attention):
    with pytest.raises(ValueError, match="use model or hardware"):
        _work(GPT, 1).flops(scope, attention)
