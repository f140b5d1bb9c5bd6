"""From a source of text to a tokenizer and token files, once for each configuration.

    python -m data.prepare --vocab 4096
    python -m data.prepare --source my/texts --max-bytes 10000000
"""

import hashlib
import importlib.metadata
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from common.checkpoint.files import write_text
from data import corpus, tokenizer
from data.config import DataConfig
from data.index_writer import token_writer
from data.indexed import IndexedTokens, Stream
from data.lock import exclusive
from data.packages import package_versions
from data.sets import Sets, open_sets
from data.text_files import local_files

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "runs" / "data"
# Raise when the same configuration comes to mean other tokens.
DATA_VERSION = 2
LIBRARIES = ("tokenizers", "datasketch")
STAGES = 9


@dataclass(frozen=True)
class Prepared:
    """Prepared data: paths of the tokenizer and of each split's tokens, and the report on the corpus."""

    directory: Path
    report: dict

    @property
    def tokenizer_path(self) -> Path:
        return self.directory / "tokenizer.json"

    def tokens_path(self, split: str) -> Path:
        """split: train, valid or test; the name of a set, without a suffix."""
        return self.directory / split

    def tokenizer(self) -> tokenizer.Tokenizer:
        """The tokenizer, checked against the hash in the report."""
        return tokenizer.load(self.tokenizer_path, self.report["tokenizer"]["sha256"])

    def indexed(self, split: str) -> IndexedTokens:
        """A split's set. Raises ValueError if another tokenizer made it."""
        found = IndexedTokens(self.tokens_path(split))
        if found.header.tokenizer_sha256 != self.report["tokenizer"]["sha256"]:
            raise ValueError(f"{found.path} was made with another tokenizer than {self.tokenizer_path}; "
                             f"remove {self.directory} and prepare the data anew")
        return found

    def tokens(self, split: str) -> Stream:
        """A split's tokens. Raises ValueError if another tokenizer made them."""
        return self.indexed(split).stream()

    def text_bytes(self, split: str) -> int:
        """UTF-8 bytes of a split's text, the denominator of bits per byte."""
        return self.report["splits"][split]["bytes"]


def content_hash(config: DataConfig) -> str:
    """Hash of the configuration and of all the result depends on: versions, or the local files' content."""
    facts = {"config": asdict(config), "format": DATA_VERSION,
             "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES}}
    if config.path is None:
        facts["python"] = sys.version_info[:2]
        facts["packages"] = package_versions(sum(config.package_split.values(), ()))
    else:
        facts["files"] = {}
        for path in local_files(config.path):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            facts["files"][str(path.relative_to(config.path))] = digest
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def prepare(config: DataConfig, cache: Path = CACHE,
            progress: Callable[[str], None] = lambda stage: None) -> Prepared | Sets:
    """The prepared data of this configuration, made now if it is not in the cache; sets are opened where they lie.

    It lies in cache/<hash>, complete or absent: it is made under another name and renamed. progress is called
    with the name of each stage. Raises ValueError for anything the user can put right.
    """
    if config.sets:
        return open_sets(config)
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / content_hash(config)
    if not directory.is_dir():
        with exclusive(cache / ".lock"):
            if not directory.is_dir():
                partial = cache / f"{directory.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                try:
                    build(config, partial, progress)
                    partial.rename(directory)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    return opened(directory)


def opened(directory: Path) -> Prepared:
    """Prepared data in a directory. Raises ValueError if a file is missing or does not match its checksum."""
    path = directory / "report.json"
    if not path.is_file():
        raise ValueError(f"{directory} holds no prepared data; remove it and prepare the data anew")
    prepared = Prepared(directory, json.loads(path.read_text(encoding="utf-8")))
    try:
        prepared.tokenizer()
        for split in corpus.SPLITS:
            prepared.indexed(split).verify()
    except ValueError as error:
        raise ValueError(f"{error} (remove {directory} first)") from None
    return prepared


def build(config: DataConfig, directory: Path, progress: Callable[[str], None]) -> None:
    """Write tokenizer.json, the token files and report.json into an empty directory."""
    started = time.monotonic()
    made = corpus.build(config, progress)
    progress("training the tokenizer")
    vocabulary = tokenizer.train((document.text for document in made.splits["train"]), config.vocab)
    vocabulary.save(directory / "tokenizer.json")
    report = {"config": asdict(config), **made.report,
              "tokenizer": {"vocab": vocabulary.vocab, "eod": vocabulary.eod, "sha256": vocabulary.sha256}}
    for split in corpus.SPLITS:
        progress(f"writing {split} tokens")
        path = directory / split
        with token_writer(path, vocabulary.vocab, vocabulary.eod, vocabulary.sha256) as writer:
            for tokens in vocabulary.encode_many(document.text for document in made.splits[split]):
                writer.add(tokens)
        facts = report["splits"][split]
        facts["tokens"] = len(IndexedTokens(path))
        facts["bytes_per_token"] = facts["bytes"] / (facts["tokens"] - facts["documents"])
    report["seconds"] = round(time.monotonic() - started, 1)
    content = json.dumps(report, indent=1, sort_keys=True) + "\n"
    write_text(directory / "report.json", content)


@contextmanager
def progress_bar() -> Iterator[Callable[[str], None]]:
    """A rich bar on standard error that moves one stage at each call."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns()[:2], TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("data", total=STAGES)
        started = itertools.count()

        def stage(name: str) -> None:
            bar.update(task, description=name, completed=next(started))

        yield stage


def table(prepared: Prepared) -> None:
    """Print the report for people."""
    from rich.console import Console
    from rich.table import Table

    report = prepared.report
    out = Table("split", "documents", "MB", "tokens", "bytes/token", "leak", "leak before",
                title=str(prepared.directory))
    for split, facts in report["splits"].items():
        shares = [f"{report[when][split]['share']:.2%}" if split in report[when] else ""
                  for when in ("leaks_after", "leaks_before")]
        out.add_row(split, f"{facts['documents']:,}", f"{facts['bytes'] / 1e6:.2f}", f"{facts['tokens']:,}",
                    f"{facts['bytes_per_token']:.2f}", *shares)
    Console().print(out)
    removed = report["removed"]
    print(f"leak: share of windows of {report['leak_words']} words that the training text holds as well, "
          "after and before removing duplicates")
    print(f"removed: {removed['near_empty']:,} near-empty, {removed['exact_duplicates']:,} exact and "
          f"{removed['near_duplicates']:,} near duplicates ({removed['near_clusters']:,} clusters)")


def main(data: DataConfig, json: bool = False) -> None:
    """Prepare a corpus: deduplicate, split, train the tokenizer, write the tokens.

    Args:
        data: what the corpus is made of.
        json: print the report as JSON instead of a table.
    """
    if data.sets:
        raise ValueError("sets are prepared already: python -m data.index shows and verifies them")
    with progress_bar() as progress:
        prepared = prepare(data, progress=progress)
    if json:
        sys.stdout.write((prepared.directory / "report.json").read_text(encoding="utf-8"))
    else:
        table(prepared)


if __name__ == "__main__":
    import tyro

    try:
        tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
