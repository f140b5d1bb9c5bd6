"""Self-attention, cut by heads over the tensor axis; multi-head and grouped-query.

Shapes: s residual tokens of this rank, S whole sequence, B micro-batch, H hidden, N heads and G groups of this rank,
D head dim.
"""

import torch
from torch import Tensor, nn

from common.kernels.dropout import Site, attention_mask_BNQK
from common.kernels.rotary import table
from common.layers.context import Context
from common.layers.linear import ColumnParallelLinear, RowParallelLinear
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.recompute.meter import tag
from common.recompute.policy import Recompute


class Attention(nn.Module):
    """x (s, B, H) -> (s, B, H), causal, within documents where the record names them.

    Queries (heads, D, H) and keys with values (groups, 2, D, H) are two weights over one gathered input, so that every cut
    is a plain cut of dim 0, fewer groups than tensor ranks included: then tp / groups ranks hold copies of a group.
    name: of this branch of the layer; it keys the dropout mask.
    """

    def __init__(self, config: LanguageModelConfig, context: Context, layer: int, recompute: Recompute,
                 name: str = "attention"):
        super().__init__()
        self.config, self.context, self.layer, self.recompute, self.name = config, context, layer, recompute, name
        tp, groups, dim = context.tp, config.groups, config.dim
        parts = groups if tp.size > groups else None
        self.qkv = ColumnParallelLinear(
            context, ("q", "kv"), ((config.heads, dim, config.hidden), (groups, 2, dim, config.hidden)),
            config.bias or config.qkv_bias, config.init_std, "attention.qkv_input", parts=(None, parts))
        self.output = RowParallelLinear(context, config.hidden, (config.heads, dim), config.bias, config.output_std,
                                        "attention.output_input")

    def forward(self, x_sBH: Tensor, record: Record) -> Tensor:
        q_SBND, kv_SBG2D = self.qkv(x_sBH)
        k_SBGD, v_SBGD = kv_SBG2D.unbind(3)
        if self.config.positions == "rotary":
            cos, sin = self._tables(record, x_sBH.dtype)
            q_SBND, k_SBGD = (self.context.kernel_set.rotate(x, cos, sin) for x in (q_SBND, k_SBGD))
            v_SBGD = v_SBGD.contiguous()  # else the values would keep the unrotated keys beside them alive
        tag(q_SBND, "attention.q"), tag(k_SBGD, "attention.k"), tag(v_SBGD, "attention.v")
        context_SBND = self.recompute("attention.core", self._core, q_SBND, k_SBGD, v_SBGD, record)
        return self.output(context_SBND)

    def _tables(self, record: Record, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        dim, base = self.config.dim, self.config.rotary_base
        cos, sin = record.once(("rotary", dim, base, dtype), lambda: table(record.positions.t(), dim, base, dtype))
        return tag(cos, "rotary.table"), tag(sin, "rotary.table")

    def _core(self, q: Tensor, k: Tensor, v: Tensor, record: Record) -> Tensor:
        p = self.config.attention_dropout if self.training else 0.0
        keep = None
        if p:
            site = Site(record.seed, record.step, record.samples, self.layer, self.name)
            first_head = self.context.tp.index * q.shape[2]

            def keep(shape):
                return attention_mask_BNQK(site, p, shape, first_head, q.device)
        return self.context.kernel_set.attention(q, k, v, record.documents, keep, p)
