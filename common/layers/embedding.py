"""Token embedding cut by vocabulary, learned positions, embedding dropout.

Shapes: s residual tokens of this rank, S whole sequence, B micro-batch, H hidden.
"""

import torch
from torch import Tensor, nn

from common.collectives import local_slice, reduce_from, scatter_sum
from common.kernels.dropout import Site, dropout, hidden_mask_SBH
from common.kernels.region import fused
from common.layers.context import Context
from common.models.config import LanguageModelConfig
from common.models.record import Record
from common.parameters import Facts, Normal, parameter
from common.recompute.meter import tag


class Embedding(nn.Module):
    """tokens (B, S) -> (s, B, H). Each tensor rank looks up the rows it holds; the sum over ranks is the embedding.

    copied: another stage holds a copy of the token table, as its output projection.
    """

    def __init__(self, config: LanguageModelConfig, context: Context, copied: bool = False):
        super().__init__()
        self.config, self.context = config, context
        init = Normal(config.init_std)
        facts = Facts((config.vocab, config.hidden), "tp", 0, copied=copied, init=init)
        self.tokens = parameter(facts, context.layout, context.dtype, context.device)
        self.positions = None
        if config.positions == "learned":
            facts = Facts((config.sequence, config.hidden), partial=context.partial, init=init)
            self.positions = parameter(facts, context.layout, context.dtype, context.device)

    def forward(self, record: Record) -> Tensor:
        group, scattered = self.context.tp, self.context.scattered
        tokens_SB = tag(record.tokens.t(), "embedding.indices")
        if group.size == 1:
            x = nn.functional.embedding(tokens_SB, self.tokens)
        else:
            rows = self.tokens.shape[0]
            local = tokens_SB - group.index * rows
            mine = (local >= 0) & (local < rows)
            local = torch.where(mine, local, 0)
            tag(mine, "embedding.indices"), tag(local, "embedding.indices")
            x = nn.functional.embedding(local, self.tokens) * mine[..., None]
            x = scatter_sum(x, group) if scattered else reduce_from(x, group)
        if self.positions is not None:
            positions_SB = tag(record.positions.t(), "embedding.indices")
            x = x + nn.functional.embedding(local_slice(positions_SB, group) if scattered else positions_SB,
                                            self.positions)
        p = self.config.dropout
        if p and self.training:
            site = Site(record.seed, record.step, record.samples, -1, "embedding")
            first = group.index * x.shape[0] if scattered else 0
            with fused("dropout"):
                keep = hidden_mask_SBH(site, p, x.shape, first, record.length, x.device)
                return dropout(x, keep, p, "embedding.dropout_mask")
        return x
