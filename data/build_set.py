"""From files of text to a set of indexed tokens, over processes, part by part.

A part is a file, or a run of lines of a large file of JSON lines; each becomes a small set of its own, complete or
absent, so a build that was stopped goes on with the parts that are missing. The parts are then joined in the order
of the files. The result depends on text and tokenizer alone: nodes without a shared file system that each build it
get the same bytes. While it is joined it stands on the disk twice.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

from common.checkpoint.files import write_text
from data import tokenizer
from data.document import Document
from data.index_writer import merge, move, token_writer
from data.indexed import IndexedTokens, file, set_name
from data.lock import exclusive
from data.sidecar import read_sidecar
from data.text_files import COMPRESSED, check_readable, is_jsonl, local_files, read_jsonl, read_text

PART_BYTES = 4 << 20
MOST_PARTS = 4096  # each is mapped while they are joined


@dataclass(frozen=True)
class Part:
    """Bytes begin to stop - 1 of a file, begin and stop at the starts of lines; None stands for its end."""

    path: Path
    begin: int = 0
    stop: int | None = None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return (self.path.stat().st_size if self.stop is None else self.stop) - self.begin

    def documents(self, key: str) -> Iterator[Document]:
        if is_jsonl(self.path):
            return read_jsonl(self.path, self.path.name, key, self.begin, self.stop)
        return read_text(self.path, self.path.name, whole=True)


def cut(files: Sequence[Path], part_bytes: int = PART_BYTES) -> list[Part]:
    """The parts of the files, in their order. Compressed files and text files are not divided."""
    least = max(part_bytes, sum(path.stat().st_size for path in files) // MOST_PARTS)
    parts = []
    for path in files:
        begins = [0]
        if is_jsonl(path) and path.suffix.lower() not in COMPRESSED:
            with path.open("rb") as stream:
                for at in range(least, path.stat().st_size, least):
                    stream.seek(at - 1)
                    begins.append(at - 1 + len(stream.readline()))
            begins = sorted({begin for begin in begins if begin < path.stat().st_size} | {0})
        parts += [Part(path, *ends) for ends in zip(begins, [*begins[1:], None], strict=True)]
    return parts


def build(inputs: Sequence[Path], output: Path, tokenizer_path: Path, *, text_key: str = "text",
          end_of_document: str = tokenizer.END_OF_DOCUMENT, workers: int = 0, part_bytes: int = PART_BYTES,
          progress: Callable[[int, int], None] = lambda done, total: None) -> IndexedTokens:
    """The set `output` of the documents of `inputs`, files or folders in the order given; made now if it is not there.

    A text file is one document, or those between its <|endoftext|> lines; JSON lines are one each. Documents without
    text are left out. tokenizer_path: a tokenizer.json; a copy of it lies beside the set. workers: processes, 0 for
    one per core. progress is called with the input bytes that are done and their sum.

    Raises ValueError for anything that the user can put right, OSError where the disk fails; the parts that are
    done stay for the next call.
    """
    output, files = set_name(output), [path for each in inputs for path in local_files(each)]
    for path in files:
        check_readable(path)
    vocabulary = tokenizer.load(tokenizer_path, end_of_document=end_of_document)
    parts = cut(files, part_bytes)
    source = _identity(parts, vocabulary, text_key)
    output.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(output.with_name(f".{output.name}.lock")):
        if file(output, ".json").exists():
            if read_sidecar(output).source != source:
                raise ValueError(f"{output} is there already, made of other text, settings or tokenizer; remove its "
                                 "files or choose another name")
            return IndexedTokens(output)
        folder = output.with_name(f".{output.name}.parts")
        names = _take_up(folder, source, len(parts))
        _tokenise(parts, names, vocabulary, folder, text_key, source, workers or os.cpu_count() or 1, progress)
        found = [IndexedTokens(name) for name in names]
        if not any(part.header.documents for part in found):
            raise ValueError(f"{', '.join(map(str, inputs))}: no text to make a set of")
        merge(found, folder / "set", source)
        vocabulary.save(tokenizer_copy(output))
        move(folder / "set", output)
        shutil.rmtree(folder)
    return IndexedTokens(output)


def tokenizer_copy(name: Path) -> Path:
    """The tokenizer that lies beside a set."""
    return file(name, ".tokenizer.json")


def _identity(parts: Sequence[Part], vocabulary: tokenizer.Tokenizer, text_key: str) -> str:
    """Hash of what a set is made of: files by name, size and time of change, not by content."""
    facts = [(str(p.path), p.begin, p.stop, p.path.stat().st_size, p.path.stat().st_mtime_ns) for p in parts]
    content = json.dumps([facts, vocabulary.sha256, vocabulary.eod, text_key])
    return hashlib.sha256(content.encode()).hexdigest()


def _take_up(folder: Path, source: str, number: int) -> list[Path]:
    """Names of the parts in a folder that holds none of another build."""
    plan = folder / "plan.txt"
    if not plan.is_file() or plan.read_text(encoding="utf-8") != source:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(plan, source)
    for left in folder.glob(".*.partial"):
        left.unlink()
    return [folder / f"{i:06d}" for i in range(number)]


def _is_done(name: Path, source: str) -> bool:
    try:
        part = IndexedTokens(name)
        part.verify()
    except ValueError:
        return False
    return part.facts.source == source


def _tokenise(parts: Sequence[Part], names: Sequence[Path], vocabulary: tokenizer.Tokenizer, folder: Path, key: str,
              source: str, workers: int, progress: Callable[[int, int], None]) -> None:
    total = sum(part.size for part in parts)
    missing = [i for i, name in enumerate(names) if not _is_done(name, source)]
    done = total - sum(parts[i].size for i in missing)
    progress(done, total)
    if not missing:
        return
    copy = folder / "tokenizer.json"
    vocabulary.save(copy)
    number = min(workers, len(missing))
    pool = ProcessPoolExecutor(number, get_context("forkserver"), _start_worker, (max(1, workers // number),))
    try:
        eod = vocabulary.token(vocabulary.eod)
        # The largest first, so that none is left to run alone.
        order = sorted(missing, key=lambda i: -parts[i].size)
        running = {pool.submit(_one, parts[i], names[i], copy, eod, key, source): i for i in order}
        for future in as_completed(running):
            future.result()
            done += parts[running[future]].size
            progress(done, total)
    except BrokenProcessPool:
        raise ChildProcessError("a process that cut text into tokens was killed, perhaps for want of memory; call "
                                "again with fewer workers: what is done is kept") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(threads: int) -> None:
    """threads: that one call of the tokenizer may use. A worker ends with the process that started it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)

    def watch() -> None:
        connection.wait([parent_process().sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _one(part: Part, name: Path, tokenizer_path: Path, eod: str, key: str, source: str) -> None:
    """Cut one part into tokens."""
    vocabulary = _loaded(tokenizer_path, eod)
    with token_writer(name, vocabulary.vocab, vocabulary.eod, vocabulary.sha256, source) as writer:
        documents = part.documents(key)
        while texts := [document.text for document in islice(documents, tokenizer.BATCH)]:
            for text, tokens in zip(texts, vocabulary.encode_many(texts), strict=True):
                if tokens.size:
                    writer.add(tokens, len(text.encode()))


_held: dict[tuple[Path, str], tokenizer.Tokenizer] = {}


def _loaded(path: Path, eod: str) -> tokenizer.Tokenizer:
    """A worker reads the tokenizer once."""
    if (path, eod) not in _held:
        _held[path, eod] = tokenizer.load(path, end_of_document=eod)
    return _held[path, eod]
