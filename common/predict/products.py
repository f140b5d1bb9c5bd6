"""How long a matrix product takes: tiles over multiprocessors, or the measured ones nearest to it.

The library cuts the (m, n) result into tiles, one multiprocessor works on one tile at a time, and all start together: the
last wave is often part empty (NVIDIA Matrix Multiplication Background User's Guide, section 2.3). Small results with a
long k are cut along k too. The library's choice among tiles is taken to be the best one. Operands that come from memory
more slowly than they are multiplied take their time as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.predict.constants import Constants
from common.predict.machine import Accelerator, Product

LONG = 1e12  # FLOPs of a product that runs for milliseconds on any of today's accelerators
MANY = 30  # measured products of one precision that say more than the tiles do
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
LEAST_K = 256  # what a cut along k leaves at least
HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class Shape:
    """`batch` products (m, k) x (k, n). layout: see common/predict/machine.py."""

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "nt"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def joined(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Products that one kernel does at once, as one product where they have two of three sizes in common."""
    first = shapes[0]
    if any((s.batch, s.layout) != (first.batch, first.layout) for s in shapes):
        return tuple(shapes)
    sizes = {name: [getattr(s, name) for s in shapes] for name in "mnk"}
    differ = [name for name, values in sizes.items() if len(set(values)) > 1]
    if len(differ) > 1:
        return tuple(shapes)
    longer = differ[0] if differ else "n"
    sizes = {name: sum(values) if name == longer else values[0] for name, values in sizes.items()}
    return (Shape(**sizes, batch=first.batch, layout=first.layout),)


def seconds(shape: Shape, precision: str, moved: int, accelerator: Accelerator, constants: Constants,
            bandwidth: float) -> float:
    """Seconds of one kernel. moved: bytes read and written; bandwidth: bytes/s that kernels get.

    Raises ValueError for a precision that the accelerator does not have.
    """
    peak = accelerator.peak_of(precision)
    known = [p for p in accelerator.products if p.precision == precision]
    if not accelerator.tiles or len(known) >= MANY:
        rate = _nearest(shape, known) if known else peak
        return max(shape.flops / rate, moved / bandwidth) + accelerator.launch_overhead
    rate = sustained(accelerator, precision, constants)
    compute = min(_tiled(shape, tile, split, rate, accelerator, constants, bandwidth)
                  for tile in accelerator.tiles for split in SPLITS
                  if split == 1 or shape.k >= split * LEAST_K)
    p = constants.product_overlap
    return (compute**p + (moved / bandwidth) ** p) ** (1 / p) + constants.product_start


def sustained(accelerator: Accelerator, precision: str, constants: Constants) -> float:
    """FLOP/s of products that run for long, which the power limit holds below the dense peak.

    Of measured products the longest says it, or the best of short ones with what they lose in the long run; else what
    the accelerator's generation does, with its power limit.
    """
    peak = accelerator.peak_of(precision)
    alike = HALF if precision in HALF else (precision,)
    known = [p for p in accelerator.products if p.precision in alike]
    long = [p for p in known if 2 * p.m * p.n * p.k >= LONG]
    if long:
        return max(p.rate for p in long)
    if known:
        return constants.sustained * max(p.rate for p in known)
    generation = constants.generation(accelerator.name)
    if generation is None:
        return peak
    limit = (accelerator.power or generation.power) / generation.power
    return peak * min(1.0, generation.rate * limit**constants.power)


def _tiled(shape: Shape, tile: tuple[int, int], split: int, rate: float, accelerator: Accelerator,
           constants: Constants, bandwidth: float) -> float:
    """Seconds of the multiprocessors with this tile, k cut in `split` parts whose sums are added in fp32."""
    m, n = tile
    tiles = math.ceil(shape.m / m) * math.ceil(shape.n / n) * shape.batch * split
    waves = math.ceil(tiles / accelerator.multiprocessors)
    best_m, best_n = accelerator.tiles[0]
    edge = constants.product_edge
    share = (1 + edge * (1 / best_m + 1 / best_n)) / (1 + edge * (1 / m + 1 / n))
    k = math.ceil(shape.k / split) + constants.product_ramp
    time = waves * 2 * m * n * k * accelerator.multiprocessors / (rate * share)
    if split > 1:
        time += split * shape.batch * shape.m * shape.n * 4 / bandwidth + accelerator.launch_overhead
    return time


def _nearest(shape: Shape, known: Sequence[Product]) -> float:
    """FLOP/s of measured products, nearer ones counting more; those of the same layout where there are any.

    Distances are ratios of sizes. A batch is taken as so many rows more.
    """
    same = [p for p in known if p.layout == shape.layout] or known
    at = [math.log(x) for x in (shape.m * shape.batch, shape.n, shape.k)]
    total = weights = 0.0
    for p in same:
        far = sum((a - math.log(x)) ** 2 for a, x in zip(at, (p.m, p.n, p.k), strict=True))
        weight = 1 / (far + 0.01) ** 2
        total += weight * math.log(p.rate)
        weights += weight
    return math.exp(total / weights)
