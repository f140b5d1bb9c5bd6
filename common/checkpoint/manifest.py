"""The manifest of a checkpoint: what it holds and where, sealed with its own checksum.

    format, step and what the caller wrote   one JSON entry a line
    kinds      of tensors: parameters and, where it was saved, the optimizer's state
    shapes     of every parameter of the model: whole, logical, unpadded
    files      {name: {bytes, sha256}}
    tensors    {kind.name: {dtype, pieces: [[file, offset, size], ...]}}; the pieces hold each element once
    sha256     of everything above
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from common.checkpoint.sharded import Index

FORMAT = 2
MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or used, with the reason."""


def key(tensor: str, offset: Index, size: Index, shape: Index) -> str:
    """The name of a piece in its file: the tensor's own when it is the whole tensor."""
    return tensor if tuple(size) == tuple(shape) else f"{tensor}@{','.join(map(str, offset))}"


def text(content: dict) -> str:
    """A manifest as it stands in its file. content: everything but format and checksum."""
    entries = {"format": FORMAT, **content}
    return _seal("{\n" + "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in entries.items()))


def read_manifest(folder: Path) -> dict:
    """The manifest of a checkpoint folder; CheckpointError when it is not one, or is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}")
    try:
        written = path.read_text(encoding="utf-8")
        content = json.loads(written)
        version = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): use another checkpoint") from None
    if version != FORMAT:
        raise CheckpointError(f"{path} has format {version}, this version reads {FORMAT}")
    if _seal(written.rpartition(_SEAL)[0]) != written:
        raise CheckpointError(f"{path} is damaged (its own checksum does not match): use another checkpoint")
    return content


def check_whole(tensor: str, shape: Index, held: int) -> None:
    """CheckpointError unless `held` elements, none of them twice, are all of the tensor."""
    if held != (total := elements(shape)):
        raise CheckpointError(f"the ranks hold {held} of the {total} elements of {tensor} {list(shape)}")


def elements(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


_SEAL = ' "sha256": '


def _seal(entries: str) -> str:
    return f'{entries}{_SEAL}"{hashlib.sha256(entries.encode()).hexdigest()}"\n}}\n'
