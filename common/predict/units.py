"""Units of hardware records: what each measures and how much of the SI unit it is.

GB is 1e9 bytes and GiB 2^30; FLOP/s count a multiply-add as two.
"""

import math

_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
          "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
UNITS: dict[str, dict[str, float]] = {
    "memory": _BYTES,
    "bandwidth": {f"{unit}/s": size for unit, size in _BYTES.items()}
    | {"Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8, "Tbit/s": 1e12 / 8},
    "computing": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "frequency": {"Hz": 1.0, "MHz": 1e6, "GHz": 1e9},
    "power": {"W": 1.0, "kW": 1e3},
    "count": {"1": 1.0},
    "share": {"1": 1.0, "%": 1e-2},
}
TEXT, FLAG = "name", "yes or no"


def factor(unit: object, dimension: str) -> float:
    """What one `unit` is in SI (bytes, bytes/s, FLOP/s, s, Hz, W). Raises ValueError if it is none of `dimension`."""
    known = UNITS[dimension]
    if not isinstance(unit, str) or unit not in known:
        raise ValueError(f"has unit {unit!r}, which is none of {dimension}: use one of {', '.join(known)}")
    return known[unit]


def to_si(value: object, unit: object, dimension: str) -> float:
    """`value` in SI. Raises ValueError for another unit, and for a value that is negative or no number."""
    scale = factor(unit, dimension)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"is {value!r}: give a number of {unit} that is not negative")
    return value * scale
