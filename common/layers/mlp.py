"""The MLP, cut by inner features over the tensor axis."""

from torch import Tensor, nn

from common.layers.context import Context
from common.layers.linear import ColumnParallelLinear, RowParallelLinear
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.recompute.meter import tag
from common.recompute.policy import Recompute


class MLP(nn.Module):
    """x (s, B, H) -> (s, B, H). Gated activations hold gate and value as one weight (2, F, H), cut along F."""

    def __init__(self, config: LanguageModelConfig, context: Context, layer: int, recompute: Recompute,
                 name: str = "mlp"):
        super().__init__()
        self.activation = context.kernel_set.activations[config.activation]
        self.recompute = recompute
        gated = config.gated
        shape = (2, config.inner, config.hidden) if gated else (config.inner, config.hidden)
        self.up = ColumnParallelLinear(context, ("weight",), (shape,), config.bias, config.init_std, "mlp.up_input",
                                       dims=(1 if gated else 0,))
        self.down = RowParallelLinear(context, config.hidden, (config.inner,), config.bias, config.output_std,
                                      "mlp.down_input")

    def forward(self, x_sBH: Tensor, record: Record) -> Tensor:
        (h,) = self.up(x_sBH)
        a_SBF = self.recompute("activation", self.activation, tag(h, "mlp.activation_input"))
        return self.down(a_SBF)
