"""What each precision keeps, by the paper's rule: main parameters and gradients at least in fp32."""

import pytest
import torch

from common.precision.policy import PRECISIONS, precision


@pytest.mark.parametrize("name, bits", [("fp16", 16), ("bf16", 16), ("fp32", 32), ("fp64", 64)])
def test_main_parameters_and_gradients_lose_nothing_of_the_parameters(name, bits):
    chosen = precision(name)
    assert torch.finfo(chosen.parameters).bits == bits
    for dtype in (chosen.main, chosen.gradients):
        assert torch.finfo(dtype).bits == max(bits, 32)
        assert torch.promote_types(dtype, chosen.parameters) == dtype
    assert chosen.name == name


def test_the_two_half_types_differ_in_range_and_precision():
    bf16, fp16 = (torch.finfo(PRECISIONS[name].parameters) for name in ("bf16", "fp16"))
    assert bf16.max > 1e38 > 65504 == fp16.max and bf16.eps > fp16.eps


def test_an_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match="precision='fp8': use one of fp32, bf16, fp16, fp64"):
        precision("fp8")
