"""Building sets: what is in them, kills, damage, other nodes, bad input; and Megatron's builder beside ours."""

import bz2
import gzip
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from tokenizers import models, pre_tokenizers

from data import tokenizer
from data.build_set import build, cut, tokenizer_copy
from data.indexed import file

ROOT = Path(__file__).resolve().parents[2]
DRAW = random.Random(0)
WORDS = [a + b + c for a in "bdfgklm" for b in ("a", "e", "ö", "\U0001f600") for c in ("l", "nk", "\trm", "st\n")]
TEXTS = ["  ".join(DRAW.choices(WORDS, k=DRAW.randrange(1, 120))) + DRAW.choice(["", "\n", "  \n\n"]) for _ in range(400)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.train(TEXTS, 320).save(path)
    return path


def jsonl(path, texts, key="text"):
    content = "".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts).encode()
    writers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    with writers.get(path.suffix, open)(path, "wb") as stream:
        stream.write(content)
    return path


def content(name):
    return [file(name, suffix).read_bytes() for suffix in (".bin", ".idx")]


def decoded(name, vocabulary):
    backend = tokenizers.Tokenizer.from_file(str(vocabulary))
    found = IndexedDataset(str(name))
    sequences = [found[i].tolist() for i in range(len(found))]
    eod = backend.token_to_id("<|endoftext|>")
    assert all(s[-1] == eod for s in sequences)
    return [backend.decode(s[:-1], skip_special_tokens=False) for s in sequences]


def test_the_same_bytes_as_megatrons_builder(tmp_path, vocabulary):
    """Their builder fed by `tokenizers` itself, one document at a time."""
    found = build([jsonl(tmp_path / "a.jsonl", TEXTS)], tmp_path / "sets" / "a", vocabulary, part_bytes=5000, workers=2)
    backend = tokenizers.Tokenizer.from_file(str(vocabulary))
    builder = IndexedDatasetBuilder(f"{tmp_path / 'theirs'}.bin", dtype=np.uint16)
    for text in TEXTS:
        ids = [*backend.encode(text, add_special_tokens=False).ids, backend.token_to_id("<|endoftext|>")]
        builder.add_document(ids, [len(ids)])
    builder.finalize(f"{tmp_path / 'theirs'}.idx")
    assert content(found.path) == content(tmp_path / "theirs")
    assert found.header.text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert found.header.tokenizer_sha256 == tokenizer.load(vocabulary).sha256
    assert tokenizer.load(tokenizer_copy(found.path), found.header.tokenizer_sha256).vocab == 320
    found.verify()


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_compressed_files(tmp_path, vocabulary, suffix):
    found = build([jsonl(tmp_path / f"a.jsonl{suffix}", TEXTS[:50])], tmp_path / "a", vocabulary, workers=1)
    assert decoded(found.path, vocabulary) == TEXTS[:50]


