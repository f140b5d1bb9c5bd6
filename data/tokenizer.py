"""Byte-level byte-pair encoding (Sennrich et al. 2016; bytes as in GPT-2), trained with `tokenizers`.

Every byte is in the vocabulary and the text is not normalised, so encoding loses nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from common.checkpoint.files import replaced

END_OF_DOCUMENT = "<|endoftext|>"
BATCH = 1024


class Tokenizer:
    """A trained vocabulary.

    vocab: number of token ids. eod: id of the end-of-document token, which encoding never produces: the same
    characters in a text are encoded as the text they are. sha256: hash of the JSON that `save` writes.
    """

    def __init__(self, backend: tokenizers.Tokenizer, end_of_document: str = END_OF_DOCUMENT):
        backend.encode_special_tokens = True
        self._backend = backend
        self.vocab = backend.get_vocab_size()
        self.eod = backend.token_to_id(end_of_document)
        self.sha256 = hashlib.sha256(self._json().encode()).hexdigest()

    def _json(self) -> str:
        return self._backend.to_str(pretty=True)

    def encode(self, text: str) -> np.ndarray:
        """Token ids of the text, int64 (tokens,), without an end-of-document token.

        Raises ValueError for half a surrogate pair, which has no UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"character {error.start} of the text is half of a surrogate pair; "
                             "remove it or give the whole pair") from None
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_many(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """`encode` of each text, in parallel over batches."""
        batch: list[str] = []
        for text in texts:
            batch.append(text)
            if len(batch) == BATCH:
                yield from self._encode_batch(batch)
                batch = []
        yield from self._encode_batch(batch)

    def _encode_batch(self, texts: list[str]) -> Iterator[np.ndarray]:
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the token ids. An end-of-document token shows as its name; a cut character as U+FFFD."""
        return self._backend.decode([int(each) for each in ids], skip_special_tokens=False)

    def token(self, id: int) -> str:
        """The name of a token."""
        return self._backend.id_to_token(id)

    def save(self, path: Path) -> None:
        """Write the vocabulary as one JSON in the layout of `tokenizers` (tokenizer.json)."""
        with replaced(path) as partial:
            partial.write_text(self._json(), encoding="utf-8", newline="\n")


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A vocabulary of `vocab` ids from the texts: end of document (id 0), 256 bytes, then merges by count.

    Raises ValueError if the texts have too few distinct pairs for a vocabulary of that size.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END_OF_DOCUMENT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = Tokenizer(backend)
    if tokenizer.vocab != vocab:
        raise ValueError(f"vocab={vocab}: the training text yields only {tokenizer.vocab} entries; "
                         f"give more text or set vocab to at most {tokenizer.vocab}")
    return tokenizer


def load(path: Path, sha256: str | None = None, end_of_document: str | int = END_OF_DOCUMENT) -> Tokenizer:
    """Read a tokenizer, made here or any tokenizer.json of Hugging Face's. sha256: the hash that its file must have,
    None to take it as it is. end_of_document: name or id of that token.

    Raises ValueError if the file is missing, is no tokenizer, has no such token, or is another than expected.
    """
    if not path.is_file():
        raise ValueError(f"tokenizer {path} does not exist; python -m data.prepare makes one")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise ValueError(f"tokenizer {path} has sha256 {found[:12]}..., the tokens were made with "
                         f"{sha256[:12]}...; use the tokenizer that lies beside the tokens or prepare "
                         "the data anew")
    try:
        backend = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot parse
        raise ValueError(f"tokenizer {path} is not a tokenizers JSON file: {error}") from None
    if isinstance(end_of_document, int):
        end_of_document = backend.id_to_token(end_of_document) or str(end_of_document)
    if backend.token_to_id(end_of_document) is None:
        special = ", ".join(sorted(t.content for t in backend.get_added_tokens_decoder().values() if t.special))
        raise ValueError(f"tokenizer {path} has no {end_of_document}, which marks the end of a document; name one of its "
                         f"special tokens: {special or 'it has none'}")
    return Tokenizer(backend, end_of_document)
