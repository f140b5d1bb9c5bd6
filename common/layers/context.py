"""What every layer is built with: where it runs and how, as against what it is."""

from dataclasses import dataclass

import torch

from common.kernels import KernelSet, kernel_set
from common.layout import SERIAL, Group, Layout


@dataclass(frozen=True)
class Context:
    """kernels: the kernel set's name. dtype: of parameters and activations. overlap: tensor-parallel messages of a backward
    pass run beside its weight gradients."""

    layout: Layout = SERIAL
    kernels: str = "sdpa"
    sequence_parallel: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device | str | None = None
    overlap: bool = True

    @property
    def kernel_set(self) -> KernelSet:
        return kernel_set(self.kernels)

    @property
    def tp(self) -> Group:
        return self.layout.group("tp")

    @property
    def scattered(self) -> bool:
        """Whether the residual stream is cut along the sequence over the tensor axis."""
        return self.sequence_parallel and self.layout.size("tp") > 1

    @property
    def partial(self) -> tuple[str, ...]:
        """Axes that the gradients of replicated parameters acting on the residual stream must be summed over."""
        return ("tp",) if self.scattered else ()
