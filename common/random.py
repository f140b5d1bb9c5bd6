"""Random numbers as functions of what they are for, so that no layout changes them."""

import hashlib

import torch
from torch import Tensor


def key(*parts: int | str) -> int:
    """A 63-bit seed from the given parts: the same on every machine, in every process."""
    text = "/".join(str(p) for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def fill_random_bytes(words: Tensor, seed: int) -> None:
    """Fills an int64 tensor with uniform random bits; viewed as uint8 it holds eight random bytes a word."""
    words.random_(-(2**63), None, generator=_reseeded(seed, words.device))


_generators: dict[torch.device, torch.Generator] = {}


def _reseeded(seed: int, device: torch.device) -> torch.Generator:
    """One generator per device, seeded anew for each draw: making one costs more than seeding it."""
    if device not in _generators:
        _generators[device] = torch.Generator(device)
    return _generators[device].manual_seed(seed)
