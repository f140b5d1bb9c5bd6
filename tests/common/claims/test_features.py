"""The table of where each feature has run."""

from pathlib import Path

import pytest

from common.claims.features import load_features

TEXT = """
places = ["CPU", "one GPU"]
features = ["parallel layers", "checkpoints"]

[[run]]
feature = "checkpoints"
place = "CPU"
date = 2026-01-31
commit = "0123456789abcdef"
command = "python -m pytest tests/common/checkpoint"

[[run]]
feature = "checkpoints"
place = "CPU"
date = 2026-01-30
commit = "ffffffff"
command = "python -m pytest tests/common/checkpoint"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "features.toml"
    path.write_text(text)
    return path


def test_the_latest_run_or_never(tmp_path: Path) -> None:
    assert load_features(write(tmp_path, TEXT)).markdown().splitlines() == [
        "| feature | CPU | one GPU |",
        "| --- | --- | --- |",
        "| parallel layers | never | never |",
        "| checkpoints | 2026-01-31 `0123456` | never |",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('place = "CPU"', 'place = "moon"', "run 1: 'checkpoints' at 'moon'"),
        ('feature = "checkpoints"', 'feature = "speed"', "run 1: 'speed' at 'CPU'"),
        ("date = 2026-01-31", 'date = "2026-01-31"', "without quotes"),
        ("date = 2026-01-31", "date = 2026-01-31T10:00:00", "write it as"),
        ("0123456789abcdef", "main", "commit is 'main'"),
        ("date = 2026-01-31", "", "run 1 needs exactly"),
        ("places", "place", "needs places, features"),
        ("[[run]]", "[[run]", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    path = write(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ValueError) as caught:
        load_features(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
