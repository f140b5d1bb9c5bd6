"""Where a model is cut into stages."""

from itertools import pairwise

from common.models.pattern import Pattern


def cuts(pattern: Pattern, stages: int) -> tuple[tuple[int, int], ...]:
    """First and last-plus-one layer of each stage.

    Borders in the pattern are taken as they stand, and must then be one fewer than the stages; without any the layers are
    cut evenly, and where they do not divide the stages in the middle take one more, since the ends hold the embedding and
    the output. One stage is the whole model, whatever the borders. Raises ValueError when the cut cannot be made.
    """
    layers = len(pattern.units)
    if stages == 1:
        return ((0, layers),)
    if pattern.borders:
        if len(pattern.borders) != stages - 1:
            raise ValueError(f"the pattern has {len(pattern.borders)} borders |, {stages} stages (pp x chunks) need "
                             f"{stages - 1}, or none for an even cut")
        return tuple(pairwise((0, *pattern.borders, layers)))
    if layers < stages:
        raise ValueError(f"{layers} layers do not fill {stages} stages (pp x chunks): use at most {layers} stages")
    each, extra = divmod(layers, stages)
    larger = range((stages - extra) // 2, (stages - extra) // 2 + extra)
    found, at = [], 0
    for stage in range(stages):
        found.append((at, at := at + each + (stage in larger)))
    return tuple(found)
