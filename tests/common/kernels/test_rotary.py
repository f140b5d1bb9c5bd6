import pytest
import torch

from common.kernels import KERNEL_SETS, rotary
from tests.common.kernels.agreement import TOLERANCE, agree, normal

S, B, N, D, BASE = 13, 3, 5, 14, 500.0
FUNCTIONS = {name: k.rotate for name, k in KERNEL_SETS.items()}


def positions(batch: int = B):
    return torch.stack([torch.arange(S) * (b + 1) + b for b in range(batch)], dim=1)


def turned(x, positions_SB):
    """Element i and element i + D/2 as a complex number, times e^(i position theta)."""
    pairs = torch.complex(*x.double().chunk(2, dim=-1))
    theta = torch.tensor([BASE ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
    angle = positions_SB[:, :, None, None] * theta
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", [1, B], ids=["shared", "per sample"])
@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_against_complex_numbers(kernels, batch, dtype):
    """Positions of one sample for all, and of each its own."""
    at = positions(batch)

    def ours(x):
        return FUNCTIONS[kernels](x, *rotary.table(at, D, BASE, x.dtype))

    agree(ours, lambda x: turned(x, at), [normal(S, B, N, D)], dtype)


@pytest.mark.parametrize("kernels", FUNCTIONS)
def test_scores_depend_on_the_distance_alone(kernels):
    q, k = normal(D), normal(D, seed=2)
    at = torch.tensor([[0], [3], [1000], [1003], [100_000], [100_003]])
    cos, sin = rotary.table(at, D, BASE, torch.float64)
    q, k = (FUNCTIONS[kernels](x.expand(6, 1, 1, D).contiguous(), cos, sin)[:, 0, 0] for x in (q, k))
    near, far, furthest = (q[i + 1] @ k[i] for i in (0, 2, 4))
    torch.testing.assert_close(far, near, rtol=1e-10, atol=0)
    torch.testing.assert_close(furthest, near, rtol=1e-9, atol=0)
    assert not torch.isclose(q[1] @ k[0], q[0] @ k[0], rtol=1e-3)


def test_position_zero_turns_nothing_and_lengths_stay():
    x = normal(2, 1, N, D)
    cos, sin = rotary.table(torch.tensor([[0], [99]]), D, BASE, torch.float64)
    y = rotary.rotate(x, cos, sin)
    assert torch.equal(y[0], x[0])
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))


def test_tables_are_exact_at_far_positions_and_at_least_fp32():
    """fp32 angles would be off by 1e-2 at position 1e6."""
    at = torch.tensor([[1_000_003]])
    cos, sin = rotary.table(at, D, BASE, torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.float32
    theta = torch.tensor([BASE ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
    torch.testing.assert_close(cos.flatten().double(), (1_000_003 * theta).cos(), rtol=0, atol=1e-6)
    assert rotary.table(at, D, BASE, torch.float64)[0].dtype == torch.float64


def test_inputs_in_another_order_of_memory():
    """Queries and keys may be slices of one product."""
    whole = normal(S, B, N, 2, D)
    at = positions()
    agree(lambda w: rotary.rotate(w[:, :, :, 1], *rotary.table(at, D, BASE, w.dtype)),
          lambda w: turned(w[:, :, :, 1], at), [whole], torch.float64)


def test_gradcheck():
    cos, sin = rotary.table(positions(1)[:3], 4, BASE, torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotary.rotate(x, cos, sin), normal(3, 2, 2, 4).requires_grad_())
