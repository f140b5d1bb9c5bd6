"""Checkpoints on disk: safetensors files and one JSON manifest, complete or absent, checked when read.

A checkpoint is a folder step-NNNNNNNN. It is written under a temporary name; the manifest, which lists every file with
its size and SHA-256, is written last; then the folder is renamed. Tensors are whole logical tensors cut as each rank
held them (torch.distributed.checkpoint reshards them when read). Nothing is pickled.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from common.checkpoint.files import flush
from common.checkpoint.sharded import as_dtensor
from common.layout import Layout
from common.parameters import Facts

FORMAT = 1
MANIFEST = "manifest.json"
State = Mapping[str, Mapping[str, Tensor]]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason."""


def _flat(state: State, facts: Mapping[str, Facts], layout: Layout) -> dict[str, Tensor]:
    return {f"{kind}.{name}": as_dtensor(x, facts[name], layout) for kind, part in state.items()
            for name, x in part.items()}


def save(folder: Path, state: State, facts: Mapping[str, Facts], layout: Layout, about: dict) -> Path:
    """Writes folder/step-NNNNNNNN from every rank's part of the tensors and rank 0's `about`, a JSON-able dict that
    has "step". Returns the finished folder on every rank. An existing checkpoint of that step is replaced once the
    new one is complete."""
    final = folder / f"step-{about['step']:08d}"
    partial = final.with_suffix(".partial")
    lead, together = layout.rank == 0, layout.grid.world > 1
    if lead:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    if together:
        dist.barrier()
    writer = dcp.HuggingFaceStorageWriter(str(partial), save_distributed=True)
    with _one_process_is_fine():
        dcp.save(_flat(state, facts, layout), storage_writer=writer, no_dist=not together)
    if together:
        dist.barrier()
    if lead:
        files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(partial.iterdir())}
        for name in files:
            flush(partial / name)
        shapes = {n: list(f.shape) for n, f in facts.items()}
        manifest = {"format": FORMAT, **about, "kinds": sorted(state), "shapes": shapes, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        flush(partial / MANIFEST)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        flush(folder)
    if together:
        dist.barrier()
    return final


def read_manifest(folder: Path) -> dict:
    """The manifest of a checkpoint folder; CheckpointError when it is not one."""
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_text())
        known = manifest["format"] == FORMAT and manifest["files"] and manifest["step"] >= 0
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): use another checkpoint") from None
    if not known:
        raise CheckpointError(f"{path} has format {manifest['format']}, this version reads {FORMAT}")
    return manifest


def verify(folder: Path) -> dict:
    """The manifest, once every file has the size and SHA-256 it names; CheckpointError names the first that has not."""
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: the checkpoint is not whole; use another")
        if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
            raise CheckpointError(f"{path} does not have the contents its manifest names: the checkpoint is damaged; "
                                  "use another")
    return manifest


def checkpoints(folder: Path) -> list[Path]:
    """Complete-looking checkpoints, newest first."""
    found = [p for p in folder.glob("step-*") if p.suffix != ".partial" and (p / MANIFEST).is_file()]
    return sorted(found, reverse=True)


def last_good(folder: Path, say=print) -> Path | None:
    """The newest checkpoint that verifies; says what is wrong with each newer one."""
    for candidate in checkpoints(folder):
        try:
            verify(candidate)
        except CheckpointError as error:
            say(f"{error}; trying the one before")
            continue
        return candidate
    return None


def keep_last(folder: Path, count: int) -> None:
    """Removes all but the newest `count` checkpoints."""
    for old in checkpoints(folder)[count:]:
        shutil.rmtree(old)


def load(folder: Path, state: State, facts: Mapping[str, Facts], layout: Layout) -> None:
    """Fills this rank's part of every tensor from a checkpoint written under any layout, in place.

    The caller verifies the folder first (once per job is enough). CheckpointError when the tensors are another model's.
    """
    manifest = read_manifest(folder)
    held = manifest["shapes"]
    wrong = [f"{n}: checkpoint has {held.get(n, 'nothing')}, the model {list(f.shape)}" for n, f in facts.items()
             if held.get(n) != list(f.shape)]
    if wrong:
        raise CheckpointError(f"{folder} holds another model ({len(wrong)} tensors differ), first {wrong[0]}; "
                              "give the configuration that it was trained with")
    missing = sorted(set(state) - set(manifest["kinds"]))
    if missing:
        raise CheckpointError(f"{folder} has no {', '.join(missing)}")
    reader = dcp.HuggingFaceStorageReader(str(folder))
    with _one_process_is_fine():
        dcp.load(_flat(state, facts, layout), storage_reader=reader, no_dist=layout.grid.world == 1)


@contextmanager
def _one_process_is_fine() -> Iterator[None]:
    """torch warns of a missing process group even where it was told that there is none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
