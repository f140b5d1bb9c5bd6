"""Two functions on the same inputs: outputs and gradients, compared per tensor by relative 2-norm."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.oracles.parity import deviations

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


def cotangent(shape: Sequence[int]) -> Tensor:
    """The gradient of an output: fp64 that bf16 holds, so the same numbers in every dtype."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return drawn.to(torch.bfloat16).double()


def run(function: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Output and the gradient of each input, for a random gradient of the output; all must be of `dtype`."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    output = function(*leaves)
    output.backward(cotangent(output.shape).to(output.dtype))
    found = {"output": output.detach()} | {f"gradient {i}": x.grad for i, x in enumerate(leaves)}
    for name, x in found.items():
        assert x.dtype == dtype, f"{name} is {x.dtype}"
        assert torch.isfinite(x).all(), f"{name} is not finite"
    return found


def agree(
    fast: Callable[..., Tensor],
    slow: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
    tolerance: float | None = None,
) -> None:
    """`fast` in `dtype` against `slow` in fp64, on the same numbers."""
    inputs = [x.to(dtype).double() for x in inputs]
    apart = deviations(run(fast, inputs, dtype), run(slow, inputs, torch.float64))
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    wrong = {n: d for n, d in apart.items() if not d <= tolerance}
    assert not wrong, f"{dtype}: further apart than {tolerance}: {wrong}"


def normal(*shape: int, seed: int = 1) -> Tensor:
    """fp64 standard normal numbers, the same on every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
