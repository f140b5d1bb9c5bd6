"""The file of constants: whole, in SI, sourced; few are fitted, each on a published row of its own paper."""

import tomllib

import pytest

from common.claims.published import load
from common.predict.constants import FILE, KINDS, SOFTWARE, Constant, constants, table
from common.predict.hardware import clusters
from papers import FOLDER
from papers.series import ALL

RAW = tomllib.loads(FILE.read_text(encoding="utf-8"))
FITTED = [constant for constant in table() if constant.kind == "fitted"]
SINGLE = '[{name}]\nvalue = 1\nunit = "1"\nkind = "assumed"\nsource = "nobody states it"\n'


def write(path, text: str):
    (path / "constants.toml").write_text(text, encoding="utf-8")
    return path / "constants.toml"


def without(name: str) -> str:
    """The file with one table of it left out."""
    head, _, rest = FILE.read_text(encoding="utf-8").partition(f"[{name}]\n")
    return head + rest[rest.index("\n[") :]


def test_every_entry_of_the_file_says_kind_unit_and_source():
    single = {name: entry for name, entry in RAW.items() if name not in ("software", "generations")}
    for name, entry in (single | RAW["software"]).items():
        assert entry["kind"] in KINDS and entry["unit"] and len(entry["source"]) > 15, name
        assert ("row" in entry) == (entry["kind"] == "fitted"), name
        assert entry["value"] > 0
    assert all(entry["kind"] in KINDS and len(entry["source"]) > 15 for entry in RAW["generations"])
    assert len(table()) == len(single) + len(RAW["software"])


def test_times_are_in_seconds():
    values = {c.name: c.value for c in table()}
    assert 1e-7 < values["kernel_start"] < 1e-5 and 1e-6 < values["product_start"] < 2e-5
    assert values["product_start"] == pytest.approx(RAW["product_start"]["value"] / 1e6)


def test_shares_are_shares():
    found = constants()
    assert all(0 < x <= 1 for x in (found.sustained, found.kernel_bandwidth))
    for generation in found.generations:
        assert 0 < generation.backward <= generation.forward < 1 and 0.5 < generation.rate < 1
        assert 200 <= generation.power <= 1500


def test_at_most_eight_are_fitted_and_each_on_a_row_of_its_own_paper():
    assert 0 < len(FITTED) <= 8
    assert {c.name for c in FITTED} == {SOFTWARE + paper.paper for paper in ALL}
    for paper in ALL:
        (mine,) = (c for c in FITTED if c.name == SOFTWARE + paper.paper)
        (series,) = (s for s in paper if s.id == mine.row)
        (value,) = series.published(load(FOLDER / paper.paper / "published.toml"))
        assert paper.fitted == mine.row and not series.several and value > 0
        assert constants().software[paper.paper] == mine.value


def test_every_gpu_of_the_records_belongs_to_one_generation():
    names = {record.accelerator.name for record in clusters() if record.accelerator.tiles}
    assert len(names) > 10
    for name in names:
        assert sum(any(part in name for part in g.names) for g in constants().generations) == 1, name


@pytest.mark.parametrize("name", ["power", "collective_channels"])
def test_a_missing_constant_is_named(tmp_path, name):
    with pytest.raises(ValueError, match=f"constants {name} are unknown or missing"):
        constants(write(tmp_path, without(name)))


def test_an_unknown_constant_is_named(tmp_path):
    with pytest.raises(ValueError, match="constants luck are unknown or missing"):
        constants(write(tmp_path, SINGLE.format(name="luck") + FILE.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "old, new, words",
    [
        (
            'kind = "assumed"',
            'kind = "guessed"',
            "kernel_start has kind 'guessed': use one of sourced, measured, assumed, fitted",
        ),
        (
            'row = "table1-145b/tflops_per_gpu"\n',
            "",
            "software.interleaved_pipelining: give a source, and the row",
        ),
    ],
)
def test_a_broken_entry_is_named(tmp_path, old, new, words):
    text = FILE.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ValueError, match=words):
        constants(write(tmp_path, text.replace(old, new, 1)))


@pytest.mark.parametrize(
    "entry", [("assumed", "reasoned", "table1/x"), ("fitted", "reasoned", None), ("assumed", "", None)]
)
def test_source_and_row_are_demanded(entry):
    with pytest.raises(
        ValueError, match="constant x: give a source, and the row if and only if it is fitted"
    ):
        Constant("x", 1.0, *entry)
