import pytest
import torch
from torch.nn import functional

from common.kernels import KERNEL_SETS
from common.layers.context import Context
from common.layers.mlp import MLP
from common.layers.norm import Norm
from common.models.config import LanguageModelConfig
from common.recompute.policy import Recompute
from tests.common.kernels.agreement import agree, normal

TORCH = {"gelu": functional.gelu, "gelu_tanh": lambda h: functional.gelu(h, approximate="tanh"),
         "squared_relu": lambda h: functional.relu(h).square()}


def with_parameters(layer, values):
    """The layer as a function of its input and its parameters."""
    return lambda x, *p: torch.func.functional_call(layer, dict(zip(values, p, strict=True)), (x, None))


@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("name", [*TORCH, "swiglu"])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_two_products_with_an_activation_between(name, kernels, bias):
    """ffn 13 and hidden 6; gated: gate and value are the halves of one weight."""
    config = LanguageModelConfig(hidden=6, heads=2, ffn=13, activation=name, bias=bias)
    layer = MLP(config, Context(kernels=kernels, dtype=torch.float64), 0, Recompute())
    names = [n for n, _ in layer.named_parameters()]
    values = [normal(*p.shape, seed=i + 2) * 0.7 for i, (_, p) in enumerate(layer.named_parameters())]

    def plain(x, *parameters):
        p = dict(zip(names, parameters, strict=True))
        w, b = p["up.weight"], p.get("up.weight_bias")
        if name == "swiglu":
            gate, value = (functional.linear(x, w[i], None if b is None else b[i]) for i in range(2))
            return functional.linear(functional.silu(gate) * value, p["down.weight"], p.get("down.bias"))
        return functional.linear(
            TORCH[name](functional.linear(x, w, b)), p["down.weight"], p.get("down.bias")
        )

    agree(with_parameters(layer, names), plain, [normal(5, 3, 6), *values], torch.float64)


@pytest.mark.parametrize("kind, expected", [
    ("layernorm", lambda x, w, b: functional.layer_norm(x, (6,), w, b, 1e-3)),
    ("rmsnorm", lambda x, w: functional.rms_norm(x, (6,), w, 1e-3))])
def test_norms_use_their_eps(kind, expected):
    layer = Norm(Context(dtype=torch.float64), kind, 6, 1e-3)
    names = [n for n, _ in layer.named_parameters()]
    agree(lambda x, *p: torch.func.functional_call(layer, dict(zip(names, p, strict=True)), (x,)), expected,
          [normal(5, 3, 6) * 0.05, *(normal(6, seed=i + 2) for i in range(len(names)))], torch.float64)
