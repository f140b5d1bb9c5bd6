"""Prepared data: complete or absent, made once, and what the command says to bad input."""

import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data import prepare as module
from data.config import DataConfig
from data.prepare import content_hash, prepare

ROOT = Path(__file__).resolve().parents[2]
WORDS = [a + b + c for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u") for c in ("l", "nk", "rm", "st")]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.jsonl"
    texts = [" ".join(random.Random(seed).choices(WORDS, k=80)) + "." for seed in range(60)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def config(source):
    return DataConfig(source=str(source), vocab=320, held_out=0.1)


def test_tokens_hold_the_text(source, config, tmp_path):
    """Every text of the file comes back from exactly one split."""
    prepared = prepare(config, tmp_path / "cache")
    tokenizer = prepared.tokenizer()
    found = []
    for split in ("train", "valid", "test"):
        reader = prepared.indexed(split)
        texts = [tokenizer.decode(reader.read(*reader.index.span(d))) for d in range(reader.header.documents)]
        assert all(text.endswith("<|endoftext|>") for text in texts)
        facts = prepared.report["splits"][split]
        assert facts["tokens"] == len(reader) and facts["documents"] == len(texts)
        texts = [text.removesuffix("<|endoftext|>") for text in texts]
        assert prepared.text_bytes(split) == sum(len(text.encode()) for text in texts)
        assert facts["bytes_per_token"] == pytest.approx(facts["bytes"] / (len(reader) - len(texts)))
        found += texts
    expected = [json.loads(line)["text"] for line in source.read_text().splitlines()]
    assert sorted(found) == sorted(expected)


def test_made_once_and_found_again(config, tmp_path):
    stages = []
    first = prepare(config, tmp_path / "cache", stages.append)
    made = {path.name: path.stat().st_mtime_ns for path in first.directory.iterdir()}
    assert len(stages) == module.STAGES - 2  # one source instead of three lists of packages
    stages.clear()
    again = prepare(config, tmp_path / "cache", stages.append)
    assert again == first and stages == []
    assert made == {path.name: path.stat().st_mtime_ns for path in again.directory.iterdir()}


def test_same_configuration_gives_the_same_bytes(config, tmp_path):
    one, two = (prepare(config, tmp_path / name) for name in ("one", "two"))
    for path in one.directory.iterdir():
        if path.name != "report.json":
            assert path.read_bytes() == (two.directory / path.name).read_bytes()


def test_name_depends_on_configuration_content_and_versions(source, config, monkeypatch):
    names = {content_hash(config)}
    names.add(content_hash(DataConfig(source=str(source), vocab=321, held_out=0.1)))
    source.write_text(source.read_text() + '{"text": "one more"}\n')
    names.add(content_hash(config))
    names.add(content_hash(DataConfig()))
    monkeypatch.setattr(module, "package_versions", lambda packages: dict.fromkeys(packages, "0"))
    names.add(content_hash(DataConfig()))
    assert len(names) == 5


def test_a_failure_leaves_nothing(config, tmp_path, monkeypatch):
    def torn(self):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.IndexedTokens, "__len__", torn)
        with pytest.raises(OSError, match="no space"):
            prepare(config, tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == [".lock"]
    assert prepare(config, tmp_path / "cache").report["splits"]["train"]["tokens"] > 0


def test_what_a_killed_process_left_is_not_taken(config, tmp_path):
    cache = tmp_path / "cache"
    partial = cache / f"{content_hash(config)}.partial"
    partial.mkdir(parents=True)
    (partial / "half").write_bytes(b"half")
    directory = prepare(config, cache).directory
    assert directory.name == content_hash(config)
    assert not partial.exists() and not (directory / "half").exists()


def build_slowly(config, cache, answers):
    made = []
    prepare(config, cache, lambda stage: (made.append(stage), time.sleep(0.05)))
    answers.put(len(made))


def test_a_second_process_waits_and_takes_the_first_ones_work(config, tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    both = [context.Process(target=build_slowly, args=(config, tmp_path / "cache", answers)) for _ in range(2)]
    for process in both:
        process.start()
    stages = sorted(answers.get(timeout=60) for _ in both)
    for process in both:
        process.join(timeout=60)
    assert stages[0] == 0 and stages[1] > 0 and all(process.exitcode == 0 for process in both)


@pytest.mark.parametrize("name, message", [
    ("train.bin", "checksum"), ("tokenizer.json", "tokenizer"), ("valid.idx", "bytes, its header"),
    ("test.json", "checksum|damaged"),
])
def test_damage_is_found_on_reuse(config, tmp_path, name, message):
    prepared = prepare(config, tmp_path / "cache")
    path = prepared.directory / name
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw[:-8] if name == "valid.idx" else raw)
    with pytest.raises(ValueError, match=message) as error:
        prepare(config, tmp_path / "cache")
    assert f"(remove {prepared.directory} first)" in str(error.value)


def test_tokens_of_another_tokenizer_are_refused(source, config, tmp_path):
    prepared = prepare(config, tmp_path / "cache")
    other = prepare(DataConfig(source=str(source), vocab=310, held_out=0.1), tmp_path / "cache")
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(other.directory / f"train{suffix}", prepared.directory / f"train{suffix}")
    with pytest.raises(ValueError, match="was made with another tokenizer"):
        prepared.tokens("train")


def command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "data.prepare", *arguments], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, "COLUMNS": "200"}, timeout=60)


def test_command_names_the_trouble_in_one_line(tmp_path):
    path = tmp_path / "image.txt"
    path.write_bytes(b"\x89PNG\0")
    result = command("--source", str(path))
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.strip().splitlines()[-1].startswith(f"error: {path}, line 1: a zero byte")
    assert "Traceback" not in result.stderr


def test_what_the_system_refuses_is_one_line():
    result = command("--source", "a" * 300)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("error: ") and "File name too long" in result.stderr


def test_command_help_and_bad_setting():
    helped = command("--help")
    assert helped.returncode == 0 and "--max-bytes" in helped.stdout and "--json" in helped.stdout
    refused = command("--vocab", "3")
    assert refused.returncode == 2 and "vocab=3: byte-level BPE needs 257" in refused.stderr
