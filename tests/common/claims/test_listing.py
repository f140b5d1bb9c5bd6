"""No published number is left out, named twice, or hidden by a stale pattern."""

from pathlib import Path

import pytest

from common.claims import Quantity, Reading, Relative, Waits, produces
from common.claims.listing import claims_of, group_of
from common.claims.published import load
from tests.common.claims.sample_paper import PUBLISHED, building, make, piles


def listed(folder: Path, **changes):
    paper = make(folder, **changes)
    return {claim.id: claim for claim in claims_of(paper, load(paper.published))}


def test_every_claim_is_a_row_in_the_order_of_the_file(tmp_path: Path) -> None:
    claims = listed(tmp_path)
    assert list(claims) == [
        "setup",
        "table1-height/small",
        "table1-height/large",
        "table1-weight/small_gb",
        "table1-weight/large_gb",
        "table2-speed/forward_ms",
        "table2-speed/overhead_percent_over",
        "table2-speed/share_percent",
        "figure1-angle/percent",
        "figure2-erosion/loss_mb",
        "table3-wet/gain_percent",
        "table3-wet/iteration_s_dp8",
    ]
    assert claims["table1-height/large"].published == 1.5 * 10000**0.5 + 2
    assert claims["table1-height/large"].unit == "m"
    assert claims["table1-height/large"].group == "Table 1"
    assert claims["table1-weight/large_gb"].unit == "GB"
    assert claims["figure1-angle/percent"].tolerance.amount == 0.3
    assert claims["table2-speed/share_percent"].tolerance.amount == pytest.approx(0.05)
    assert claims["table3-wet/gain_percent"].waits == "needs the sea"
    assert claims["table3-wet/gain_percent"].kind == "cluster"
    assert claims["setup"].published == "grain = quartz; grains_per_spoon = 12000"


def test_the_more_specific_statement_wins(tmp_path: Path) -> None:
    claims = listed(tmp_path, context=("setup", "table3-wet/gain_percent"))
    assert claims["table3-wet/gain_percent"].kind == "context"
    assert claims["table3-wet/iteration_s_dp8"].kind == "cluster"


def test_what_a_function_leaves_out_of_a_claim_is_an_error_unless_it_waits(tmp_path: Path) -> None:
    @produces(Quantity("table1-weight", "small_gb", "exact", Relative(0.1)), minutes=1)
    def partly(ask):
        return []

    changes = {"producers": (partly, building), "context": ("setup", "table1-height")}
    with pytest.raises(ValueError, match="no function produces table1-weight/large_gb, and they are neither"):
        listed(tmp_path, **changes)
    wet = Waits(("table3-*",), "cluster", "needs the sea")
    later = Waits(("table1-weight",), "predicted", "needs stones")
    claims = listed(tmp_path, **changes, waits=(wet, later))
    assert claims["table1-weight/small_gb"].function == "partly"
    assert claims["table1-weight/large_gb"].waits == "needs stones"


def test_a_computed_value_accounts_for_what_it_covers(tmp_path: Path) -> None:
    @produces(
        Quantity(
            "table1-weight",
            "ratio",
            "derived",
            Relative(0.1),
            published=lambda facts: facts["table1-weight"].value("large_gb") / 4.25,
            covers=("small_gb", "large_gb"),
        ),
        minutes=1,
    )
    def ratio(ask):
        return []

    claims = listed(tmp_path, producers=(ratio, building), context=("setup", "table1-height"))
    assert claims["table1-weight/ratio"].published == 1041.5 / 4.25


def test_an_uncovered_claim_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="setup, table3-wet/gain_percent|setup, table3-wet"):
        listed(tmp_path, waits=(), context=())


WRONG = [
    ({"context": ("setup", "nothing-*")}, "pattern 'nothing-\\*' matches no claim left"),
    ({"context": ("setup", "figure1-angle")}, "pattern 'figure1-angle' matches no claim left"),
    ({"context": ("setup", "table3-wet")}, "two differing statements of table3-wet"),
    ({"producers": (piles, building, piles)}, "two producers share a name"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_patterns_that_do_not_fit(tmp_path: Path, changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        listed(tmp_path, **changes)


QUANTITIES = [
    (Quantity("table9", "x", "exact", Relative(0.1)), "has no claim 'table9'"),
    (Quantity("table1-weight", "small_gb", "exact", Relative(0.1)), "declared twice"),
    (Quantity("table3-wet", "gain", "exact", Relative(0.1)), "has no value 'gain'"),
    (Quantity("table3-wet", "gain_percent", "exact", Reading()), "table3-wet/gain_percent: .*read_error"),
    (Quantity("table3-wet", "gain_percent", "exact", Relative(0.1), covers=("rain",)), "covers 'rain'"),
]


@pytest.mark.parametrize(("quantity", "message"), QUANTITIES)
def test_quantities_that_do_not_fit(tmp_path: Path, quantity: Quantity, message: str) -> None:
    @produces(quantity, minutes=1)
    def wrong(ask):
        return []

    with pytest.raises(ValueError, match=message):
        listed(tmp_path, producers=(piles, building, wrong))


def test_declarations_check_themselves() -> None:
    with pytest.raises(ValueError, match="kind 'context' is not one of"):
        Quantity("a", "b", "context", Relative(0.1))
    with pytest.raises(ValueError, match="needs a key"):
        Quantity("a", "", "exact", Relative(0.1))
    with pytest.raises(ValueError, match="kind 'soon' is not one of"):
        Waits(("a",), "soon", "b")
    with pytest.raises(ValueError, match="tuple of patterns"):
        Waits("a", "exact", "b")
    with pytest.raises(ValueError, match="at least one Quantity"):
        produces(minutes=1)


@pytest.mark.parametrize(
    ("where", "group"),
    [
        ("Equation 1, Table 2", "Table 2"),
        ("Section 6 and Table 3", "Table 3"),
        ("Section 6.3, footnote 5", "Section 6.3"),
        ("Sections 1 and 5", "Section 1"),
        ("Abstract and Section 7", "Abstract"),
        ("Appendix B", "Appendix B"),
        ("Equation 10", "Equation 10"),
        ("ModelZoo config", "ModelZoo config"),
    ],
)
def test_groups(where: str, group: str) -> None:
    assert group_of(where) == group


def test_a_claim_of_texts_waits_as_one_row(tmp_path: Path) -> None:
    paper = make(tmp_path, waits=(Waits(("table3-*", "words"), "exact", "later"),))
    paper.published.write_text(
        PUBLISHED + '\n[[claim]]\nid = "words"\nwhere = "Section 5"\nwhat = "Words"\nconfidence = "read"\n'
        '[claim.values]\nname = "heap"\n'
    )
    rows = {claim.id: claim for claim in claims_of(paper, load(paper.published))}
    assert (rows["words"].published, rows["words"].waits) == ("name = heap", "later")
