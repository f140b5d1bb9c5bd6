"""How long an operation of a trace takes on an accelerator, by itself on a busy device.

Matrix products by their shape (common/predict/products.py), fused attention by its length and head dim, everything else by
the bytes that it moves. Where a record has measured an operation by name in several sizes, that is what it takes.
"""

import math
from collections import defaultdict

from common.predict import products
from common.predict.constants import Constants, constants
from common.predict.machine import Accelerator, Kernel
from common.predict.products import Shape
from common.predict.tables import between
from common.trace.record import ABSORBED, Operation

PRECISION = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8",
             "float8_e5m2": "fp8"}
READS_TWICE = {
    # Gradients of the input in one kernel, of weight and bias in another: apex, csrc/layer_norm_cuda_kernel.cu, and
    # PyTorch, aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    "common.layer_norm_backward", "aten.native_layer_norm_backward", "common.rms_norm_backward",
}
ANY = "aten.mul"  # on a CPU, what operations cost that were not measured by name
CAUSAL = 0.5  # of the square that traces count, what fused attention computes under the causal mask


class Compute:
    """The cost of operations on one accelerator. bandwidth: bytes/s that kernels get: of a measured copy, else the usual
    share of the memory's."""

    def __init__(self, accelerator: Accelerator, values: Constants | None = None):
        self.accelerator, self.constants = accelerator, values or constants()
        copies = [k.bytes / k.seconds for k in accelerator.kernels if k.name == "aten.copy_"]
        self.bandwidth = max(copies) if copies else self.constants.kernel_bandwidth * accelerator.memory_bandwidth
        by_name: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in accelerator.kernels:
            by_name[kernel.name].append(kernel)
        self._measured = {n: sorted(rows, key=lambda k: k.bytes) for n, rows in by_name.items() if len(rows) > 1}
        self._seen: dict[tuple[Shape, str, int], float] = {}

    def seconds(self, operation: Operation) -> float:
        """Seconds that a busy device takes for it, its launch included."""
        if operation.name == ABSORBED and self.accelerator.tiles:
            return 0.0
        if operation.parts and not self.accelerator.tiles:  # a CPU runs them one by one
            return sum(map(self.seconds, operation.parts))
        if operation.name in self._measured:
            return _between(operation, self._measured[operation.name])
        if "flash_attention" in operation.name:
            return self._attention(operation)
        if operation.flops:
            return self._products(operation)
        if not self.accelerator.tiles and ANY in self._measured:
            return _between(operation, self._measured[ANY])
        return self._moving(operation)

    def _moving(self, operation: Operation) -> float:
        """Of kernels that are bound by memory. Numbers that fit the last cache are not treated apart."""
        moved = operation.written + operation.read * (2 if operation.name in READS_TWICE else 1)
        return moved / self.bandwidth + self.constants.kernel_start + self.accelerator.launch_overhead

    def _products(self, operation: Operation) -> float:
        parts = [part for part in operation.parts if part.flops] or [operation]
        moved = operation.read + operation.written
        shapes = products.joined([shape_of(part, operation) for part in parts])
        total = sum(shape.flops for shape in shapes)
        precision = PRECISION[parts[0].dtype]
        return sum(self.product(shape, precision, moved * shape.flops // total) for shape in shapes)

    def product(self, shape: Shape, precision: str, moved: int) -> float:
        """Seconds of a matrix product that reads and writes `moved` bytes."""
        key = shape, precision, moved
        if key not in self._seen:
            self._seen[key] = products.seconds(*key, self.accelerator, self.constants, self.bandwidth)
        return self._seen[key]

    def _attention(self, operation: Operation) -> float:
        """Fused attention over the causal half of the square.

        Its rate tends to a share of the peak as sequence and head dim grow (arXiv:2407.08608, figures 5 and 6); what it reads
        and writes meanwhile is in those measured rates.
        """
        query = next(shape for shape in operation.inputs if len(shape) == 4)
        length, dim = query[-2:]
        generation = self.constants.generation(self.accelerator.name)
        peak = self.accelerator.peak_of(PRECISION[operation.dtype])
        share = 1.0
        if generation is not None:
            share = generation.backward if "backward" in operation.name else generation.forward
        share *= length / (length + self.constants.attention_start) * dim / (dim + self.constants.attention_dim)
        return max(CAUSAL * operation.flops / (peak * share), self._moving(operation))


def shape_of(product: Operation, whole: Operation | None = None) -> Shape:
    """Sizes of a matrix product from its operands. whole: the kernel that it is part of, where it is."""
    matrices = [shape for shape in product.inputs if len(shape) >= 2]
    left, right = matrices[:2] if "scaled" in product.name else matrices[-2:]
    *batch, m, k = left
    n = right[-1]
    layout = "nt" if product.phase in ("forward", "recompute") else "nn"
    if whole is not None and whole.name == "common.weight_gradient":
        layout = "tn"
    return Shape(m, n, k, math.prod(batch), layout)


def _between(operation: Operation, rows: list[Kernel]) -> float:
    """Seconds from measurements of the same operation in other sizes; beyond the largest it goes on at its rate.

    Of products, which share a name over all shapes, rows of about as many FLOPs a byte count.
    """
    size = max(operation.read + operation.written, 1)
    if operation.flops:
        dense = operation.flops / size
        rows = sorted(rows, key=lambda k: abs(math.log(max(k.flops, 1) / k.bytes / dense)))[:2]
        rate = math.exp(sum(math.log(k.flops / k.seconds) for k in rows) / len(rows))
        return operation.flops / rate
    least = min(max(size / rows[0].bytes, 0.1), 1.0)  # of the smallest, what smaller ones take
    return least * between(size, rows)
