from dataclasses import replace

import pytest
import torch
from torch import nn

from common.layers.context import Context
from common.layers.embedding import Embedding
from common.models.config import LanguageModelConfig
from tests.common.kernels.agreement import normal
from tests.common.layers.small import record


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_it_is_torch_s(positions):
    """Tokens that repeat add up their gradients; positions are the record's, not the column's number."""
    config = LanguageModelConfig(hidden=24, heads=4, vocab=37, sequence=11, positions=positions)
    ours = Embedding(config, Context(dtype=torch.float64))
    tokens, table = nn.Embedding(37, 24, dtype=torch.float64), nn.Embedding(11, 24, dtype=torch.float64)
    with torch.no_grad():
        ours.tokens.copy_(tokens.weight)
        if positions == "learned":
            ours.positions.copy_(table.weight)
    batch = replace(
        record(config),
        positions=torch.stack([torch.arange(11), torch.arange(11) % 4, torch.arange(11).flip(0)]),
    )
    out = ours(batch)
    expected = tokens(batch.tokens) + (table(batch.positions) if positions == "learned" else 0)
    assert torch.equal(out, expected.transpose(0, 1))
    out.backward(normal(11, 3, 24))
    expected.backward(normal(11, 3, 24).transpose(0, 1))
    torch.testing.assert_close(ours.tokens.grad, tokens.weight.grad, rtol=1e-12, atol=1e-14)
    if positions == "learned":
        torch.testing.assert_close(ours.positions.grad, table.weight.grad, rtol=1e-12, atol=1e-14)
    else:
        assert ours.positions is None
