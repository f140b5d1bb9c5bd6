"""AdamW over main parameters: fp32 copies where the model's parameters are of a half type, else the parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.parallel.gradients import Gradients, Piece
from common.parameters import Slice
from common.ranges import ABOVE_ZERO, ABOVE_ZERO_OR_INF, BELOW_ONE, FROM_ZERO, check_ranges


@dataclass(frozen=True)
class AdamWConfig:
    """Decoupled weight decay (arXiv:1711.05101), on matrices alone: the parameters' facts say which.

    clip: largest global norm of the gradient; inf turns clipping off.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self):
        check_ranges(self, {"beta1": BELOW_ONE, "beta2": BELOW_ONE, "eps": ABOVE_ZERO, "clip": ABOVE_ZERO_OR_INF,
                            "weight_decay": FROM_ZERO})


class Optimizer:
    """Owns the main parameters and Adam's moments of what this rank updates; all in the dtype of the main gradients.

    main: by parameter name, 1-D; all of the rank's part, or a run of it where data ranks share the optimizer.
    """

    def __init__(self, gradients: Gradients, config: AdamWConfig):
        self.gradients = gradients
        self.pieces = {piece.name: piece for piece in gradients.pieces()}
        self.main = {name: self._main(piece) for name, piece in self.pieces.items()}
        groups = [{"params": [m for n, m in self.main.items() if self.pieces[n].facts.decay == on],
                   "weight_decay": config.weight_decay if on else 0.0} for on in (True, False)]
        self.adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, eps=config.eps,
                                      betas=(config.beta1, config.beta2), fused=True)

    @staticmethod
    def _main(piece: Piece) -> Tensor:
        main = piece.value
        if main.dtype != piece.gradient.dtype:
            main = main.to(piece.gradient.dtype)
        main.grad = piece.gradient
        return main

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = learning_rate
        self.adam.step()
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Makes the model's parameters, on every data rank, what the main parameters are."""
        for name, piece in self.pieces.items():
            if (main := self.main[name]) is not piece.value:
                piece.value.copy_(main)
        self.gradients.gather_values()

    def state(self) -> dict[str, dict[str, Slice]]:
        """What a checkpoint keeps, by kind and parameter name: this rank's runs of each."""
        self._ensure()
        kinds = {kind: {n: self.adam.state[m][kind] for n, m in self.main.items()} for kind in ("exp_avg", "exp_avg_sq")}
        kinds = {"parameters": {n: m.detach() for n, m in self.main.items()}, **kinds}
        return {kind: {n: Slice(x, self.pieces[n].start) for n, x in held.items()} for kind, held in kinds.items()}

    def _ensure(self) -> None:
        """Makes Adam's state before the first step, so that a checkpoint can be loaded into it."""
        for m in self.main.values():
            if not self.adam.state[m]:
                self.adam.state[m].update(step=torch.zeros((), dtype=torch.float32, device=m.device),
                                          exp_avg=torch.zeros_like(m), exp_avg_sq=torch.zeros_like(m))

    @property
    def steps(self) -> int:
        """Updates done so far; skipped steps do not count."""
        return int(next(iter(self.adam.state.values()))["step"]) if self.adam.state else 0

    @steps.setter
    def steps(self, value: int) -> None:
        self._ensure()
        for state in self.adam.state.values():
            state["step"].fill_(value)
