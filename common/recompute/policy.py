"""Activation recomputation as a policy over named sites (arXiv:2205.05198, section 5; appendix C).

A site is a piece of a layer that can be run again. Recomputing a site frees the tensors listed under it.
"""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from common.recompute.meter import observe, tag
from common.recompute.replay import REPLAY

SITES = {
    "layer": "everything inside the layer; only its input stays",
    "attention.core": "attention.softmax, attention.softmax_mask, attention.dropped: all that grows with the square "
                      "of the sequence; queries, keys and values stay",
    "norm": "attention.norm_output, mlp.norm_output: made again from the norm's input, which stays anyway",
    "activation": "mlp.activation: made again from the activation's input, which stays anyway",
}
_keeping = False
DISCARDS = {"norm", "activation"}  # freed by dropping the output alone; the others by replaying the whole site
SHORT = {"none": (), "selective": ("attention.core",), "full": ("layer",)}


@dataclass(frozen=True)
class Policy:
    """Which sites are recomputed, in which layers. first=None means in all layers, n in the first n of the model."""

    sites: frozenset[str] = frozenset()
    first: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """none | selective | full | a list of sites such as norm,activation; each with :n for the first n layers."""
        names, colon, first = text.partition(":")
        sites = SHORT.get(names, tuple(s.strip() for s in names.split(",")))
        unknown = [s for s in sites if s not in SITES]
        if unknown:
            raise ValueError(f"recompute={text!r}: unknown name {unknown[0]!r}; use none, selective, full or a comma-"
                             f"separated list of {', '.join(SITES)}, with :n for the first n layers")
        if colon and not first.isdecimal():
            raise ValueError(f"recompute={text!r}: what follows the colon is a number of layers, as in full:4")
        return cls(frozenset(sites), int(first) if first else None)

    def at(self, layer: int) -> frozenset[str]:
        """Sites recomputed in the layer with this index in the whole model."""
        return self.sites if self.first is None or layer < self.first else frozenset()

    def describe(self) -> str:
        where = "all layers" if self.first is None else f"the first {self.first} layers"
        if not self.sites:
            return "nothing is recomputed"
        return "\n".join(f"{s}, in {where}: frees {SITES[s]}" for s in sorted(self.sites))


@contextmanager
def keeping():
    """Forward passes run inside keep everything, whatever the policy (arXiv:2205.05198, appendix C)."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before


class Recompute:
    """Runs the sites of one layer under its policy."""

    def __init__(self, sites: frozenset[str] = frozenset()):
        self.sites = sites
        self._dropped: dict[int, tuple[StorageWeakRef, Callable, tuple]] = {}

    def __call__(self, site: str, fn: Callable, *inputs):
        """fn(*inputs), its tensors kept or made again in backward as the policy says."""
        if site not in self.sites or _keeping or not torch.is_grad_enabled():
            return fn(*inputs)
        if site not in DISCARDS:
            for x in inputs:
                if isinstance(x, Tensor):
                    tag(x, f"{site}.input")
            # Under torch.compile these contexts would choose what to keep, and the compiler places the replay itself.
            marked = {} if torch.compiler.is_compiling() else {"context_fn": lambda: (nullcontext(), REPLAY)}
            return checkpoint(fn, *inputs, use_reentrant=False, preserve_rng_state=False, early_stop=False, **marked)
        output = fn(*inputs)
        ref = StorageWeakRef(output.untyped_storage())
        self._dropped[ref.cdata] = (ref, fn, inputs)
        return output

    @contextmanager
    def _discarding(self):
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._dropped.clear()

    def scope(self):
        """Entered around the layer: within it, outputs of discarded sites are not kept by whoever uses them."""
        return self._discarding() if self.sites & DISCARDS and not _keeping and torch.is_grad_enabled() else nullcontext()

    def _pack(self, x: Tensor):
        found = self._dropped.get(StorageWeakRef(x.untyped_storage()).cdata)
        if found is None:
            observe(x)
            return x
        _, fn, inputs = found
        return fn, inputs, x.shape

    @staticmethod
    def _unpack(packed):
        if isinstance(packed, Tensor):
            return packed
        fn, inputs, shape = packed
        with torch.no_grad(), REPLAY:
            return fn(*inputs).view(shape)
