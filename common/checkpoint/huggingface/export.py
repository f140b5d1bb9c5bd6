"""Weights of a model under any layout into a checkpoint that transformers reads."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from common.checkpoint.files import flush
from common.checkpoint.huggingface.architecture import Architecture
from common.checkpoint.huggingface.registry import architecture_for, config_to_hf
from common.checkpoint.huggingface.tensors import INDEX, SINGLE, expected_shapes
from common.layout import Layout
from common.models.language_model import LanguageModel
from common.parallel.gradients import gather_whole
from common.parameters import named

SHARD_BYTES = 5 * 2**30


@dataclass(frozen=True)
class Shard:
    """One file to write: the tensors it holds, in order, and their bytes."""

    tensors: tuple[str, ...]
    bytes: int


def export_hf(
    model: LanguageModel,
    layout: Layout,
    folder: Path | str,
    *,
    architecture: str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes safetensors files and config.json; every rank calls it, all see the folder's file system.

    architecture: a class of transformers, default the first that can hold the model. dtype: of the files,
    default the parameters'. The folder appears whole or not at all; one that exists is replaced only with
    `overwrite`, and then only if it is a checkpoint or empty. Files hold logical tensors: no copies, no
    padding of the vocabulary. Raises ValueError before anything is written.
    """
    folder = Path(folder).resolve()
    chosen = architecture_for(model.config, architecture)
    dtype = dtype or next(model.parameters()).dtype
    check_target(folder, overwrite)
    partial = folder.with_name(f".{folder.name}.partial")
    _barrier(layout)
    if layout.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _barrier(layout)
    if layout.index("dp") == layout.index("cp") == 0:
        _write_stage(model, layout, partial, chosen, dtype, shard_bytes)
    _barrier(layout)
    if layout.rank == 0:
        values = config_to_hf(model.config, chosen.name) | {"torch_dtype": str(dtype).removeprefix("torch.")}
        _write_json(partial / "config.json", values)
        _publish(partial, folder)
    _barrier(layout)


def check_target(folder: Path, overwrite: bool) -> None:
    """ValueError when a checkpoint must not be written to this folder."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder that does not exist")
    if not any(folder.iterdir()):
        return
    if not overwrite:
        raise ValueError(f"{folder} exists: name another folder, or ask for overwrite")
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} is no checkpoint (it has no config.json), so it is not replaced: name another folder"
        )


def _write_stage(
    model: LanguageModel,
    layout: Layout,
    folder: Path,
    architecture: Architecture,
    dtype: torch.dtype,
    shard_bytes: int,
) -> None:
    """Writes the files of this stage; its first tensor rank does, the others give their parts."""
    parameters = {n: (p, f) for n, p, f in named(model) if f.copy_of is None}
    shapes = expected_shapes({n: f for n, (_, f) in parameters.items()}, architecture)
    writer = layout.index("tp") == 0
    shards = _plan(shapes, dtype.itemsize, shard_bytes)
    names = _file_names(shards, layout, folder) if writer else {}
    pending: dict[str, Tensor] = {}
    missing = {t: 0 for t in shapes}
    for name in parameters:
        for piece in architecture.pieces(name):
            missing[piece.name] += 1
    for name, (p, facts) in parameters.items():
        whole = gather_whole(p.detach(), facts, layout)
        if not writer:
            continue
        for piece in architecture.pieces(name):
            target = pending.setdefault(piece.name, torch.empty(shapes[piece.name], dtype=dtype))
            piece.place_in(target, whole, facts)
            missing[piece.name] -= 1
        for shard in [s for s in names if all(missing[t] == 0 for t in s.tensors)]:
            path = folder / names.pop(shard)
            save_file({t: pending.pop(t) for t in shard.tensors}, path, {"format": "pt"})
            flush(path)


def _plan(shapes: dict[str, tuple[int, ...]], itemsize: int, limit: int) -> list[Shard]:
    """Tensors in order, a new file where the next tensor would pass `limit` bytes."""
    shards: list[Shard] = []
    for name, shape in shapes.items():
        size = torch.Size(shape).numel() * itemsize
        if shards and shards[-1].bytes + size <= limit:
            shards[-1] = Shard((*shards[-1].tensors, name), shards[-1].bytes + size)
        else:
            shards.append(Shard((name,), size))
    return shards


def _file_names(mine: list[Shard], layout: Layout, folder: Path) -> dict[Shard, str]:
    """File of each of this stage's shards, numbered over all stages; the first stage writes the index."""
    stages = [mine]
    group = layout.group("pp")
    if group.size > 1:
        stages = [[] for _ in group.ranks]
        dist.all_gather_object(stages, mine, group=group.handle)
    every = [s for stage in stages for s in stage]
    if len(every) == 1:
        return {every[0]: SINGLE}
    names = {s: f"model-{i + 1:05d}-of-{len(every):05d}.safetensors" for i, s in enumerate(every)}
    if group.index == 0:
        where = {t: file for s, file in names.items() for t in s.tensors}
        _write_json(folder / INDEX, {"metadata": {"total_size": sum(s.bytes for s in every)},
                                     "weight_map": dict(sorted(where.items()))})
    return {s: names[s] for s in mine}


def _publish(partial: Path, folder: Path) -> None:
    """Gives the finished folder its name, which an older checkpoint may have until then."""
    if folder.exists() and any(folder.iterdir()):
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old)
    else:
        partial.rename(folder)
    flush(folder.parent)


def _write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    flush(path)


def _barrier(layout: Layout) -> None:
    if layout.grid.world > 1:
        dist.barrier()
