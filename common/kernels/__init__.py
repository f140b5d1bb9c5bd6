"""Kernel sets: one name for how every operation runs. A recipe, a trace and a prediction name the set they used.

reference: each operation written as its paper's equations. paper: the fused element-wise kernels and unfused attention
of 2021-22. unfused: the same before the fusions of arXiv:2104.04473, section 4.2. sdpa: the default; as paper, with fused
attention.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from common.kernels import activation, attention, dropout, norm, rotary


@dataclass(frozen=True)
class KernelSet:
    name: str
    attention: Callable
    layer_norm: Callable
    rms_norm: Callable
    rotate: Callable
    activations: dict[str, Callable]
    add_dropped: Callable
    keeps_scores: bool  # whether attention keeps tensors that grow with the square of the sequence

    def __deepcopy__(self, memo):
        return self


_reference = KernelSet(
    "reference", attention.attention_reference, norm.layer_norm_reference, norm.rms_norm_reference,
    rotary.rotate_reference,
    {"gelu": activation.gelu_reference, "gelu_tanh": activation.gelu_tanh_reference,
     "squared_relu": activation.squared_relu_reference, "swiglu": activation.swiglu_reference},
    dropout.add_dropped_in_steps, keeps_scores=True,
)
_paper = KernelSet(
    "paper", attention.attention_unfused, norm.layer_norm, norm.rms_norm, rotary.rotate,
    {"gelu": activation.gelu, "gelu_tanh": activation.gelu_tanh, "squared_relu": activation.squared_relu,
     "swiglu": activation.swiglu},
    dropout.add_dropped, keeps_scores=True,
)
KERNEL_SETS = {k.name: k for k in (
    _reference,
    replace(_paper, name="unfused", attention=attention.attention_unscaled, add_dropped=dropout.add_dropped_in_steps),
    _paper,
    replace(_paper, name="sdpa", attention=attention.attention_sdpa, keeps_scores=False),
)}
GATED = {"swiglu"}


def kernel_set(name: str) -> KernelSet:
    if name not in KERNEL_SETS:
        raise ValueError(f"kernels={name!r}: use one of {', '.join(KERNEL_SETS)}")
    return KERNEL_SETS[name]
