"""Corpora as a whole: splits that share no package and no near duplicate, and a report that says so."""

import json
import random

import pytest

from data.config import DataConfig
from data.corpus import SPLITS, build
from data.deduplicate import jaccard, shingle_sets
from data.words import WordStream

WORDS = [a + b + c for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u") for c in ("l", "nk", "rm", "st")]


def prose(seed: int, length: int = 150) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


@pytest.fixture
def source(tmp_path):
    """60 texts, of which ten come again word for word and ten with one word changed."""
    texts = [prose(seed) for seed in range(60)]
    texts += texts[:10] + [text.replace(" ", " once ", 1) for text in texts[10:20]] + ["short", ""]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def test_duplicates_go_before_the_split(source):
    corpus = build(DataConfig(source=str(source), held_out=0.2))
    removed = corpus.report["removed"]
    assert removed == {"near_empty": 2, "exact_duplicates": 10, "near_duplicates": 10, "near_clusters": 10}
    texts = [document.text for split in SPLITS for document in corpus.splits[split]]
    assert len(texts) == len(set(texts)) == 60
    sets = shingle_sets(WordStream.of(texts), 5)
    assert max(jaccard(a, b) for i, a in enumerate(sets) for b in sets[:i]) < 0.5


def test_leaks_are_measured_before_and_after(source):
    corpus = build(DataConfig(source=str(source), held_out=0.2, seed=1))
    before, after = corpus.report["leaks_before"], corpus.report["leaks_after"]
    assert before["valid"]["share"] + before["test"]["share"] > 0.05
    assert after["valid"]["shared"] == after["test"]["shared"] == 0


@pytest.mark.parametrize("held_out", [0.02, 0.1, 0.3])
def test_held_out_share_and_seed(source, held_out):
    corpora = [build(DataConfig(source=str(source), held_out=held_out, seed=seed)) for seed in (0, 0, 1)]
    for corpus in corpora:
        sizes = {split: corpus.report["splits"][split]["bytes"] for split in SPLITS}
        for split in ("valid", "test"):
            assert held_out <= sizes[split] / sum(sizes.values()) < held_out + 0.04
    assert corpora[0] == corpora[1] and corpora[0].splits["test"] != corpora[2].splits["test"]


def test_no_package_in_two_splits_and_storage_order():
    config = DataConfig(train_packages=("tyro", "rich"), valid_packages=("packaging",), test_packages=("safetensors",),
                        code_share=0.3)
    corpus = build(config)
    for split, packages in config.package_split.items():
        assert {document.package for document in corpus.splits[split]} == set(packages)
        names = [document.source.split(":")[0] for document in corpus.splits[split]]
        assert names == sorted(names)
    assert set(corpus.report["versions"]) == {"tyro", "rich", "packaging", "safetensors"}
    train = corpus.report["splits"]["train"]
    assert 0 < train["code_bytes"] < train["bytes"]
    assert train["bytes"] == sum(len(document.text.encode()) for document in corpus.splits["train"])
    json.dumps(corpus.report)


def test_smaller_corpus_of_packages():
    config = DataConfig(train_packages=("tyro", "rich"), valid_packages=("packaging",), test_packages=("safetensors",),
                        max_bytes=20_000)
    report = build(config).report
    assert all(split["bytes"] <= 20_000 for split in report["splits"].values())
    assert report["splits"]["train"]["bytes"] > 5_000


def test_too_little_text_says_what_would_work(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a single paragraph of some length\n" * 3)
    with pytest.raises(ValueError, match="has 1 separate text.*training, validation and test need three"):
        build(DataConfig(source=str(path)))
    path.write_text("\n\n" * 100)
    with pytest.raises(ValueError, match="fewer than min_characters=32 characters.*lower min_characters"):
        build(DataConfig(source=str(path)))


def test_one_text_larger_than_the_rest(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": prose(s, 4000 if s == 3 else 60)}) + "\n" for s in range(8)))
    outcomes = set()
    for seed in range(12):
        try:
            corpus = build(DataConfig(source=str(path), seed=seed))
            outcomes.add("split")
            assert corpus.report["splits"]["train"]["bytes"] > 10_000
        except ValueError as error:
            outcomes.add("refused")
            assert f"with seed={seed} one large text is held out" in str(error)
    assert outcomes == {"split", "refused"}


@pytest.mark.parametrize("settings, message", [
    ({"vocab": 256}, "vocab=256: byte-level BPE needs 257"),
    ({"vocab": 1 << 21}, "to 1048576"),
    ({"max_bytes": 0}, "max_bytes=0 must be positive"),
    ({"code_share": 1.5}, "code_share=1.5"),
    ({"held_out": 0.5}, "held_out=0.5"),
    ({"near_threshold": 0.0}, "near_threshold=0.0"),
    ({"near_words": 0}, "near_words=0 must be at least 1"),
    ({"seed": -1}, "seed=-1"),
    ({"source": ""}, "source is empty"),
    ({"valid_packages": ()}, "valid_packages is empty"),
    ({"test_packages": ("numpy",)}, "'numpy' is in test_packages and train_packages; a package belongs to one split"),
    ({"train_packages": ("torch", "torch")}, "'torch' is in train_packages and train_packages"),
])
def test_configuration_checks_itself(settings, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**settings)
