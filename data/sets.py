"""The sets of indexed tokens that a recipe trains on, opened: splits by document, and the weights of the blend."""

from dataclasses import dataclass
from fractions import Fraction

from data import tokenizer
from data.build_set import tokenizer_copy
from data.config import DataConfig
from data.indexed import IndexedTokens, Stream
from data.samples import Blend


@dataclass(frozen=True)
class Sets:
    """What a `Prepared` corpus is for sets: tokens of each split, the tokenizer, and the report."""

    config: DataConfig
    sets: tuple[IndexedTokens, ...]

    @property
    def report(self) -> dict:
        """The tokenizer, and of each set its weight, its size and the hash of its tokens."""
        header = self.sets[0].header
        sets = [{"name": str(found.path), "weight": None if weight is None else str(weight),
                 "tokens": found.header.tokens, "documents": found.header.documents,
                 "tokens_sha256": found.facts.tokens_sha256}
                for found, (_, weight) in zip(self.sets, self.config.weighted_sets, strict=True)]
        return {"tokenizer": {"vocab": header.vocab, "eod": header.eod, "sha256": header.tokenizer_sha256}, "sets": sets}

    def tokenizer(self) -> tokenizer.Tokenizer:
        """The tokenizer that lies beside the first set, checked against the hash in the set."""
        first = self.sets[0]
        return tokenizer.load(tokenizer_copy(first.path), first.header.tokenizer_sha256, first.header.eod)

    def tokens(self, split: str) -> Stream | Blend:
        """A split of the set, or of each: train, valid or test. Without weights each counts by its tokens."""
        streams = tuple(part(found, split, self.config.held_out) for found in self.sets)
        if len(streams) == 1:
            return streams[0]
        weights = (weight for _, weight in self.config.weighted_sets)
        return Blend(streams, tuple(Fraction(len(stream) if weight is None else weight)
                                    for stream, weight in zip(streams, weights, strict=True)))

    def text_bytes(self, split: str) -> int:
        """UTF-8 bytes of a split's text as its tokens give it back, the denominator of bits per byte."""
        vocabulary, found = self.tokenizer(), self.tokens(split)
        total = 0
        for stream in found.streams if isinstance(found, Blend) else (found,):
            for document in range(stream.first, stream.last):
                tokens = stream.source.read(*stream.source.index.span(document))
                total += len(vocabulary.decode(tokens[tokens != vocabulary.eod]).encode())
        return total


def part(found: IndexedTokens, split: str, held_out: float) -> Stream:
    """A split of one set, by whole documents in storage order: the last ones, that begin in the last share held_out of
    the tokens, are the test, the ones before them, of as large a share, the validation.

    Raises ValueError where a split would be empty.
    """
    documents, tokens = found.header.documents, found.header.tokens
    borders = [0, *(found.index.first_from(tokens - int(share * held_out * tokens)) for share in (2, 1)), documents]
    at = ("train", "valid", "test").index(split)
    if borders[at] >= borders[at + 1]:
        raise ValueError(f"set {str(found.path)!r}: held_out={held_out} of its {tokens} tokens in {documents} documents "
                         f"leaves no document for the {split} split; raise held_out, or make the set of more documents")
    return found.stream(borders[at], borders[at + 1])


def open_sets(config: DataConfig) -> Sets:
    """The sets of a configuration. Raises ValueError if one is missing or damaged, or has another tokenizer."""
    found = tuple(IndexedTokens(path) for path, _ in config.weighted_sets)
    first = found[0]
    for each in found[1:]:
        if (each.header.tokenizer_sha256, each.header.eod) != (first.header.tokenizer_sha256, first.header.eod):
            raise ValueError(f"set {str(each.path)!r} was cut by another tokenizer ({each.header.tokenizer_sha256[:12]}) "
                             f"than {str(first.path)!r} ({first.header.tokenizer_sha256[:12]}); build both with one")
    return Sets(config, found)
