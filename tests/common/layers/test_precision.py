"""Which numbers a step is made of: fp64 stays fp64, half types go up where they must."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.kernels import KERNEL_SETS
from tests.common.layers.small import GPT, LLAMA, build, loss, record
from tests.oracles.parity import deviations

CONFIGS = {"gpt": GPT, "llama": LLAMA, "relu": replace(GPT, activation="squared_relu", positions="rotary"),
           "gelu": replace(LLAMA, activation="gelu", qkv_bias=True, attention_dropout=0.2, norm="layernorm")}


class Dtypes(TorchDispatchMode):
    """Floating-point types of all that operations give out."""

    def __init__(self):
        super().__init__()
        self.seen: dict[torch.dtype, set[str]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.seen.setdefault(x.dtype, set()).add(str(func))
        return out


def step_dtypes(model, batch) -> Dtypes:
    with Dtypes() as mode:
        loss(model, batch).backward()
    return mode


@pytest.mark.parametrize("recompute", ["none", "full", "norm,activation"])
@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("name", CONFIGS)
def test_fp64_stays_fp64(name, kernels, recompute):
    """No operation of a forward and backward pass gives out anything less."""
    config = CONFIGS[name]
    seen = step_dtypes(build(config, torch.float64, kernels, recompute), record(config)).seen
    assert set(seen) == {torch.float64}, seen.get(torch.float32)


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("name", CONFIGS)
def test_bf16_has_an_fp32_loss_and_nothing_wider(name, kernels):
    """Positions' angles are fp64: they are exact to the last position."""
    config = CONFIGS[name]
    model = build(config, torch.bfloat16, kernels)
    assert loss(model, record(config)).dtype == torch.float32
    seen = step_dtypes(model, record(config)).seen
    assert {torch.bfloat16, torch.float32} <= set(seen) <= {torch.bfloat16, torch.float32, torch.float64}
    wide = {op for op in seen.get(torch.float64, set())}
    assert bool(wide) == (config.positions == "rotary")
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("name", CONFIGS)
def test_lower_precision_is_near_fp64(name, kernels, dtype, tolerance):
    """Dropout on: its masks do not depend on the type."""
    config = CONFIGS[name]
    found = []
    for kind in (dtype, torch.float64):
        model = build(config, torch.float64, kernels).to(dtype).to(kind)  # the same numbers
        value = loss(model, record(config))
        value.backward()
        found.append({"loss": value} | {n: p.grad for n, p in model.named_parameters()})
    apart = deviations(*found)
    assert max(apart.values()) <= tolerance, apart
