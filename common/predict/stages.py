"""Stages of a recipe's pipeline: which pieces each is made of, what it stores and keeps, and the time of its passes."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import groupby

from common.grid import Grid
from common.models.config import LanguageModelConfig
from common.models.pattern import parse
from common.pipeline.stages import cuts
from common.predict.pieces import Pass, Piece, Pieces, Way, pieces, recompute_at
from common.predict.price import Costs, group_of, play
from common.predict.spent import Spent
from common.training.step import Execution

COMMON = {"rotary.table"}
"""Tensors that a record has once for all layers of a stage (common/models/record.py), by their saved names."""


@dataclass(frozen=True, eq=False)
class Stage:
    """parts: pieces in the order of forward, each with how many times it comes."""

    parts: tuple[tuple[Piece, int], ...] = field(repr=False)

    @cached_property
    def parameters(self) -> int:
        """Elements that one rank stores, padding included."""
        return sum(times * piece.parameters for piece, times in self.parts)

    @cached_property
    def shared(self) -> int:
        """Elements whose gradients are summed over tensor ranks before data ranks."""
        return sum(times * piece.shared for piece, times in self.parts)

    @cached_property
    def flops(self) -> int:
        """Of one rank for one micro-batch, forward, recomputation and backward."""
        return sum(times * (piece.forward.flops + piece.backward.flops) for piece, times in self.parts)

    @cached_property
    def state(self) -> Counter[str]:
        """Bytes from step to step, by kind, where data ranks share nothing."""
        return _added((piece.state, times) for piece, times in self.parts)

    @cached_property
    def saved(self) -> Counter[str]:
        """Bytes that one micro-batch keeps for backward, by tensor; what its layers have in common once."""
        found = _added((piece.saved, times) for piece, times in self.parts)
        for name in COMMON & found.keys():
            found[name] = max(piece.saved.get(name, 0) for piece, _ in self.parts)
        return found

    @cached_property
    def kept(self) -> int:
        return sum(self.saved.values())

    @cached_property
    def moment(self) -> int:
        """The most bytes that a pass holds beyond what the whole stage keeps.

        While a piece runs, those behind it keep nothing yet, or nothing any more.
        """
        most, behind = 0, 0
        for piece, times in reversed(self.parts):
            most = max(most, piece.moment - behind)
            behind += times * piece.kept
        return most


Make = Callable[[LanguageModelConfig, str, Way, bool], Pieces]


def stages(model: LanguageModelConfig, execution: Execution, grid: Grid, micro_batch: int,
           make: Make = pieces) -> tuple[Stage, ...]:
    """All pp x chunks stages; those that are alike are one object. make: the pieces of one kind of layer, as `pieces`
    traces them."""
    kinds, borders = _kinds(model.pattern, execution.recompute), cuts(model.layers, grid.pp * execution.chunks)

    def made(layer: int) -> Pieces:
        unit, policy = kinds[layer]
        return make(model, unit, Way.of(execution, grid.tp, micro_batch, policy), len(borders) == 1)

    known: dict[tuple, Stage] = {}
    found = []
    for number, (first, last) in enumerate(borders):
        runs = tuple((kind, len(list(members))) for kind, members in groupby(kinds[first:last]))
        key = runs, number == 0, number == len(borders) - 1
        if key not in known:
            parts = [(made(0).embedding, 1)] if number == 0 else []
            at = first
            for _, many in runs:
                parts.append((made(at).layer, many))
                at += many
            if key[2]:
                parts.append((made(last - 1).output, 1))
            known[key] = Stage(tuple(parts))
        found.append(known[key])
    return tuple(found)


@cache
def _kinds(pattern: str, recompute: str) -> tuple[tuple[str, str], ...]:
    """Unit and policy of each layer."""
    return tuple((unit, recompute_at(recompute, i)) for i, unit in enumerate(parse(pattern).units))


def _added(parts: Iterable[tuple[dict[str, int], int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sizes, times in parts:
        for name, size in sizes.items():
            found[name] += times * size
    return found


@dataclass(frozen=True)
class StageTime:
    """Of one micro-batch. weight: what a schedule that splits backward puts off, else nothing. edges: seconds that forward
    and backward take besides, to join what arrives from another rank in slices."""

    forward: Spent
    backward: Spent
    weight: Spent
    edges: tuple[float, float] = (0.0, 0.0)

    def edge(self, kind: str) -> float:
        return {"forward": self.edges[0], "weight_gradient": 0.0}.get(kind, self.edges[1])

    def of(self, kind: str) -> float:
        """Seconds of an action of this kind (common/pipeline/schedule.py)."""
        passes = {"forward": self.forward, "weight_gradient": self.weight}
        return passes.get(kind, self.backward).total + self.edge(kind)

    @property
    def all(self) -> Spent:
        return self.forward + self.backward + self.weight


class Timer:
    """Times pieces on one cluster; each pass of a piece once. grid: whose tensor-parallel ranks send the messages."""

    def __init__(self, costs: Costs, grid: Grid):
        self.costs, self.grid = costs, grid
        self._seen: dict[int, tuple[Pass, Spent]] = {}  # by identity, each with what it is the identity of
        self._stages: dict[tuple, tuple[Stage, StageTime]] = {}

    def spent(self, one: Pass) -> Spent:
        if id(one) not in self._seen:
            self._seen[id(one)] = one, self._spend(one)
        return self._seen[id(one)][1]

    def _spend(self, one: Pass) -> Spent:
        sent = ((m.start, m.end, m) for m in one.messages)
        return play(one.operations, sent, self.costs, {m.group: group_of(self.grid, 0, m.group) for m in one.messages}).spent

    def stage(self, stage: Stage, split: bool, edges: tuple[float, float] = (0.0, 0.0)) -> StageTime:
        """Stages that are one object give one object."""
        key = id(stage), split, edges
        if key not in self._stages:
            self._stages[key] = stage, self._time(stage, split, edges)
        return self._stages[key][1]

    def _time(self, stage: Stage, split: bool, edges: tuple[float, float]) -> StageTime:
        forward = backward = weight = Spent()
        for piece, times in stage.parts:
            forward += self.spent(piece.forward) * times
            now, later = piece.halves if split else (piece.backward, None)
            backward += self.spent(now) * times
            if later is not None:
                weight += self.spent(later) * times
        return StageTime(forward, backward, weight, edges)