def test_text_files_and_folders_in_the_order_given(tmp_path, vocabulary):
    """A text file is one document, or several with separator lines; texts without text are left out."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("one\n\n two \n")
    (tmp_path / "in" / "a.txt").write_text("three\n<|endoftext|>\nfour\n<|endoftext|>\n")
    (tmp_path / "in" / "picture.zip").write_bytes(b"PK\0")
    lines = jsonl(tmp_path / "z.jsonl", ["", "five"])
    found = build([lines, tmp_path / "in"], tmp_path / "a", vocabulary, workers=1)
    assert decoded(found.path, vocabulary) == ["five", "three\n", "four\n", "one\n\n two \n"]


@pytest.mark.parametrize("part_bytes", [1, 100, 1000, 10**6])
def test_parts_hold_each_line_once(tmp_path, part_bytes):
    path = jsonl(tmp_path / "a.jsonl", TEXTS[:60])
    parts = cut([path], part_bytes)
    assert [d.text for part in parts for d in part.documents("text")] == TEXTS[:60]
    assert sum(part.size for part in parts) == path.stat().st_size


def test_the_result_depends_neither_on_parts_nor_on_processes(tmp_path, vocabulary):
    """So nodes without a shared file system get the same bytes."""
    for node, (part_bytes, workers) in enumerate(((10**6, 1), (700, 2))):
        (tmp_path / f"{node}").mkdir()
        source = jsonl(tmp_path / f"{node}" / "a.jsonl", TEXTS[:100])
        build([source], tmp_path / f"{node}" / "set", vocabulary, part_bytes=part_bytes, workers=workers)
    assert content(tmp_path / "0" / "set") == content(tmp_path / "1" / "set")


def test_special_tokens_in_a_text_are_text(tmp_path, vocabulary):
    found = build([jsonl(tmp_path / "a.jsonl", ["a <|endoftext|> b"])], tmp_path / "a", vocabulary, workers=1)
    assert found.header.documents == 1 and decoded(found.path, vocabulary) == ["a <|endoftext|> b"]


def test_a_tokenizer_with_another_end_of_document(tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["</s>"])
    backend.save(str(tmp_path / "t.json"))
    source = jsonl(tmp_path / "a.jsonl", ["a b", "b"])
    with pytest.raises(ValueError, match=r"has no <\|endoftext\|>, .*name one of its special tokens: </s>"):
        build([source], tmp_path / "a", tmp_path / "t.json")
    build([source], tmp_path / "a", tmp_path / "t.json", end_of_document="</s>", workers=1)
    found = IndexedDataset(str(tmp_path / "a"))
    assert [found[i].tolist() for i in range(2)] == [[1, 2, 3], [2, 3]]


def test_made_once(tmp_path, vocabulary):
    source = jsonl(tmp_path / "a.jsonl", TEXTS[:20])
    made, calls = build([source], tmp_path / "a", vocabulary, workers=1), []
    again = build([source], tmp_path / "a.bin", vocabulary, workers=1, progress=lambda *d: calls.append(d))
    assert again.facts == made.facts and calls == []
    jsonl(source, TEXTS[:21])
    with pytest.raises(ValueError, match="is there already, made of other text"):
        build([source], tmp_path / "a", vocabulary)


def run(folder, *words):
    return [sys.executable, "-m", "data.index", "build", "--inputs", str(folder / "a.jsonl"), "--workers", "2", *words,
            "--output", str(folder / "a")]


def of_session(session):
    """Processes of a session that still run."""
    listed = subprocess.run(["ps", "-eo", "sid=,stat=,pid="], capture_output=True, text=True).stdout.splitlines()
    return [pid for sid, state, pid in map(str.split, listed) if int(sid) == session and state[0] != "Z"]


def ended(session, seconds=10):
    end = time.monotonic() + seconds
    while of_session(session) and time.monotonic() < end:
        time.sleep(0.05)
    return not of_session(session)


def test_killed_in_the_middle_it_goes_on(tmp_path, vocabulary):
    """SIGKILL at several moments: no set is there, no process is left, parts that were done are not done again."""
    folder = tmp_path
    texts = [text * 30 for text in TEXTS] * 15
    jsonl(folder / "a.jsonl", texts)
    parts, kept = folder / ".a.parts", []
    for least in (1, 3):
        process = subprocess.Popen(run(folder, "--tokenizer", str(vocabulary)), cwd=ROOT, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        while len(list(parts.glob("0*.json"))) < least and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
        assert len(of_session(process.pid)) > 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert ended(process.pid)
        assert not file(folder / "a", ".json").exists()
        kept.append({path.name: path.stat().st_mtime_ns for path in parts.glob("0*.json")})
    assert kept[0].items() <= kept[1].items() and len(kept[1]) >= 3
    torn = parts / min(kept[1]).replace(".json", ".bin")
    torn.write_bytes(torn.read_bytes()[:-2] + b"\0\0")
    calls = []
    build([folder / "a.jsonl"], folder / "a", vocabulary, workers=2, progress=lambda *d: calls.append(d))
    assert calls[0][0] > 0 and calls[-1][0] == calls[-1][1] == (folder / "a.jsonl").stat().st_size
    assert not parts.exists()
    (folder / "whole").mkdir()
    build([folder / "a.jsonl"], folder / "whole" / "a", vocabulary, workers=2)
    assert content(folder / "a") == content(folder / "whole" / "a")


def test_parts_of_another_build_are_not_taken(tmp_path, vocabulary):
    source = jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    with pytest.raises(ValueError, match="line 41: not JSON"):
        source.write_text(source.read_text() + "{broken\n")
        build([source], tmp_path / "a", vocabulary, part_bytes=500, workers=1)
    assert list((tmp_path / ".a.parts").glob("0*.json"))
    jsonl(source, TEXTS[40:80])
    assert decoded(build([source], tmp_path / "a", vocabulary, part_bytes=500, workers=1).path, vocabulary) == TEXTS[40:80]


def spoiled(path, change):
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize("name, change, message", [
    ("a.jsonl", lambda raw: raw + b'{"other": 1}\n', r"a\.jsonl, line 21: text_key='text' names no string; found: other"),
    ("a.jsonl", lambda raw: raw + b'{"text": "\xff"}\n', r"a\.jsonl, line 21: byte 0xff"),
    ("a.jsonl", lambda raw: raw + b'{"text": "\\ud800"}\n', r"a\.jsonl, line 21: .*surrogate"),
    ("a.jsonl.gz", lambda raw: raw[:-20], r"a\.jsonl\.gz is damaged: .*fetch it again"),
    ("a.jsonl.gz", lambda raw: raw[:-8] + bytes(8), r"a\.jsonl\.gz is damaged"),
    ("a.jsonl.bz2", lambda raw: raw[:40] + bytes(40) + raw[80:], r"a\.jsonl\.bz2 is damaged"),
    ("a.jsonl.xz", lambda raw: raw[:-30], r"a\.jsonl\.xz is damaged"),
    ("a.jsonl", lambda raw: b"\n", "no text to make a set of"),
])
def test_bad_files_name_the_line(tmp_path, vocabulary, name, change, message):
    path = spoiled(jsonl(tmp_path / name, TEXTS[:20]), change)
    with pytest.raises(ValueError, match=message):
        build([path], tmp_path / "a", vocabulary, part_bytes=300, workers=1)
    assert not list(tmp_path.glob("a.idx"))


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.zip", "a.parquet", "a.tar.gz", "a.jsonl.lz4"])
def test_forms_that_are_not_read_are_refused_by_name(tmp_path, vocabulary, name):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=rf"{name}: \.\w+ files are not read; unpack or convert"):
        build([tmp_path / "in" / name], tmp_path / "a", vocabulary)
    if name.startswith("a.jsonl"):  # in a folder too, where it would else be left out in silence
        with pytest.raises(ValueError, match="files are not read"):
            build([tmp_path / "in"], tmp_path / "a", vocabulary)
