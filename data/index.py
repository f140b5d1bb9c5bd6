"""Sets of indexed tokens in Megatron's .bin and .idx files: built from text, checked, shown, adopted.

    python -m data.index build --inputs texts/ more.jsonl.gz --tokenizer tokenizer.json --output sets/a
    python -m data.index verify sets/a sets/b
    python -m data.index show sets/a:0.7 sets/b:0.3 --sequence 1024 --samples 100000
    python -m data.index adopt sets/theirs --tokenizer tokenizer.json
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from data import tokenizer
from data.build_set import build, tokenizer_copy
from data.hub import PREFIX, fetch
from data.index_writer import adopt
from data.indexed import IndexedTokens, set_name
from data.tokenizer import END_OF_DOCUMENT


@dataclass(frozen=True)
class Build:
    """Cut text into the tokens of one set. A build that was stopped goes on where it was."""

    inputs: tuple[str, ...]
    """Text and .jsonl files, plain or .gz, .bz2, .xz; folders of them; or hf:OWNER/NAME[:PATTERN]."""
    tokenizer: Path
    """A tokenizer.json, of Hugging Face's or made by data.prepare."""
    output: Path
    """The set's name, without a suffix."""
    text_key: str = "text"
    """Key of the text in JSON lines."""
    eod: str = END_OF_DOCUMENT
    """The tokenizer's token for the end of a document."""
    workers: int = 0
    """Processes; 0 for one per core."""
    json: bool = False
    """Print the set's side file instead of a line."""

    def run(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers={self.workers} must be at least 1, or 0 for one per core")
        files = [path for each in self.inputs for path in (fetch(each) if each.startswith(PREFIX) else [Path(each)])]
        with bytes_bar() as progress:
            found = build(files, self.output, self.tokenizer, text_key=self.text_key, end_of_document=self.eod,
                          workers=self.workers, progress=progress)
        say([found], self.json)


@dataclass(frozen=True)
class Verify:
    """Read sets whole against their checksums."""

    names: tyro.conf.Positional[tuple[Path, ...]]

    def run(self) -> None:
        for name in self.names:
            found = IndexedTokens(name)
            found.verify()
            print(f"{found.path}: whole")


@dataclass(frozen=True)
class Show:
    """What sets hold, and how often a run that blends them would see each."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Sets, with :WEIGHT or without."""
    sequence: int = 1024
    """Tokens of a sample."""
    samples: int = 0
    """Length of the run; 0 to leave it out."""
    held_out: float = 0.05
    """Share of each set's tokens for validation, and again for the test."""
    json: bool = False

    def run(self) -> None:
        from data.config import DataConfig
        from data.samples import Samples
        from data.sets import open_sets

        sets = open_sets(DataConfig(sets=self.names, held_out=self.held_out))
        say(list(sets.sets), self.json)
        if self.samples and not self.json:
            order = Samples(sets.tokens("train"), self.sequence).order(0)
            for found, epochs in zip(sets.sets, order.epochs(self.samples), strict=True):
                print(f"{found.path}: {epochs:.3f} epochs in {self.samples:,} samples" + ", repeats" * (epochs > 1))


@dataclass(frozen=True)
class Adopt:
    """Read .bin and .idx files of another tool whole, and write the side file that makes them a set."""

    names: tyro.conf.Positional[tuple[Path, ...]]
    tokenizer: Path
    """The tokenizer.json that cut their text."""
    eod: str = END_OF_DOCUMENT
    """The tokenizer's token for the end of a document."""

    def run(self) -> None:
        vocabulary = tokenizer.load(self.tokenizer, end_of_document=self.eod)
        for name in map(set_name, self.names):
            vocabulary.save(tokenizer_copy(name))
            adopt(name, vocabulary.vocab, vocabulary.eod, vocabulary.sha256)
            say([IndexedTokens(name)], False)


def say(sets: list[IndexedTokens], as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"name": str(found.path), **asdict(found.facts)} for found in sets], indent=1))
        return
    for found in sets:
        h = found.header
        print(f"{found.path}: {h.tokens:,} tokens in {h.documents:,} documents"
              + f" of {h.text_bytes / 1e6:,.1f} MB" * bool(h.text_bytes)
              + f", vocabulary {h.vocab:,}, tokenizer {h.tokenizer_sha256[:12]}")


@contextmanager
def bytes_bar() -> Iterator:
    """A rich bar on standard error over bytes of input."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tokens", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


Commands = (Annotated[Build, tyro.conf.subcommand("build")] | Annotated[Verify, tyro.conf.subcommand("verify")]
            | Annotated[Show, tyro.conf.subcommand("show")] | Annotated[Adopt, tyro.conf.subcommand("adopt")])


def main() -> None:
    try:
        tyro.cli(Commands, prog="python -m data.index", description=__doc__).run()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on with what is missing")


if __name__ == "__main__":
    main()
