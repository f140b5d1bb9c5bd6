"""Which module an operation belongs to, in forward and in backward."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Place:
    """The dotted name of the innermost module at work.

    In forward, hooks on every module keep a stack. Autograd numbers its nodes in the order of their making,
    so noting the number whenever the stack changes tells later, for the node that runs in backward, which
    module made it. A gradient arriving at a parameter belongs to the module that holds the parameter.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._names: list[str] = []
        self._holders = {id(p): name.rpartition(".")[0] for name, p in model.named_parameters()}

    @contextmanager
    def following(self) -> Iterator["Place"]:
        """Hooks in place while inside."""
        hooks = []
        try:
            for name, module in self.model.named_modules():
                hooks.append(module.register_forward_pre_hook(lambda *_, name=name: self._enter(name)))
                hooks.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str) -> None:
        self._stack.append(name)
        self._note(name)

    def _leave(self) -> None:
        self._stack.pop()
        self._note(self._stack[-1] if self._stack else "")

    def _note(self, name: str) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._names.append(name)

    def now(self) -> str:
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        if hasattr(node, "variable"):
            return self._holders.get(id(node.variable), "")
        before = bisect_right(self._numbers, node._sequence_nr())
        return self._names[before - 1] if before else ""
