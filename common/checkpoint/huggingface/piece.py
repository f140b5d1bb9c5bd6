"""Where a parameter stands in a checkpoint's tensors, so that a rank reads just its own rows and columns.

A parameter (outputs..., inputs...) is stored as one matrix (rows, columns) or, transposed, (columns, rows); a
bias as a vector. Several parameters may share a tensor (GPT-2's fused qkv), several tensors one parameter
(gate and up).
"""

import math
from dataclasses import dataclass

from torch import Tensor

from common.parameters import Facts


@dataclass(frozen=True)
class Piece:
    """The tensor `name` of a checkpoint, or one of `of` equal runs of its outputs, and what of a parameter it
    fills.

    part: (dim, index) of the parameter that it fills; None means all of it. inputs: how many trailing dims
    are inputs, 0 for a vector. transposed: stored as (inputs, outputs). place, of: it is run number `place`
    of `of` along outputs.
    """

    name: str
    inputs: int = 1
    part: tuple[int, int] | None = None
    transposed: bool = False
    place: int = 0
    of: int = 1

    def stored_shape(self, facts: Facts) -> tuple[int, ...]:
        """Shape of the whole tensor in the checkpoint."""
        outputs, inputs = self._split(facts.shape)
        return self._stored(math.prod(outputs) * self.of, math.prod(inputs))

    def stored_part(self, facts: Facts, first: int, last: int) -> tuple[slice, ...]:
        """The stored tensor's index for entries first .. last of the parameter's cut dim."""
        outputs, inputs = self._split(facts.shape)
        dim = self._dim(facts)
        rows, columns = (0, math.prod(outputs)), (0, math.prod(inputs))
        if dim == 0 and outputs:
            each = math.prod(outputs[1:])
            rows = first * each, last * each
        elif dim == len(outputs):
            each = math.prod(inputs[1:])
            columns = first * each, last * each
        else:
            raise AssertionError(f"a cut of dim {facts.dim} of {facts.shape} is not one run of {self.name}")
        start = self.place * math.prod(outputs)
        return self._stored(slice(start + rows[0], start + rows[1]), slice(*columns))

    def fill(self, parameter: Tensor, stored: Tensor, facts: Facts, count: int) -> None:
        """Copies a stored part of `count` entries of the cut dim to the beginning of that dim of the
        parameter."""
        dim = self._dim(facts)
        target = self._part(parameter).narrow(dim, 0, count)
        target.copy_((stored.t() if self.transposed else stored).reshape(target.shape))

    def place_in(self, stored: Tensor, whole: Tensor, facts: Facts) -> None:
        """Writes a whole parameter where it belongs in a whole stored tensor."""
        window = stored[self.stored_part(facts, 0, facts.shape[facts.dim])]
        outputs, inputs = self._split(facts.shape)
        matrix = self._part(whole).reshape(self._matrix(math.prod(outputs), math.prod(inputs)))
        window.copy_(matrix.t() if self.transposed else matrix)

    def _part(self, x: Tensor) -> Tensor:
        return x if self.part is None else x.select(*self.part)

    def _dim(self, facts: Facts) -> int:
        """The parameter's cut dim, counted within the part."""
        return facts.dim - (self.part is not None and self.part[0] < facts.dim)

    def _split(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The part's output dims and input dims."""
        if self.part is not None:
            shape = shape[:self.part[0]] + shape[self.part[0] + 1:]
        border = len(shape) - self.inputs
        return shape[:border], shape[border:]

    def _matrix(self, rows, columns) -> tuple:
        return (rows, columns) if self.inputs else (rows,)

    def _stored(self, rows, columns) -> tuple:
        return self._matrix(rows, columns)[::-1 if self.transposed else 1]
