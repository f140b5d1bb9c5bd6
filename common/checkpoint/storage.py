"""Where the pieces lie: one safetensors file a rank, and the manifest that completes them.

The storage that torch.distributed.checkpoint writes to and reads from. Its own for safetensors keeps one box
of a tensor per file, and a run may be several.
"""

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
from torch.futures import Future

from common.checkpoint import manifest
from common.checkpoint.files import flush, write_text
from common.checkpoint.manifest import MANIFEST, CheckpointError, check_whole, elements, key
from common.checkpoint.plan import EachElementOnce, InPlace
from common.checkpoint.sharded import Box

PARTIAL, REPLACED = ".partial", ".replaced"


@dataclass(frozen=True)
class File:
    """A file as it was written: its name, bytes and SHA-256, and the boxes of tensors in it."""

    name: str
    bytes: int
    sha256: str
    pieces: tuple[tuple[str, Box], ...]


class Writer(StorageWriter):
    """Writes beside `target`, which appears when all is there, its manifest last.

    about: goes into the manifest. keep: of the checkpoints in the folder the newest so many stay; None keeps
    all.
    """

    def __init__(self, target: Path, about: dict, keep: int | None):
        self.target, self.about, self.keep = target, about, keep
        self.partial = target.with_name(target.name + PARTIAL)

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False  # it is never found by a path

    def set_up_storage_writer(self, is_coordinator: bool, rank: int = 0, **kwargs: Any) -> None:
        self.rank = rank

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the first rank, before any writes: an empty folder, and none of what a crash left behind."""
        remove_leavings(self.target.parent)
        self.partial.mkdir(parents=True)
        return plans

    def write_data(self, plan: SavePlan, planner: EachElementOnce) -> Future[list[File]]:
        tensors, pieces = {}, {}
        for item in plan.items:
            chunk = item.tensor_data.chunk
            name = key(item.index.fqn, chunk.offsets, chunk.sizes, item.tensor_data.size)
            tensors[name] = planner.resolve_data(item).cpu().contiguous()
            pieces[name] = item.index.fqn, (tuple(chunk.offsets), tuple(chunk.sizes))
        written: Future[list[File]] = Future()
        written.set_result([self._write(tensors, tuple(pieces.values()))] if tensors else [])
        return written

    def _write(self, tensors: dict[str, torch.Tensor], pieces: tuple[tuple[str, Box], ...]) -> File:
        path = self.partial / f"rank-{self.rank:05d}.safetensors"
        try:
            save_file(tensors, path, {"format": "pt"})
            flush(path)
            return File(path.name, path.stat().st_size, sha256(path), pieces)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from None

    def finish(self, metadata: Metadata, results: list[list[File]]) -> None:
        """On the first rank, when all have written."""
        files = [file for each in results for file in each]
        write_text(self.partial / MANIFEST, manifest.text(self.about | _contents(metadata, files)))
        flush(self.partial)
        aside = self.target.with_name(self.target.name + REPLACED)
        if self.target.exists():
            self.target.rename(aside)
        self.partial.rename(self.target)
        flush(self.target.parent)
        shutil.rmtree(aside, ignore_errors=True)
        if self.keep is not None:
            keep_last(self.target.parent, self.keep)


class Reader(StorageReader):
    """Reads tensors from a checkpoint's folder. content: its manifest. kinds: of tensors that are wanted."""

    def __init__(self, folder: Path, content: dict, kinds: Collection[str]):
        self.folder, self.content, self.kinds = folder, content, kinds

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False  # it is never found by a path

    def read_metadata(self) -> Metadata:
        tensors, where = {}, {}
        for name, held in self.content["tensors"].items():
            kind, _, parameter = name.partition(".")
            if kind not in self.kinds:
                continue
            shape = self.content["shapes"][parameter]
            chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for _, o, s in held["pieces"]]
            properties = TensorProperties(getattr(torch, held["dtype"]))
            tensors[name] = TensorStorageMetadata(properties, torch.Size(shape), chunks)
            where |= {MetadataIndex(name, o): (file, key(name, o, s, shape)) for file, o, s in held["pieces"]}
        return Metadata(tensors, storage_data=where)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, **kwargs: Any) -> None:
        self.where = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: InPlace) -> Future[None]:
        by_file: dict[str, list[tuple[str, ReadItem]]] = defaultdict(list)
        for item in plan.items:
            file, name = self.where[item.storage_index]
            by_file[file].append((name, item))
        for file, items in by_file.items():
            try:
                self._read(self.folder / file, items, planner)
            except (OSError, SafetensorError) as error:
                path = self.folder / file
                raise CheckpointError(f"{path} cannot be read ({error}): use another checkpoint") from None
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, path: Path, items: list[tuple[str, ReadItem]], planner: InPlace) -> None:
        with safe_open(path, framework="pt") as f:
            for name, item in items:
                box = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
                planner.resolve_tensor(item).copy_(f.get_slice(name)[box])


def folders(folder: Path) -> list[Path]:
    """What was once a checkpoint, newest first."""
    found = [p for p in folder.glob("step-*") if p.suffix != PARTIAL]
    return sorted(found, key=lambda p: (p.stem, p.suffix != REPLACED), reverse=True)


def checkpoints(folder: Path) -> list[Path]:
    """Complete-looking checkpoints, newest first."""
    return [p for p in folders(folder) if (p / MANIFEST).is_file()]


def keep_last(folder: Path, count: int) -> None:
    """Removes all but the newest `count` checkpoints."""
    for old in checkpoints(folder)[count:]:
        shutil.rmtree(old)


def remove_leavings(folder: Path) -> None:
    """Removes what saves that were broken off have left in a folder of checkpoints."""
    for partial in folder.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(partial)
    for old in folder.glob(f"step-*{REPLACED}"):
        if old.with_suffix("").exists():
            shutil.rmtree(old)


def sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _contents(metadata: Metadata, files: list[File]) -> dict:
    """The manifest's entries on tensors and files; CheckpointError unless all elements were written."""
    pieces: dict[str, list] = defaultdict(list)
    for file in files:
        for name, (offset, size) in file.pieces:
            pieces[name].append([file.name, offset, size])
    tensors, shapes = {}, {}
    for name, tensor in sorted(metadata.state_dict_metadata.items()):
        check_whole(name, tensor.size, sum(elements(size) for _, _, size in pieces[name]))
        shapes[name.partition(".")[2]] = list(tensor.size)
        tensors[name] = {"dtype": str(tensor.properties.dtype).removeprefix("torch."), "pieces": pieces[name]}
    return {"kinds": sorted({name.partition(".")[0] for name in tensors}), "shapes": shapes,
            "files": {f.name: {"bytes": f.bytes, "sha256": f.sha256} for f in files}, "tensors": tensors}
