"""Layer patterns: `[*-]*96` is 96 layers of attention then MLP.

A unit in brackets is one layer of the papers; `*n` behind it repeats it; `|` marks a stage border where the even split is
not wanted. Letters: * attention, - MLP.
"""

import re
from dataclasses import dataclass

MOST_LAYERS = 10_000
LETTERS = {"*": "attention", "-": "mlp"}
_TOKEN = re.compile(r"\s*(?:\[(?P<unit>[^\[\]|]*)\](?:\*(?P<times>\d+))?|(?P<border>\|))")


@dataclass(frozen=True)
class Pattern:
    """units: one string of letters per layer. borders: indices of the layers before which a stage ends."""

    units: tuple[str, ...]
    borders: tuple[int, ...] = ()


def parse(text: str) -> Pattern:
    units: list[str] = []
    borders: list[int] = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        found = _TOKEN.match(stripped, at)
        if found is None:
            raise ValueError(f"pattern={text!r}: cannot read {stripped[at:]!r}; write layers in brackets, "
                             "such as [*-]*12, with | between stages")
        at = found.end()
        if found["border"]:
            if not units or borders[-1:] == [len(units)]:
                raise ValueError(f"pattern={text!r}: a border | needs a layer before it")
            borders.append(len(units))
            continue
        unit = found["unit"].replace(" ", "")
        wrong = [c for c in unit if c not in LETTERS]
        if wrong or not unit:
            known = ", ".join(f"{c} ({n})" for c, n in LETTERS.items())
            raise ValueError(f"pattern={text!r}: {'unknown letter ' + repr(wrong[0]) if wrong else 'an empty layer []'}; "
                             f"letters are {known}")
        times = found["times"] or "1"
        if len(times) > 9 or not 1 <= int(times) <= MOST_LAYERS - len(units):
            raise ValueError(f"pattern={text!r}: a layer repeated {times} times; use at least 1, and at most "
                             f"{MOST_LAYERS:,} layers in all")
        units += [unit] * int(times)
    if not units:
        raise ValueError(f"pattern={text!r}: no layer; write at least one, such as [*-]")
    if borders and borders[-1] == len(units):
        raise ValueError(f"pattern={text!r}: a border | needs a layer after it")
    return Pattern(tuple(units), tuple(borders))
