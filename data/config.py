"""What a corpus is made of and how it is cut into tokens."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

PACKAGES = "packages"
SMALLEST_VOCABULARY = 257
LARGEST_VOCABULARY = 1 << 20


@dataclass(frozen=True)
class DataConfig:
    """Corpus, tokenizer and split. Every field changes the prepared data, so every field is in its name."""

    source: str = PACKAGES
    """ "packages" for the text of installed packages, or a text file, a .jsonl file or a folder of them."""
    sets: tuple[str, ...] = ()
    """Sets made by data.index in place of a source: NAME or NAME:WEIGHT each; without weights each counts by its
    tokens. Of the other fields only held_out is then used."""
    vocab: int = 4096
    """Entries of the byte-level BPE vocabulary, the end-of-document token included."""
    seed: int = 0
    """Chooses which units of a local source are held out."""
    max_bytes: int | None = None
    """Most bytes of text read for training and for each held-out split (a local source: in all)."""
    train_packages: tuple[str, ...] = ("numpy", "scipy", "sympy", "torch", "transformers")
    """Packages to train on."""
    valid_packages: tuple[str, ...] = ("matplotlib",)
    """Packages held out for validation."""
    test_packages: tuple[str, ...] = ("pandas",)
    """Packages held out for the test."""
    code_share: float = 0.05
    """Share of the packages' files of which the code is taken beside the docstrings."""
    held_out: float = 0.05
    """Share of a local source's bytes, or of each set's tokens, for validation, and again for the test."""
    text_key: str = "text"
    """Key of the text in JSON lines."""
    min_characters: int = 32
    """Documents with fewer characters, white space not counted, are dropped."""
    near_threshold: float = 0.7
    """Jaccard similarity from which two documents are near duplicates; 1 drops exact duplicates alone."""
    near_words: int = 5
    """Words in the shingles that are compared."""
    near_permutations: int = 128
    """Hash functions of MinHash."""
    leak_words: int = 13
    """Words in the windows whose presence in the training text is reported as a leak."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError('source is empty; give "packages", a file or a folder')
        whole = {"min_characters": 1, "near_words": 1, "near_permutations": 16, "leak_words": 1, "seed": 0}
        for name, least in whole.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if not SMALLEST_VOCABULARY <= self.vocab <= LARGEST_VOCABULARY:
            raise ValueError(f"vocab={self.vocab}: byte-level BPE needs {SMALLEST_VOCABULARY} entries (256 "
                             f"bytes and the end of document) to {LARGEST_VOCABULARY}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"max_bytes={self.max_bytes} must be positive, or left out for everything")
        if not 0 <= self.code_share <= 1:
            raise ValueError(f"code_share={self.code_share} must lie between 0 (docstrings alone) and 1")
        if not 0 < self.held_out < 0.5:
            raise ValueError(f"held_out={self.held_out} must lie between 0 and 0.5 to leave training text")
        if not 0 < self.near_threshold <= 1:
            raise ValueError(f"near_threshold={self.near_threshold} must be above 0 and at most 1")
        if self.source == PACKAGES:
            check_packages(self)
        check_sets(self.weighted_sets)

    @property
    def path(self) -> Path | None:
        """The local source, None for packages."""
        return None if self.source == PACKAGES else Path(self.source)

    @property
    def weighted_sets(self) -> tuple[tuple[Path, Fraction | None], ...]:
        """Name and weight of each set."""
        return tuple(weighted(text) for text in self.sets)

    @property
    def package_split(self) -> dict[str, tuple[str, ...]]:
        """Packages of each split."""
        return {"train": self.train_packages, "valid": self.valid_packages, "test": self.test_packages}


def check_packages(config: DataConfig) -> None:
    """Each split has a package, and no package is in two."""
    seen: dict[str, str] = {}
    for split, packages in config.package_split.items():
        if not packages:
            raise ValueError(f"{split}_packages is empty; name at least one package")
        for package in packages:
            if package in seen:
                raise ValueError(f"package {package!r} is in {split}_packages and {seen[package]}_packages; "
                                 "a package belongs to one split")
            seen[package] = split


def weighted(text: str) -> tuple[Path, Fraction | None]:
    """The name and the weight, None where none is given, in NAME or NAME:WEIGHT; the weight is exact."""
    name, colon, weight = text.rpartition(":")
    if not colon:
        return Path(text), None
    try:
        return Path(name), Fraction(weight)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"sets: {text!r} has no number after its colon; write NAME or NAME:WEIGHT") from None


def check_sets(sets: tuple[tuple[Path, Fraction | None], ...]) -> None:
    """Each set once, above zero, all with a weight or none."""
    names = [name.with_suffix("") if name.suffix in (".bin", ".idx", ".json") else name for name, _ in sets]
    for (name, weight), plain in zip(sets, names, strict=True):
        if weight is not None and weight <= 0:
            raise ValueError(f"sets: {name} has weight {weight}; leave out a set that should not be seen")
        if names.count(plain) > 1:
            raise ValueError(f"sets: {plain} is named twice; add up its weights")
    if len({weight is None for _, weight in sets}) > 1:
        raise ValueError("sets: give each a weight, or none, and each counts by its tokens")


SMALL_CORPUS = DataConfig(vocab=1024, max_bytes=300_000, train_packages=("numpy",), valid_packages=("tyro",),
                          test_packages=("rich",))
"""Prepared in seconds, once; its tokens last for longer than any laptop recipe of a paper runs."""
