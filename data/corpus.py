"""A corpus: read, deduplicated, then split so that no package is in two splits, with what leaks measured."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from data.config import DataConfig
from data.deduplicate import deduplicate
from data.document import Document
from data.leaks import leaks
from data.packages import package_versions, read_packages
from data.text_files import read_local
from data.words import WordStream

SPLITS = ("train", "valid", "test")
HELD_OUT = ("valid", "test")


@dataclass(frozen=True)
class Corpus:
    """Documents of each split in storage order, and the report of how they came to be."""

    splits: dict[str, list[Document]]
    report: dict


def read(config: DataConfig, progress: Callable[[str], None]) -> tuple[list[Document], list[str]]:
    """Every document of the source in order of file and line, and the files that could not be parsed."""
    if config.path is not None:
        progress(f"reading {config.path}")
        return list(read_local(config.path, config.text_key, config.max_bytes)), []
    by_file, unparsed = {}, []
    for split, packages in config.package_split.items():
        progress(f"reading {', '.join(packages)} ({split})")
        for file, documents in read_packages(packages, config.code_share, config.max_bytes):
            if documents is None:
                unparsed.append(file.name)
            else:
                by_file[file.name] = documents
    return [document for name in sorted(by_file) for document in by_file[name]], sorted(unparsed)


def position(unit: str, seed: int) -> int:
    """Where a unit stands in the seed's shuffle of all possible units, 0 to 2^64 - 1."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{unit}".encode()).digest()[:8], "big")


def split_borders(documents: list[Document], config: DataConfig) -> tuple[int, int]:
    """Positions at which validation and test end: each holds the share held_out of the bytes, or one unit."""
    sizes: dict[str, int] = {}
    for document in documents:
        sizes[document.package] = sizes.get(document.package, 0) + len(document.text.encode())
    if not sizes:
        raise ValueError(f"source {config.source!r}: every text has fewer than min_characters="
                         f"{config.min_characters} characters that are not white space; lower min_characters, or "
                         "give longer texts")
    if len(sizes) < 3:
        raise ValueError(f"source {config.source!r} has {len(sizes)} separate text(s) after deduplication; "
                         "training, validation and test need three: separate texts with blank lines, or give "
                         "more files or records")
    units = sorted(sizes, key=lambda unit: position(unit, config.seed))
    share = config.held_out * sum(sizes.values())
    borders, held = [], 0
    for i, unit in enumerate(units):
        held += sizes[unit]
        if held >= share or len(units) - i - 1 <= 2 - len(borders):
            borders.append(position(unit, config.seed))
            held = 0
        if len(borders) == 2:
            break
    return borders[0], borders[1]


def assign(documents: list[Document], kept: np.ndarray, config: DataConfig) -> list[str]:
    """Split of every document, by its package; a local source is cut by the bytes of what was kept."""
    if config.path is None:
        split_of = {name: split for split, packages in config.package_split.items() for name in packages}
        return [split_of[document.package] for document in documents]
    first, second = split_borders([documents[i] for i in kept], config)

    def split(unit: str) -> str:
        place = position(unit, config.seed)
        return "valid" if place <= first else "test" if place <= second else "train"

    names = [split(document.package) for document in documents]
    size = {split: sum(len(documents[i].text) for i in kept if names[i] == split) for split in SPLITS}
    if size["train"] < (0.5 - config.held_out) * sum(size.values()):
        raise ValueError(f"source {config.source!r}: with seed={config.seed} one large text is held out and "
                         "training gets less than half of its share; cut that text into several or try "
                         "another seed")
    return names


def numbers(splits: list[str], among: np.ndarray) -> dict[str, np.ndarray]:
    """Indices among the given ones that belong to each split."""
    names = np.array(splits)[among]
    return {split: among[names == split] for split in SPLITS}


def measure(stream: WordStream, members: dict[str, np.ndarray], size: int) -> dict[str, dict]:
    """Leaks of the held-out splits from the training split, as plain dicts."""
    held_out = {split: stream.take(members[split]) for split in HELD_OUT}
    found = leaks(stream.take(members["train"]), held_out, size)
    return {split: asdict(leak) for split, leak in found.items()}


def build(config: DataConfig, progress: Callable[[str], None] = lambda stage: None) -> Corpus:
    """Read, deduplicate and split. Holds the whole text in memory, three times over at most.

    Raises ValueError naming a missing package or file, a file that is not text, or a split left without text.
    """
    documents, unparsed = read(config, progress)
    progress("deduplicating")
    stream = WordStream.of(document.text for document in documents)
    filled, kept, removed = deduplicate(
        documents, stream, min_characters=config.min_characters, threshold=config.near_threshold,
        shingle=config.near_words, permutations=config.near_permutations,
    )
    names = assign(documents, kept, config)
    after = numbers(names, kept)
    for split in SPLITS:
        if not after[split].size:
            raise ValueError(f"source {config.source!r}: no text is left for the {split} split; "
                             "raise max_bytes or give more text")
    progress("measuring leaks")
    splits = {split: [documents[i] for i in after[split]] for split in SPLITS}
    report = {
        "versions": package_versions(sum(config.package_split.values(), ())) if config.path is None else {},
        "read": counts(documents),
        "unparsed_files": unparsed,
        "removed": asdict(removed),
        "splits": {split: counts(members) for split, members in splits.items()},
        "leak_words": config.leak_words,
        "leaks_before": measure(stream, numbers(names, filled), config.leak_words),
        "leaks_after": measure(stream, after, config.leak_words),
    }
    return Corpus(splits, report)


def counts(documents: list[Document]) -> dict:
    """Documents, UTF-8 bytes, bytes of code, and the units they come from (named where they are few)."""
    units = sorted({document.package for document in documents})
    return {
        "documents": len(documents),
        "bytes": sum(len(document.text.encode()) for document in documents),
        "code_bytes": sum(len(each.text.encode()) for each in documents if each.source.endswith(":code")),
        "packages": units if len(units) <= 16 else len(units),
    }
