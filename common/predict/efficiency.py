"""FLOPs of an iteration by the conventions in use, and what they make of a time.

Model FLOPs: what the mathematics asks for, nothing made again. Hardware FLOPs: all that runs, recomputation too; with
every layer recomputed they are those of arXiv:2104.04473, equation 3. Both count matrix products alone. Attention is
causal and computed over the whole square by unfused kernels; `whole` counts it so (arXiv:2205.05198, appendix A), `half`
counts the half that is not masked. Utilisation is of the dense peak in the precision of the products.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.models.config import LanguageModelConfig
from common.models.flops import model_flops
from common.models.pattern import LETTERS
from common.predict.pieces import Pass
from common.predict.spent import in_attention
from common.predict.stages import Stage

SCOPES, ATTENTIONS = ("model", "hardware"), ("whole", "half")


@dataclass(frozen=True)
class Work:
    """FLOPs of an iteration over all ranks, and those of them that the attention square takes."""

    model: float
    hardware: float
    model_square: float
    hardware_square: float

    def flops(self, scope: str = "model", attention: str = "whole") -> float:
        if scope not in SCOPES or attention not in ATTENTIONS:
            raise ValueError(f"scope={scope!r}, attention={attention!r}: use {' or '.join(SCOPES)}, and "
                             f"{' or '.join(ATTENTIONS)}")
        whole, square = (self.model, self.model_square) if scope == "model" else (self.hardware, self.hardware_square)
        return whole - square / 2 if attention == "half" else whole


def work(model: LanguageModelConfig, stages: Sequence[Stage], batch: int, micro_batch: int, tp: int) -> Work:
    """stages: of one tensor rank, whose operations are for one micro-batch."""
    layers = sum(LETTERS[letter] == "attention" for unit in model.layers.units for letter in unit)
    square = 3 * batch * layers * 4 * model.sequence**2 * model.heads * model.dim
    times = tp * batch // micro_batch
    parts = [(piece, many) for stage in stages for piece, many in stage.parts]
    return Work(model_flops(model, batch), times * sum(stage.flops for stage in stages), square,
                times * sum(many * _square(p) for piece, many in parts for p in (piece.forward, piece.backward)))


def _square(one: Pass) -> int:
    return sum(o.flops for o in one.operations if in_attention(o))
