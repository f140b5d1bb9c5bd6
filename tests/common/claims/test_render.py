"""The listing for machines, numbers as text, and the page."""

import base64
import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from common.claims import Figure, Result, produces
from common.claims.format import align, by_group, error_text, number, value_text
from common.claims.html import write_page
from common.claims.published import load
from common.claims.render import as_json, print_paper
from common.claims.run import rows_of, run
from tests.common.claims.sample_paper import ORIGIN, building, draw_angle, make, piles

KEYS = ["paper", "id", "where", "kind", "published", "ours", "unit", "error", "verdict", "cause", "origin"]


@pytest.fixture
def paper_and_rows(tmp_path: Path):
    paper = make(tmp_path)
    return paper, rows_of(paper, run(paper, ORIGIN, full=True).results)


def test_json_has_the_keys_that_are_promised(paper_and_rows) -> None:
    document = json.loads(json.dumps(as_json([paper_and_rows]), allow_nan=False))
    assert list(document) == ["claims"]
    assert all(list(claim) == KEYS for claim in document["claims"])
    rows = {claim["id"]: claim for claim in document["claims"]}
    assert rows["table1-weight/large_gb"] == {
        "paper": "sample",
        "id": "table1-weight/large_gb",
        "where": "Table 1",
        "kind": "predicted",
        "published": 1041.5,
        "ours": 1100.0,
        "unit": "GB",
        "error": pytest.approx((1100 - 1041.5) / 1041.5),
        "verdict": "missed",
        "cause": "the sieve lets stones through",
        "origin": {
            "command": "python -m papers.sample.reproduce",
            "commit": "0123456789ab",
            "machine": "2 cores",
            "date": "2026-01-31",
            "versions": {"python": "3.11.7"},
            "run": "now",
        },
    }
    assert rows["table2-speed/forward_ms"]["published"] == [7.7, 13.2, 19.5]
    waiting = rows["table3-wet/gain_percent"]
    assert (waiting["ours"], waiting["origin"], waiting["cause"]) == (None, None, "needs the sea")
    assert rows["table1-height/small"]["cause"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0.0"),
        (39, "39"),
        (56.0, "56.0"),
        (41.5, "41.5"),
        (51200, "51,200"),
        (59.203125001, "59.203"),
        (-0.0123456789, "-0.012346"),
        (1234.56789, "1,234.6"),
        (1.1436e15, "1.1436e15"),
        (6425900000000000000, "6.4259e18"),
        (2.5e-7, "2.5e-7"),
        (1 / 3, "0.33333"),
    ],
)
def test_numbers(value, text: str) -> None:
    assert number(value) == text


def test_values_and_errors() -> None:
    assert value_text((1, 2.5, 3), limit=2) == "1, 2.5, … (3)"
    assert value_text("s*b*h") == "s*b*h"
    assert (error_text(None), error_text(0.0), error_text(-0.0301)) == ("", "0 %", "−3.01 %")


def test_points_stand_below_each_other() -> None:
    texts = ["1.25", "1,041.5", "90", "−66.30", "7.7, 13.2", ""]
    wide = [text.rjust(12) for text in align(texts)]
    assert {line.index(".") for line in (wide[0], wide[1], wide[3])} == {9}
    assert wide[2].rstrip().endswith("90") and len(wide[2].rstrip()) == 9
    assert align(texts)[4:] == ["7.7, 13.2", ""]
    assert align(["1", "22"]) == ["1", "22"]


def test_tables_come_before_sections_and_in_the_order_of_their_numbers(paper_and_rows) -> None:
    groups = list(by_group(paper_and_rows[1]))
    assert groups == ["Table 1", "Table 2", "Table 3", "Figure 1", "Figure 2", "Section 2"]


def test_the_terminal_shows_every_row(paper_and_rows) -> None:
    paper, rows = paper_and_rows
    out = StringIO()
    print_paper(Console(file=out, width=140), load(paper.published), rows)
    text = out.getvalue()
    assert "Table 1: 3 met, 1 missed" in text
    assert re.search(r"large +1,041\.5 +1,100\.0 +GB +\+5\.62 % +missed +predicted +now", text)
    assert "missed table1-weight/large_gb: the sieve lets stones through" in text
    assert "2 waiting: needs the sea" in text
    assert "grain = quartz" in text


class Page(HTMLParser):
    """Collects text, open tags and sources of images."""

    VOID = ("meta", "col", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.images += [named["src"]] if tag == "img" else []
        self.links += [value for key, value in attributes if key in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_the_page_is_whole_and_stands_alone(paper_and_rows, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "index.html"
    assert write_page(path, [paper_and_rows]) == []
    page = Page(path.read_text())
    assert page.open == []
    assert all(link.startswith(("#", "data:")) for link in page.links)
    svg = base64.b64decode(page.images[0].removeprefix("data:image/svg+xml;base64,")).decode()
    assert svg.count("<rect") == 3
    assert page.words.index("Misses and contradictions") < page.words.index("Height of a pile")
    for text in ("ours 1,100.0 GB, +5.62 %", "ours follows Section 4", "needs the sea", "within 0.1 %"):
        assert text in page.words
    assert 'title="three piles; spread 3.0 to 3.2, 4.8 to 5.1, 8.1 to 8.8"' in path.read_text()


def test_the_page_escapes_what_it_is_given(tmp_path: Path) -> None:
    def hostile(ask):
        for result in piles(ask):
            yield Result(result.claim, result.ours, cause="<script>alert(1)</script>", detail='"><b>')

    paper = make(tmp_path, producers=(produces(*piles.quantities, minutes=1)(hostile), building))
    path = tmp_path / "index.html"
    write_page(path, [(paper, rows_of(paper, run(paper, ORIGIN).results))])
    text = path.read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "<b>" not in text


def test_a_figure_is_drawn_only_from_results_and_its_failure_is_reported(tmp_path: Path) -> None:
    def broken(path, rows):
        raise RuntimeError("no ink")

    figures = (
        Figure("angle", "Angle.", ("figure1-*",), draw_angle),
        Figure("wet", "Wet sand.", ("table3-*",), draw_angle),
        Figure("broken", "Broken.", ("table1-*",), broken),
    )
    paper = make(tmp_path, figures=figures)
    path = tmp_path / "index.html"
    failures = write_page(path, [(paper, rows_of(paper, run(paper, ORIGIN).results))])
    words = Page(path.read_text()).words
    assert "Angle. Not drawn: 1 of its 1 claims have no result yet." in words
    assert "Wet sand. Not drawn: 2 of its 2" in words
    assert "Broken. Could not be drawn." in words
    assert len(failures) == 1 and "no ink" in failures[0]
