"""published.toml: what is read, and that each way of being wrong is named."""

from pathlib import Path

import pytest

from common.claims.published import load, unit_of, words_of
from tests.common.claims.sample_paper import PUBLISHED


def write(folder: Path, text: str) -> Path:
    path = folder / "published.toml"
    path.write_text(text)
    return path


def test_what_is_read(tmp_path: Path) -> None:
    facts = load(write(tmp_path, PUBLISHED))
    assert (facts.slug, facts.title) == ("sample", "Sandpiles of Known Size")
    assert [entry.id for entry in facts][:2] == ["setup", "table1-height"]
    speed = facts["table2-speed"]
    assert speed.value("forward_ms") == (7.7, 13.2, 19.5)
    assert speed.value("experiment") == "shovel, hand, spoon"
    assert set(speed.numbers()) == {"forward_ms", "overhead_percent_over", "share_percent"}
    assert facts["figure1-angle"].read_error == 0.3
    assert facts["table1-height"].evaluate(a=1.5, b=2, n=100) == 17.0


def test_confidence_of_single_values(tmp_path: Path) -> None:
    extra = '[claim.confidence_by_key]\ngain_percent = "memory"\n'
    entry = load(write(tmp_path, PUBLISHED + extra))["table3-wet"]
    assert entry.confidence_of("gain_percent") == "memory"
    assert entry.confidence_of("iteration_s_dp8") == "read"


BROKEN = [
    ("[paper", "is not TOML"),
    ("[[claim]]\n[other]\n", "unknown table 'other'"),
    ("[[claim]]\n", r"\[paper\] needs exactly"),
    ('[paper]\nslug="x"\ntitle="x"\narxiv="x"\nread_from="x"\n', r"no \[\[claim\]\]"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


CHANGES = [
    ('confidence = "memory"', 'confidence = "sure"', "figure2-erosion", "confidence 'sure' is not one of"),
    ('confidence = "memory"', "", "figure2-erosion", "'confidence' is missing"),
    ('what = "Erosion by wind"', "what = 3", "figure2-erosion", "'what' is 3, not str"),
    ('what = "Erosion by wind"', 'what = "Erosion"\nwhere = "x"', "", "is not TOML"),
    ("loss_mb = 3", "loss_mb = nan", "figure2-erosion", "values.loss_mb is nan"),
    ("loss_mb = 3", "loss_mb = [1, inf]", "figure2-erosion", "values.loss_mb is"),
    ("loss_mb = 3", "loss_mb = {a = 1}", "figure2-erosion", "values.loss_mb is"),
    ("loss_mb = 3", "loss_mb = 2026-01-31", "figure2-erosion", "values.loss_mb is"),
    ("read_error = 0.3", "read_eror = 0.3", "figure1-angle", "unknown key 'read_eror'"),
    ("read_error = 0.3", "read_error = true", "figure1-angle", "'read_error' is True"),
    ('id = "setup"', 'id = "table3-wet"', "table3-wet", "stands twice"),
    ('id = "setup"', 'id = "Set up"', "Set up", "an id is lower-case"),
    ('id = "setup"', "", "number 1", "'id' is missing"),
    (
        "[claim.values]\nloss_mb = 3",
        '[claim.confidence_by_key]\nwind = "read"\n[claim.values]\nloss_mb = 3',
        "figure2-erosion",
        "confidence_by_key names 'wind'",
    ),
]


@pytest.mark.parametrize(("old", "new", "claim", "message"), CHANGES)
def test_a_broken_claim_is_named(tmp_path: Path, old: str, new: str, claim: str, message: str) -> None:
    assert old in PUBLISHED
    path = write(tmp_path, PUBLISHED.replace(old, new, 1))
    with pytest.raises(ValueError) as caught:
        load(path)
    text = str(caught.value)
    assert str(path) in text and claim in text and message in text


def test_a_missing_file_and_a_missing_value(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load(tmp_path / "published.toml")
    facts = load(write(tmp_path, PUBLISHED))
    with pytest.raises(ValueError, match="has no claim 'table9'"):
        facts["table9"]
    with pytest.raises(ValueError, match="it has gain_percent, iteration_s_dp8"):
        facts["table3-wet"].value("gain")
    with pytest.raises(ValueError, match="table3-wet has no formula"):
        facts["table3-wet"].evaluate()


@pytest.mark.parametrize(
    ("key", "unit", "words"),
    [
        ("iteration_s_dp8", "s", "iteration dp8"),
        ("combined_ms", "ms", "combined"),
        ("memory_gib", "GiB", "memory"),
        ("peak_tflops_per_gpu", "TFLOP/s per GPU", "peak"),
        ("ib_hca_gbit_per_s", "Gbit/s", "ib hca"),
        ("percent_of_baseline", "%", "percent of baseline"),
        ("sequences_per_s", "sequences/s", "sequences per s"),
        ("layers_per_device", "", "layers per device"),
        ("seq", "", "seq"),
    ],
)
def test_units_come_from_names(key: str, unit: str, words: str) -> None:
    assert (unit_of(key), words_of(key)) == (unit, words)
