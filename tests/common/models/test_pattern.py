"""Layer patterns."""

import pytest

from common.models.pattern import parse


@pytest.mark.parametrize(("text", "units", "borders"), [
    ("[*-]", ("*-",), ()),
    ("[*-]*3", ("*-",) * 3, ()),
    ("[*]*2 [-] [*-]*1", ("*", "*", "-", "*-"), ()),
    ("[*-]*2|[*-]|[-]", ("*-", "*-", "*-", "-"), (2, 3)),
    ("  [* -] | [*-]*2  ", ("*-",) * 3, (1,)),
])
def test_reads(text, units, borders):
    found = parse(text)
    assert (found.units, found.borders) == (units, borders)


@pytest.mark.parametrize(("text", "said"), [
    ("", "no layer"), ("*-", "cannot read"), ("[*-]*", "cannot read"), ("[*-]*0", "0 times"), ("[]", "empty layer"),
    ("[*Q]", "unknown letter 'Q'"), ("|[*-]", "layer before"), ("[*-]|", "layer after"), ("[*-]||[*-]", "layer before"),
    ("[*-]*-2", "cannot read"), ("[[*-]]", "cannot read"), ("[*-", "cannot read"), ("[*-]*2.5", "cannot read"),
])
def test_refuses(text, said):
    with pytest.raises(ValueError, match=said.replace("*", r"\*")):
        parse(text)
