"""Sets that recipes train on: splits, weights, bad settings, the command, and what opening a hundred of them takes."""

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from data import hub, tokenizer
from data.build_set import build
from data.config import DataConfig
from data.index_writer import token_writer, write_index
from data.indexed import DocumentIndex, IndexedTokens, file
from data.prepare import prepare
from data.samples import Blend, Samples
from data.sets import open_sets
from data.sidecar import Header, Sidecar

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {name: [f"{name} {i} " + "word " * (i * 7 % 23) for i in range(60)] for name in ("one", "two")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sets one and two of one tokenizer, and three of another."""
    path = tmp_path_factory.mktemp("sets")
    tokenizer.train(sum(TEXTS.values(), []), 280).save(path / "tokenizer.json")
    tokenizer.train(sum(TEXTS.values(), []), 270).save(path / "other.json")
    for name, texts in (*TEXTS.items(), ("three", TEXTS["one"])):
        (path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        build([path / f"{name}.jsonl"], path / name, path / ("other.json" if name == "three" else "tokenizer.json"), workers=1)
    return path


def texts_of(sets, stream):
    vocabulary = sets.tokenizer()
    spans = (stream.source.index.span(d) for d in range(stream.first, stream.last))
    return [vocabulary.decode(stream.source.read(start, stop - 1)) for start, stop in spans]


@pytest.mark.parametrize("held_out", [0.05, 0.2, 0.4])
def test_splits_are_whole_documents_in_storage_order(folder, held_out):
    sets = prepare(DataConfig(sets=(str(folder / "one"),), held_out=held_out))
    streams = [sets.tokens(split) for split in ("train", "valid", "test")]
    found = [texts_of(sets, stream) for stream in streams]
    assert sum(found, []) == TEXTS["one"]
    sizes = [len(stream) / sum(map(len, streams)) for stream in streams]
    longest = 30 / sum(map(len, streams))
    assert abs(sizes[2] - held_out) < longest and abs(sizes[1] - held_out) < 2 * longest
    assert sets.text_bytes("valid") == sum(len(text.encode()) for text in found[1])
    whole = IndexedTokens(folder / "one")
    assert np.concatenate([s.read(0, len(s)) for s in streams]).tolist() == whole.read(0, len(whole)).tolist()


def test_a_blend_has_the_weights_that_were_written(folder):
    sets = prepare(DataConfig(sets=(f"{folder / 'one.bin'}:0.7", f"{folder / 'two'}:0.3")))
    blend = sets.tokens("train")
    assert isinstance(blend, Blend) and blend.weights == (Fraction(7, 10), Fraction(3, 10))
    order = Samples(blend, 8).order(1)
    drawn = [order.sample(position).set for position in range(2560)]
    assert abs(drawn.count(0) - 1792) < 2
    assert [each["weight"] for each in sets.report["sets"]] == ["7/10", "3/10"]
    assert sets.report["tokenizer"]["sha256"] == tokenizer.load(folder / "tokenizer.json").sha256
    assert sets.text_bytes("test") == sum(len(t.encode()) for s in sets.tokens("test").streams for t in texts_of(sets, s))


def test_without_weights_each_set_counts_by_its_tokens(folder):
    blend = open_sets(DataConfig(sets=(str(folder / "one"), str(folder / "two")))).tokens("train")
    assert blend.weights == tuple(Fraction(len(stream)) for stream in blend.streams)


@pytest.mark.parametrize("sets, message", [
    (("a:0",), "a has weight 0; leave out"), (("a:-1",), "a has weight -1"), (("a:b",), "no number after its colon"),
    (("a:nan",), "no number after its colon"), (("a:1/0",), "no number after its colon"),
    (("a:1", "b"), "give each a weight, or none"), (("a:1", "a.bin:2"), "a is named twice; add up its weights"),
])
def test_bad_weights_are_refused_before_anything_is_opened(sets, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(sets=sets)


def test_bad_sets(folder, tmp_path):
    with pytest.raises(ValueError, match="none.json does not exist"):
        prepare(DataConfig(sets=(str(folder / "none"),)))
    with pytest.raises(ValueError, match="three' was cut by another tokenizer .* build both with one"):
        prepare(DataConfig(sets=(str(folder / "one"), str(folder / "three"))))
    with token_writer(tmp_path / "few", 280, 0, "00" * 32) as writer:
        writer.add(np.arange(1, 200))
    for split in ("valid", "test"):
        with pytest.raises(ValueError, match=f"leaves no document for the {split} split"):
            prepare(DataConfig(sets=(str(tmp_path / "few"),))).tokens(split)


def command(*words):
    return subprocess.run([sys.executable, "-m", "data.index", *words], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "COLUMNS": "200", "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=60)


def test_command(folder, tmp_path):
    made = command("build", "--inputs", str(folder / "one.jsonl"), "--tokenizer", str(folder / "tokenizer.json"),
                   "--output", str(tmp_path / "a"), "--workers", "1", "--json")
    assert made.returncode == 0 and json.loads(made.stdout)[0]["header"]["documents"] == 60
    shown = command("show", f"{tmp_path / 'a'}:1", f"{folder / 'two'}:1", "--sequence", "8", "--samples", "2560")
    samples = Samples(open_sets(DataConfig(sets=(str(folder / "one"),))).tokens("train"), 8)
    assert f"{tmp_path / 'a'}: {1280 / len(samples):.3f} epochs in 2,560 samples, repeats" in shown.stdout
    assert command("verify", str(tmp_path / "a"), str(folder / "two.idx")).stdout.count(": whole") == 2
    path = file(tmp_path / "a", ".bin")
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    spoiled = command("verify", str(tmp_path / "a"))
    assert spoiled.returncode == 1
    assert spoiled.stderr == f"error: {path} does not match its checksum; build the set anew\n"


def test_command_adopts_what_megatron_wrote(folder, tmp_path):
    builder = IndexedDatasetBuilder(f"{tmp_path / 'a'}.bin", dtype=np.uint16)
    builder.add_document(torch.tensor([5, 6, 0]), [3])
    builder.finalize(f"{tmp_path / 'a'}.idx")
    assert command("verify", str(tmp_path / "a")).stderr.startswith("error: ")
    adopted = command("adopt", str(tmp_path / "a.bin"), "--tokenizer", str(folder / "tokenizer.json"))
    assert adopted.returncode == 0, adopted.stderr
    assert open_sets(DataConfig(sets=(str(tmp_path / "a"),))).tokenizer().vocab == 280
    assert command("verify", str(tmp_path / "a")).returncode == 0


def test_a_hub_that_is_not_reached_is_one_line(folder, tmp_path):
    refused = command("build", "--inputs", "hf:some/texts", "--tokenizer", str(folder / "tokenizer.json"),
                      "--output", str(tmp_path / "a"))
    lines = refused.stderr.strip().splitlines()
    assert refused.returncode == 1 and len(lines) == 1
    assert lines[0].startswith("error: hf:some/texts: the hub did not give it")


def test_files_of_the_hub_that_are_read():
    files = ["README.md", "en/b.json.gz", "a.jsonl", "b.jsonl.gz", "c.parquet", "d.txt", "e.jsonl.zst", "run.py"]
    assert hub.choose(files) == ["a.jsonl", "b.jsonl.gz"]
    assert hub.choose(files, "en/*") == ["en/b.json.gz"]
    assert hub.choose(["README.md", "d.txt", "run.py", "c.parquet"]) == ["d.txt"]


HUNDRED = """
import resource, sys, time
from fractions import Fraction
from data.config import DataConfig
from data.samples import Samples
from data.sets import open_sets
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, start = memory(), time.perf_counter()
sets = open_sets(DataConfig(sets=tuple(f"{sys.argv[1]}/{i}:{i + 1}" for i in range(100))))
samples = Samples(sets.tokens("train"), 16)
order = samples.order(5)
places = [order.sample(position) for position in range(0, 10**9, 10**7)]
assert len(samples) > 10**9, len(samples)
print(time.perf_counter() - start, memory() - before, len({p.set for p in places}))
"""


def test_a_hundred_sets_of_a_thousand_million_samples_open_in_2_s_and_200_mb(tmp_path):
    """Sparse files of 0.36 GB each, in which every document has its true offsets."""
    lengths = np.full(20_000, 9_000, "<i4")
    ends = np.cumsum(lengths, dtype="<i8") * 2
    table = DocumentIndex(lengths, ends - 18_000, np.arange(20_001, dtype="<i8"), 2, int(ends[-1]) // 2)
    for i in range(100):
        name = tmp_path / f"{i}"
        crc, sha256 = write_index(file(name, ".idx"), 8, [table])
        with file(name, ".bin").open("wb") as stream:
            stream.truncate(table.tokens * 2)
        Sidecar(Header(table.tokens, 20_000, 500, 0, "00" * 32, 0), "", sha256, crc, "").write(name)
    done = subprocess.run([sys.executable, "-c", HUNDRED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seconds, memory, drawn = map(float, done.stdout.split())
    assert seconds < 2 and memory < 200e6 and drawn > 40
    print(f"{seconds:.2f} s, {memory / 1e6:.0f} MB")
