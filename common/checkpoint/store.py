"""Checkpoints on disk: safetensors files and one JSON manifest, complete or absent, checked when read.

A checkpoint is a folder step-NNNNNNNN. It is written under a temporary name; the manifest, which lists every
file with its size and SHA-256, is written last; then the folder is renamed. Tensors are whole logical tensors
in the boxes that the ranks held, every element once (torch.distributed.checkpoint reshards them when read).
Nothing is pickled.

The functions that take a layout are called by all of its ranks together; what one of them learns, an error
too, all learn.
"""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from common.checkpoint import background
from common.checkpoint.background import Saving
from common.checkpoint.manifest import MANIFEST, CheckpointError, read_manifest
from common.checkpoint.plan import EachElementOnce, InPlace
from common.checkpoint.sharded import Part, Piece
from common.checkpoint.storage import Reader, Writer, checkpoints, folders, keep_last, sha256
from common.layout import SERIAL, Layout
from common.parameters import Facts, Slice

__all__ = ["MANIFEST", "CheckpointError", "Saving", "State", "checkpoints", "keep_last", "last_good", "load",
           "read_manifest", "save", "start_save", "verify"]

State = Mapping[str, Mapping[str, Slice]]  # {kind: {parameter name: this rank's run}}


def save(folder: Path, state: State, facts: Mapping[str, Facts], layout: Layout, about: dict,
         keep: int | None = None) -> Path:
    """Writes folder/step-NNNNNNNN from every rank's runs of the tensors and rank 0's `about`.

    about: a JSON-able dict that has "step". Returns the finished folder on every rank. Copies are written
    once, and the work is shared among those who hold them. When it is complete the checkpoint replaces one of
    the same step and pushes out all but the newest `keep`. CheckpointError, on every rank, when it was not
    written: then the folder is as before.
    """
    background.settle(layout)
    writer, pieces = _prepare(folder, state, facts, layout, about, keep)
    _write(writer, pieces, layout.rank, background.group(layout))
    return writer.target


def start_save(folder: Path, state: State, facts: Mapping[str, Facts], layout: Layout, about: dict,
               keep: int | None = None) -> Saving:
    """Like `save`, but returns when this rank's tensors are copied to the host's memory; the rest goes on
    beside training.

    One save is under way at a time: this waits for the one before. Its error, if it failed and nobody has
    been told, is raised here, before anything else is done; training and the checkpoints before are as they
    were. Call wait() on the last one before the process group goes away.
    """
    background.settle(layout)
    copies = {kind: {name: Slice(x.data.detach().to("cpu", copy=True), x.start) for name, x in held.items()}
              for kind, held in state.items()}
    writer, pieces = _prepare(folder, copies, facts, layout, about, keep)
    rank, group = layout.rank, background.group(layout)
    return background.begin(layout, writer.target, lambda: _write(writer, pieces, rank, group))


def verify(folder: Path, layout: Layout = SERIAL) -> dict:
    """The manifest, once every file has the size and SHA-256 it names; CheckpointError names the first that
    has not.

    The ranks of the layout share the files among them. Without a layout it is a plain function, for use
    before any rank starts.
    """
    background.settle(layout)
    manifest = background.told(layout, lambda: read_manifest(folder))
    mine = list(manifest["files"])[layout.rank::layout.grid.world]
    fault = _first_fault(folder, {name: manifest["files"][name] for name in mine})
    if fault := next((f for f in background.everyones(layout, fault) if f), ""):
        raise CheckpointError(fault)
    return manifest


def last_good(folder: Path, layout: Layout = SERIAL, say=print) -> Path | None:
    """The newest checkpoint that verifies; rank 0 says what is wrong with each newer one."""
    background.settle(layout)
    for candidate in background.told(layout, lambda: folders(folder)):
        try:
            verify(candidate, layout)
        except CheckpointError as error:
            if layout.rank == 0:
                say(f"{error}; trying the one before")
            continue
        return candidate
    return None


def load(folder: Path, state: State, facts: Mapping[str, Facts], layout: Layout) -> None:
    """Fills this rank's runs of every tensor from a checkpoint written under any layout, in place.

    It hashes nothing: who has not verified the folder does so first, once per job. CheckpointError, on every
    rank, when the tensors are another model's.
    """
    background.settle(layout)
    manifest = background.told(layout, lambda: read_manifest(folder))
    group = background.group(layout)
    pieces = _pieces(state, facts, layout)
    _one_process_is_fine()
    with _plain_error(f"{folder} cannot be loaded"):
        dcp.load({}, storage_reader=Reader(folder, manifest, state.keys()), planner=InPlace(pieces),
                 process_group=group, no_dist=group is None)


def _prepare(folder: Path, state: State, facts: Mapping[str, Facts], layout: Layout, about: dict,
             keep: int | None) -> tuple[Writer, dict[str, Piece]]:
    about = json.loads(json.dumps(about))
    return Writer(folder / f"step-{about['step']:08d}", about, keep), _pieces(state, facts, layout)


def _pieces(state: State, facts: Mapping[str, Facts], layout: Layout) -> dict[str, Piece]:
    """By kind.name, in the order of the facts, which is the model's."""
    for kind, held in state.items():
        if strange := held.keys() - facts.keys():
            raise ValueError(f"{kind} of {min(strange)} has no facts: every parameter of a state needs them")
    return {f"{kind}.{name}": Piece(Part.of(f, layout), held[name]) for kind, held in state.items()
            for name, f in facts.items() if name in held}


def _write(writer: Writer, pieces: dict[str, Piece], rank: int, group) -> None:
    _one_process_is_fine()
    try:
        with _plain_error(f"{writer.target} was not written"):
            dcp.save({}, storage_writer=writer, planner=EachElementOnce(pieces), process_group=group,
                     no_dist=group is None)
    except CheckpointError:
        if rank == 0:
            shutil.rmtree(writer.partial, ignore_errors=True)
        raise


def _first_fault(folder: Path, files: Mapping[str, dict]) -> str:
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing: the checkpoint is not whole; use another"
        if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
            return f"{path} does not have the contents its manifest names: it is damaged; use another"
    return ""


@contextmanager
def _plain_error(what: str) -> Iterator[None]:
    """The first rank's error in one line, in place of torch's tracebacks of all; every rank raises the
    same."""
    try:
        yield
    except CheckpointException as failed:
        rank, (error, _) = min(failed.failures.items())
        known = isinstance(error, CheckpointError | OSError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{what}: {reason} (rank {rank})") from error
    except RuntimeError as error:
        raise CheckpointError(f"{what}: another rank has gone ({error})") from error


def _one_process_is_fine() -> None:
    """torch warns of a missing process group even where it was told that there is none. The filter stays: to
    put back those before would not be safe beside a thread."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
