"""One iteration of fully sharded training (ZeRO-3, arXiv:1910.02054) on a cluster, from what `fully_shard`
runs and sends.

Every micro-batch gathers each layer's parameters for forward and for backward and scatters its gradients; the
trace knows what each message may travel beside (common/trace/fully_sharded.py), and it is played as any other
pass. What happens once an iteration, the norm and the update of this rank's part, follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

import torch

from common.predict.efficiency import work
from common.predict.iteration import Rates, accelerator
from common.predict.machine import Accelerator, Cluster
from common.predict.memory import EXACT, FRAGMENTATION, PREDICTED, Memory, RankMemory, Term, libraries
from common.predict.price import Costs, Priced, play
from common.predict.spent import Spent
from common.predict.stages import Stage, stages
from common.trace.fully_sharded import FullyShardedTrace, trace
from common.trace.streams import Transfer
from common.training.recipe import Recipe

ONCE = ("reduce", "optimizer")  # phases that come once an iteration
GATHERED = 2  # layers whose whole parameters a rank has at a time: the one at work, and the next, on its way


@dataclass(frozen=True)
class FullyShardedPrediction(Rates):
    """micro_batch: the passes of one micro-batch; update: norm, clipping and step of this rank's part; in
    seconds. memory: of a rank, all are alike."""

    traced: FullyShardedTrace = field(repr=False)
    micro_batch: Priced = field(repr=False)
    update: Priced = field(repr=False)

    @property
    def seconds(self) -> float:
        """Of an iteration."""
        return self._passes.total + self.update.seconds

    @property
    def time(self) -> dict[str, float]:
        """Seconds of a rank by what takes them; they add up to `seconds`."""
        spent = self._passes
        return {
            "matrix products": spent.products,
            "attention core": spent.attention,
            "element-wise": spent.elementwise,
            "recomputation": spent.recomputation,
            "parameters and gradients between data ranks": spent.exposed,
            "waiting for the host": spent.host,
            "optimizer": self.update.seconds,
        }

    @property
    def hidden(self) -> float:
        """Seconds of messages that run beside operations; in no sum."""
        return self._passes.hidden

    @property
    def _passes(self) -> Spent:
        return self.micro_batch.spent * self.recipe.micro_batches


def predict(recipe: Recipe, cluster: Cluster, costs: Costs, reduce: torch.dtype | None = None,
            overlap: bool = True, keep: bool = False) -> FullyShardedPrediction:
    """The recipe's model over all of its data ranks, each keeping a part of every parameter, gradient and
    moment.

    reduce: dtype that gradients travel in; default the main gradients'. keep: parameters stay whole from
    forward to backward (ZeRO-2, torch's SHARD_GRAD_OP), and are gathered once. overlap: as torch does it;
    otherwise every message is waited for where the program issues it. Raises ValueError for what cannot be
    run fully sharded.
    """
    recipe.check()
    cluster.check_size(recipe.grid.world)
    model, execution, training = recipe.model, recipe.execution, recipe.training
    device = accelerator(recipe.grid.world, cluster)
    peak = device.peak_of(execution.precision)
    traced = _traced(model, recipe.grid, training.micro_batch, execution, reduce)
    traced = _gathered_once(traced) if keep else traced
    made = stages(model, execution, recipe.grid, training.micro_batch)
    passes, update = (_played(traced, once, costs, overlap) for once in (False, True))
    return FullyShardedPrediction(
        recipe, cluster.name, work(model, made, training.batch, training.micro_batch, tp=1), peak,
        memory(traced, made[0], device, keep), made, traced, passes, update)


@cache
def _traced(model, grid, micro_batch, execution, reduce) -> FullyShardedTrace:
    return trace(model, grid, micro_batch=micro_batch, execution=execution, reduce=reduce)


def _gathered_once(traced: FullyShardedTrace) -> FullyShardedTrace:
    """Without the messages that gather parameters for backward, and the copies that put them in place."""
    dropped = {m.end for m in traced.messages if _again(m)}
    before = list(accumulate((i not in dropped for i in range(len(traced.operations))), initial=0))
    messages = (replace(m, start=before[m.start], end=before[m.end], issued=before[m.issued])
                for m in traced.messages if not _again(m))
    return replace(traced, messages=tuple(messages),
                   operations=tuple(o for i, o in enumerate(traced.operations) if i not in dropped))


def _again(message: Transfer) -> bool:
    return message.name == "all_gather" and message.phase != "forward"


def _played(traced: FullyShardedTrace, once: bool, costs: Costs, overlap: bool) -> Priced:
    """What comes once an iteration, or what every micro-batch repeats; the latter stands first in the
    trace."""
    chosen = [o for o in traced.operations if (o.phase in ONCE) == once]
    before = len(traced.operations) - len(chosen) if once else 0
    sent = (m if overlap else replace(m, start=m.issued, end=m.issued)
            for m in traced.messages if (m.phase in ONCE) == once)
    windows = ((m.start - before, m.end - before, m) for m in sent)
    return play(chosen, windows, costs, {"dp": traced.grid.group(0, "dp")})


def memory(traced: FullyShardedTrace, stage: Stage, device: Accelerator, keep: bool) -> Memory:
    """Of a rank, in backward of the last layer. stage: the whole model, as one stage of a pipeline holds
    it."""
    state = [Term("parameters and optimizer", name, size, EXACT) for name, size in traced.state.items()]
    loose = [*_whole(traced.messages, keep),
             *(Term("activations", name, size, EXACT) for name, size in stage.saved.items() if size),
             Term("temporaries", "forward and backward of one micro-batch", stage.moment, PREDICTED)]
    rank = RankMemory(0, (1,), (*state, *loose, *libraries(traced.grid, device)),
                      FRAGMENTATION * sum(term.bytes for term in loose))
    return Memory((rank,), device.usable_memory)


def _whole(messages: Sequence[Transfer], keep: bool) -> Iterator[Term]:
    """What is not cut for a while. Outside the layers parameters stay from the first use to the last.
    Gradients have the parameters' dtype until they are put together to be sent, and a layer's are sent before
    the next one's are."""
    gathers = {m.module: m.bytes for m in messages if m.name == "all_gather"}
    scatters = {m.module: m.bytes for m in messages if m.name == "reduce_scatter"}
    layer = max(size for module, size in gathers.items() if module)
    yield Term("whole parameters", "outside the layers", gathers[""], PREDICTED)
    if keep:
        yield Term("whole parameters", "of the layers", sum(gathers.values()) - gathers[""], PREDICTED)
    else:
        yield Term("whole parameters", "of the layer at work and the next", GATHERED * layer, PREDICTED)
    yield Term("whole gradients", "outside the layers", gathers[""], PREDICTED)
    yield Term("whole gradients", "of a layer", layer, PREDICTED)
    sums = max(size for module, size in scatters.items() if module)
    yield Term("messages", "gradients of a layer", sums, PREDICTED)
