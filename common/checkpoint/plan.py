"""Who writes what, and who reads what: the planners that torch.distributed.checkpoint calls.

Its own planner takes pieces for copies of each other only where they begin at the same element, and copies of
a tied embedding may be cut in different places. So who writes is settled here on runs of elements, before
they become boxes.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from common.checkpoint.manifest import CheckpointError, check_whole, elements
from common.checkpoint.sharded import Box, Part, Piece


@dataclass(frozen=True)
class Run:
    """Elements `start` to `stop` (excluded) of a part, held by `rank`."""

    part: Part
    start: int
    stop: int
    dtype: torch.dtype
    rank: int = 0


class EachElementOnce(SavePlanner):
    """Of the ranks that hold an element one writes it, such that all write about as many bytes."""

    def __init__(self, pieces: dict[str, Piece]):
        self.pieces = pieces

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False):
        pass

    def create_local_plan(self) -> SavePlan:
        return SavePlan([], planner_data={name: Run(p.part, p.slice.start, p.stop, p.slice.data.dtype)
                                          for name, p in self.pieces.items()})

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """CheckpointError where the ranks disagree on a tensor, or do not hold all of it."""
        holders: dict[str, list[Run]] = defaultdict(list)
        for rank, plan in enumerate(all_plans):
            for name, run in plan.planner_data.items():
                holders[name].append(Run(run.part, run.start, run.stop, run.dtype, rank))
        items: list[list[WriteItem]] = [[] for _ in all_plans]
        tensors, load = {}, [0] * len(all_plans)
        for name, runs in sorted(holders.items(), key=lambda x: -elements(x[1][0].part.shape)):
            shape, dtype = runs[0].part.shape, runs[0].dtype
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype), torch.Size(shape), [])
            for run in written_once(name, runs, load):
                for box in run.part.boxes(run.start, run.stop):
                    item = _write_item(name, box, tensors[name])
                    items[run.rank].append(item)
                    tensors[name].chunks.append(item.tensor_data.chunk)
            check_whole(name, shape, sum(elements(c.sizes) for c in tensors[name].chunks))
        return [SavePlan(each) for each in items], Metadata(tensors)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        chunk = write_item.tensor_data.chunk
        return self.pieces[write_item.index.fqn].view(chunk.offsets, chunk.sizes)


class InPlace(LoadPlanner):
    """Each rank reads the boxes of the runs it holds into the memory of these runs."""

    def __init__(self, pieces: dict[str, Piece]):
        self.pieces = pieces

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False):
        self.saved = metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        self._check_model()
        items: list[ReadItem] = []
        for name, piece in self.pieces.items():
            boxes = [_chunk(box) for box in piece.boxes()]
            found = create_read_items_for_chunk_list(name, self.saved[name], boxes)
            if sum(elements(i.lengths) for i in found) != sum(elements(b.sizes) for b in boxes):
                raise CheckpointError(f"it does not hold all of {name}")
            items += found
        return LoadPlan(items, planner_data=set(self.pieces))

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """CheckpointError where the checkpoint has tensors that no rank wants: it is of a larger model."""
        wanted = set().union(*(plan.planner_data for plan in global_plan))
        kinds = {_kind(name) for name in wanted}
        if more := sorted({_parameter(n) for n in self.saved.keys() - wanted if _kind(n) in kinds}):
            raise CheckpointError(f"it holds another model: {len(more)} parameters that ours has not, first "
                                  f"{more[0]}; give the configuration that it was trained with")
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        box = read_item.dest_index
        offset = tuple(a + b for a, b in zip(box.offset, read_item.dest_offsets, strict=True))
        return self.pieces[box.fqn].view(offset, read_item.lengths)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        pass

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise AssertionError(f"{read_item.dest_index.fqn} is not a tensor")

    def _check_model(self) -> None:
        """CheckpointError unless the checkpoint has every tensor of this rank, in the model's shape."""
        saved = {_parameter(name): list(tensor.size) for name, tensor in self.saved.items()}
        ours = {_parameter(name): list(piece.part.shape) for name, piece in self.pieces.items()}
        wrong = [f"{n}: checkpoint has {saved.get(n, 'nothing')}, the model {shape}"
                 for n, shape in ours.items() if saved.get(n) != shape]
        if missing := sorted({_kind(name) for name in self.pieces} - {_kind(name) for name in self.saved}):
            raise CheckpointError(f"it has no {', '.join(missing)}")
        if wrong:
            raise CheckpointError(f"it holds another model ({len(wrong)} parameters differ), first "
                                  f"{wrong[0]}; give the configuration that it was trained with")
        if absent := [name for name in self.pieces if name not in self.saved]:
            raise CheckpointError(f"it has no {absent[0]}")


def written_once(tensor: str, runs: Sequence[Run], load: list[int]) -> Iterator[Run]:
    """Runs that together are all that `runs` are, no element twice.

    Where several ranks could write the same run the one of least load, in bytes, does, and its load rises.
    CheckpointError where ranks disagree on the tensor or how it is cut.
    """
    parts: dict[tuple[int, int, int], list[Run]] = defaultdict(list)
    one = runs[0]
    for run in runs:
        if (run.part.shape, run.part.dim, run.dtype) != (one.part.shape, one.part.dim, one.dtype):
            raise CheckpointError(f"ranks {one.rank} and {run.rank} disagree on the shape, cut or type of "
                                  f"{tensor}")
        parts[run.part.first, run.part.last, run.part.rows].append(run)
    end = 0
    for (first, last, _), held in sorted(parts.items()):
        if first < end:
            raise CheckpointError(f"rank {held[0].rank} holds indices {first} to {last} of dimension "
                                  f"{held[0].part.dim} of {tensor}, and another rank a part that overlaps it")
        end = max(end, last)
        yield from _cover(held, load)


def _cover(runs: list[Run], load: list[int]) -> Iterator[Run]:
    """Runs of one part, each as long as may be, that cover what `runs` cover."""
    waiting, at = deque(sorted(runs, key=lambda r: r.start)), 0
    while waiting:
        at = max(at, waiting[0].start)
        here = []
        while waiting and waiting[0].start <= at:
            here.append(waiting.popleft())
        stop = max(r.stop for r in here)
        if stop > at:
            best = min((r for r in here if r.stop == stop), key=lambda r: load[r.rank])
            load[best.rank] += (stop - at) * best.dtype.itemsize
            yield Run(best.part, at, stop, best.dtype, best.rank)
            at = stop


def _write_item(name: str, box: Box, tensor: TensorStorageMetadata) -> WriteItem:
    chunk = _chunk(box)
    return WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD,
                     tensor_data=TensorWriteData(chunk, tensor.properties, tensor.size))


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1]))


def _kind(name: str) -> str:
    return name.partition(".")[0]


def _parameter(name: str) -> str:
    return name.partition(".")[2]
