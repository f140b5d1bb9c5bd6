"""A keyed permutation of 0 to n - 1 that is computed, not stored.

A Feistel network over the next even number of bits, walked along its cycle until it lands inside the range
(Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). Python integers: numpy takes ten times as
long for one value, and one value is what is looked up.
"""

from functools import lru_cache

ROUNDS = 8
MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(x: int) -> int:
    """The splitmix64 finaliser (Steele et al. 2014) of a 64-bit value."""
    x = (x ^ x >> 30) * FIRST & MASK64
    x = (x ^ x >> 27) * SECOND & MASK64
    return x ^ x >> 31


@lru_cache(maxsize=1 << 14)
def round_keys(*key: int) -> tuple[int, ...]:
    """ROUNDS 64-bit values from any number of non-negative integers."""
    state = 0
    for part in key:
        while True:
            state = mix(state + (part & MASK64) + GOLDEN & MASK64)
            part >>= 64
            if not part:
                break
    return tuple(mix(state + i * GOLDEN & MASK64) for i in range(1, ROUNDS + 1))


def permute(x: int, n: int, *key: int) -> int:
    """Where the key's permutation of 0 to n - 1 sends x; n < 2^62."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    low, keys = (1 << half) - 1, round_keys(*key)
    while True:
        left, right = x >> half, x & low
        for round_key in keys:  # mix, written out: a call costs as much as the mixing
            m = right ^ round_key
            m = (m ^ m >> 30) * FIRST & MASK64
            m = (m ^ m >> 27) * SECOND & MASK64
            left, right = right, left ^ (m ^ m >> 31) & low
        x = left << half | right
        if x < n:
            return x
