"""A keyed permutation of 0 to n - 1 that is computed, not stored.

A Feistel network over the next even number of bits, walked along its cycle until it lands inside the range
(Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains").
"""

import numpy as np

ROUNDS = 8
MASK64 = (1 << 64) - 1


def mix(x: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele et al. 2014) of uint64 values."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def round_keys(*key: int) -> np.ndarray:
    """uint64 (ROUNDS,) from any number of non-negative integers."""
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        while True:
            state = mix(state + np.array([part & MASK64], dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))
            part >>= 64
            if not part:
                break
    return mix(state + np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def permute(x: np.ndarray, n: int, *key: int) -> np.ndarray:
    """Where the key's permutation of 0 to n - 1 sends each x; int64 in and out, any shape, n < 2^62."""
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    keys = round_keys(*key)
    out = x.astype(np.uint64).reshape(-1)
    outside = np.arange(out.size)
    while outside.size:
        left, right = out[outside] >> half, out[outside] & low
        for round_key in keys:
            left, right = right, left ^ (mix(right ^ round_key) & low)
        out[outside] = (left << half) | right
        outside = outside[out[outside] >= n]
    return out.astype(np.int64).reshape(x.shape)
