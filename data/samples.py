"""Fixed-length samples of a token stream, their order, and the micro-batches each rank trains on.

Sample i covers tokens [i S, i S + S + 1): S inputs and their S labels, one token further. Samples do not
share inputs, and every token but the first of the stream, and the tail after the last whole sample, is a
label once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from common.models.record import Record
from data.blend import BlendOrder, SampleOrder, Shares
from data.indexed import Stream


@dataclass(frozen=True)
class Blend:
    """Streams that training draws from in proportion to their weights, which are in any unit."""

    streams: tuple[Stream, ...]
    weights: tuple[Fraction, ...]


class Samples:
    """The samples of `sequence` tokens of a stream, or of each stream of a blend.

    vocab: the model's vocabulary; it must cover the stream's, None to leave that unchecked.
    """

    def __init__(self, source: Stream | Blend, sequence: int, vocab: int | None = None):
        if sequence < 1:
            raise ValueError(f"sequence={sequence} must be at least 1")
        self.blend = source if isinstance(source, Blend) else Blend((source,), (Fraction(1),))
        self.sequence = sequence
        for stream in self.streams:
            if len(stream) < sequence + 1:
                raise ValueError(f"sequence={sequence} is longer than the data: {stream.path} holds "
                                 f"{len(stream)} tokens, one sample needs {sequence + 1}; use at most "
                                 f"{max(len(stream) - 1, 0)} or more text")
            if vocab is not None and vocab < stream.vocab:
                raise ValueError(f"vocabulary of {vocab} is smaller than that of {stream.path}, {stream.vocab}; "
                                 f"set the model's to at least {stream.vocab}")

    @property
    def streams(self) -> tuple[Stream, ...]:
        return self.blend.streams

    @property
    def sizes(self) -> tuple[int, ...]:
        """Whole samples of each stream."""
        return tuple((len(stream) - 1) // self.sequence for stream in self.streams)

    def __len__(self) -> int:
        return sum(self.sizes)

    def order(self, seed: int) -> SampleOrder | BlendOrder:
        """The order of training."""
        if len(self.streams) == 1:
            return SampleOrder(len(self), seed)
        return BlendOrder(self.sizes, self.blend.weights, seed)

    def cut(self, sample: int, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and document numbers of one sample of stream `number`, int64 (S + 1,) each; fewer for the tail."""
        stream = self.streams[number]
        start = sample * self.sequence
        stop = min(start + self.sequence + 1, len(stream))
        return stream.read(start, stop), stream.documents(start, stop)


def check_batch(global_batch: int, dp_size: int, micro_batch: int) -> None:
    """Raises ValueError unless the global batch divides into the ranks' micro-batches."""
    if min(global_batch, dp_size, micro_batch) < 1:
        raise ValueError(f"global_batch={global_batch}, dp={dp_size}, micro_batch={micro_batch}: "
                         "all must be positive")
    each = dp_size * micro_batch
    if global_batch % each:
        below = global_batch // each * each
        nearest = f"{below} or {below + each}" if below else f"{each}"
        raise ValueError(f"global_batch={global_batch} is not divisible by dp x micro_batch = {dp_size} x "
                         f"{micro_batch} = {each}; use {nearest}")


def batches(samples: Samples, order: SampleOrder | BlendOrder, *, step: int, global_batch: int, micro_batch: int,
            seed: int, dp_rank: int = 0, dp_size: int = 1, document_mask: bool = False,
            first: int | None = None) -> list[Record]:
    """The micro-batches of one step for one data-parallel rank, global_batch / (dp_size micro_batch) of them.

    The step's samples stand at global positions first to first + global_batch - 1; first is
    step * global_batch unless the batch size changes in training. Each rank takes a contiguous share, so the
    union over ranks, and each sample's number in `Record.samples` (its global position), is the same for
    every dp_size and micro_batch. seed: the run's, for the dropout masks.

    document_mask: `documents` numbers the documents of each row from 0, `positions` restart at each of them,
    and the loss at a document's last input, its end-of-document token, is masked: the first token of the next
    document is not predicted from the previous one. The end-of-document token itself is predicted, as any
    label. Without it documents is None, positions run through and every label counts.
    """
    check_batch(global_batch, dp_size, micro_batch)
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank={dp_rank} is outside of dp={dp_size}")
    if order.sizes != samples.sizes:
        raise ValueError(f"the order is of {order.sizes} samples, the data has {samples.sizes}")
    share = global_batch // dp_size
    start = (step * global_batch if first is None else first) + dp_rank * share
    records = []
    for base in range(start, start + share, micro_batch):
        positions = range(base, base + micro_batch)
        rows = [samples.cut(place.sample, place.set) for place in map(order.sample, positions)]
        records.append(record(rows, positions, samples.sequence, step, seed, document_mask))
    return records


def held_out_batches(samples: Samples, *, micro_batch: int, dp_rank: int = 0, dp_size: int = 1,
                     document_mask: bool = False) -> Iterator[Record]:
    """Every sample once in storage order, the tail as a last, shorter one, for evaluation.

    Every token of a stream but its first is a label once over all ranks; streams of a blend take turns by their
    lengths, whatever their weights. Rank r takes rows r, r + dp_size, and so on. Rows that fill up the last micro-batches, and the end of the tail, have no loss; every rank
    has equally many micro-batches.
    """
    if min(micro_batch, dp_size) < 1 or not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank={dp_rank}, dp={dp_size}, micro_batch={micro_batch}: sizes are positive "
                         "and the rank lies below dp")
    each = [-(-(len(stream) - 1) // samples.sequence) for stream in samples.streams]
    shares, rows = Shares(each), sum(each)
    empty = np.zeros(0, dtype=np.int64)
    for base in range(0, rows, dp_size * micro_batch):
        numbers = range(base + dp_rank, base + dp_size * micro_batch, dp_size)
        cuts = [samples.cut(*shares.place(number)[::-1]) if number < rows else (empty, empty) for number in numbers]
        yield record(cuts, numbers, samples.sequence, 0, 0, document_mask)


def record(rows: list[tuple[np.ndarray, np.ndarray]], numbers: range, sequence: int, step: int, seed: int,
           document_mask: bool) -> Record:
    """A micro-batch (B, S) from rows of (tokens, document numbers), (S + 1,) or shorter with a masked end."""
    tokens = np.zeros((len(rows), sequence + 1), dtype=np.int64)
    documents = np.full((len(rows), sequence + 1), -1, dtype=np.int64)
    for row, (row_tokens, row_documents) in enumerate(rows):
        tokens[row, : len(row_tokens)] = row_tokens
        documents[row, : len(row_documents)] = row_documents
    positions = np.tile(np.arange(sequence), (len(rows), 1))
    loss_mask = documents[:, 1:] >= 0
    ids = None
    if document_mask:
        border = documents[:, 1:] != documents[:, :-1]
        loss_mask &= ~border
        starts = np.zeros((len(rows), sequence), dtype=bool)
        starts[:, 1:] = border[:, :-1]
        positions -= np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
        ids = torch.from_numpy(np.cumsum(starts, axis=1))
    return Record(
        tokens=torch.from_numpy(tokens[:, :-1].copy()), labels=torch.from_numpy(tokens[:, 1:].copy()),
        loss_mask=torch.from_numpy(loss_mask), positions=torch.from_numpy(positions), documents=ids,
        samples=tuple(numbers), step=step, seed=seed,
    )
