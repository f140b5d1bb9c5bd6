"""Which dtype holds what: parameters and activations, main parameters, main gradients."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """The half types keep fp32 main parameters and gradients (arXiv:1710.03740); fp64 is for tests."""

    name: str
    parameters: torch.dtype
    main: torch.dtype
    gradients: torch.dtype


PRECISIONS = {p.name: p for p in (
    Precision("fp32", torch.float32, torch.float32, torch.float32),
    Precision("bf16", torch.bfloat16, torch.float32, torch.float32),
    Precision("fp16", torch.float16, torch.float32, torch.float32),
    Precision("fp64", torch.float64, torch.float64, torch.float64),
)}


def precision(name: str) -> Precision:
    if name not in PRECISIONS:
        raise ValueError(f"precision={name!r}: use one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
