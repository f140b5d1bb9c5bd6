"""Cuts of a model into stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.models.pattern import Pattern, parse
from common.pipeline.stages import cuts


@given(st.integers(1, 40), st.data())
def test_even_cuts_cover_every_layer_once_and_differ_by_one_at_most(layers, data):
    stages = data.draw(st.integers(1, layers))
    found = cuts(Pattern(("*-",) * layers), stages)
    assert [i for first, last in found for i in range(first, last)] == list(range(layers))
    sizes = [last - first for first, last in found]
    assert len(found) == stages and max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)  # the last holds the output


def test_borders_stand_as_written():
    pattern = parse("[*-]*3|[*]|[-][*-]")
    assert cuts(pattern, 3) == ((0, 3), (3, 4), (4, 6))
    assert cuts(pattern, 1) == ((0, 6),)


@pytest.mark.parametrize("pattern, stages, said", [
    ("[*-]*3|[*]", 4, "1 borders |, 4 stages .pp x chunks. need 3"),
    ("[*-]*3", 4, "3 layers do not fill 4 stages"),
])
def test_a_cut_that_cannot_be_made_is_refused(pattern, stages, said):
    with pytest.raises(ValueError, match=said):
        cuts(parse(pattern), stages)
