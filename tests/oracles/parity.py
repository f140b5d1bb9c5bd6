"""How far two sets of tensors are apart, as the design compares them."""

import torch
from torch import Tensor


def deviations(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """‖a - b‖ / max(‖b‖, 1e-3 x global norm / sqrt(tensors)), per tensor: some gradients are zero by
    mathematics."""
    assert ours.keys() == theirs.keys(), f"{ours.keys() ^ theirs.keys()} stand on one side only"
    ours, theirs = ({n: x.detach().double() for n, x in side.items()} for side in (ours, theirs))
    floor = 1e-3 * torch.stack([b.norm() for b in theirs.values()]).norm() / len(theirs) ** 0.5
    return {n: float((ours[n] - b).norm() / torch.maximum(b.norm(), floor)) for n, b in theirs.items()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Every tensor within `tolerance`; NaN fails."""
    wrong = {n: d for n, d in deviations(ours, theirs).items() if not d <= tolerance}
    assert not wrong, f"further apart than {tolerance}: {wrong}"
