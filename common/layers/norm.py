"""LayerNorm and RMSNorm as layers. Under sequence parallelism each rank normalises its tokens, so the weights'
gradients are partial sums over the tensor axis."""

from torch import Tensor, nn

from common.layers.context import Context
from common.parameters import Constant, Facts, parameter


class Norm(nn.Module):
    """x (s, B, H) -> (s, B, H). kind: layernorm (weight and bias) or rmsnorm (weight)."""

    def __init__(self, context: Context, kind: str, hidden: int, eps: float):
        super().__init__()
        self.context, self.eps = context, eps
        self.weight = self._parameter(hidden, 1.0)
        self.bias = self._parameter(hidden, 0.0) if kind == "layernorm" else None

    def _parameter(self, hidden: int, value: float):
        c = self.context
        facts = Facts((hidden,), partial=c.partial, decay=False, init=Constant(value))
        return parameter(facts, c.layout, c.dtype, c.device)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.context.kernel_set
        if self.bias is None:
            return kernels.rms_norm(x, self.weight, self.eps)
        return kernels.layer_norm(x, self.weight, self.bias, self.eps)
