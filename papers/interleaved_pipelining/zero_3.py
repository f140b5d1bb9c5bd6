"""Table 2's comparison: ZeRO-3 without model parallelism, which DeepSpeed ran inside the authors' code, here
torch's `fully_shard` on the same model, priced on the same record (common/predict/fully_sharded.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from common.predict.series import TERA

if TYPE_CHECKING:  # torch is imported when something is predicted, not when claims are listed
    from common.predict.fully_sharded import FullyShardedPrediction
    from common.predict.price import Costs
    from common.training.recipe import Recipe

GIGA = 1e9
EXCHANGED = ("all_gather", "reduce_scatter")
WAITED = "parameters and gradients between data ranks"
EACH = 3  # times a parameter travels for a micro-batch: gathered for forward and backward, its gradient summed


def predict(recipe: "Recipe", costs: "Costs", overlap: bool = False) -> "FullyShardedPrediction":
    """Gradients travel in 16 bits; messages are waited for, as in the paper's other rows, unless they overlap."""
    from common.precision.policy import precision
    from common.predict.fully_sharded import predict as sharded

    sums = precision(recipe.execution.precision).parameters
    return sharded(recipe, costs.cluster, costs, sums, overlap=overlap)


def taken_in(found: "FullyShardedPrediction", node: int) -> float:
    """Bytes that a node of so many ranks takes in, in an iteration: parts that other nodes keep, and sums."""
    messages = found.traced.totals(found.recipe.micro_batches).items()
    whole = sum(size for (name, _), (_, size) in messages if name in EXCHANGED)
    return (1 - node / found.ranks) * whole


def each_alone(recipe: "Recipe", costs: "Costs") -> float:
    """Seconds of an iteration's messages of the layers, had every parameter travelled by itself."""
    from common.layers.context import Context
    from common.models.language_model import LanguageModel

    one = LanguageModel(replace(recipe.model, pattern="[*-]"), Context(device="meta"))
    sizes = [2 * p.numel() for name, p in one.named_parameters() if name.startswith("layers.")]
    layer = sum(costs.message("all_gather", size, range(recipe.grid.dp)) for size in sizes)
    return EACH * recipe.model.depth * recipe.micro_batches * layer


def cause(recipe: "Recipe", costs: "Costs", published: float) -> str:
    """What the printed rate leaves for messages, and what that says of the network. published: TFLOP/s per GPU."""
    return "; ".join(_findings(recipe, costs, published))


def _findings(recipe: "Recipe", costs: "Costs", published: float) -> Iterator[str]:
    found, network = predict(recipe, costs), costs.cluster.network
    waited, taken = found.time[WAITED], taken_in(found, costs.cluster.node.ranks)
    computing = found.seconds - waited
    left = found.work.hardware / found.ranks / (TERA * published) - computing
    beside = predict(recipe, costs, overlap=True).flops_per_second() / TERA
    yield (f"operations take {computing:.1f} s by the constants of the other rows, so the printed rate leaves "
           f"{left:.1f} s for the {taken / GIGA:,.0f} GB that every node takes in: {taken / left / GIGA:.0f} GB/s, "
           f"less where they ran beside operations, of the {network.rate / GIGA:.0f} that its {network.nics} cards "
           "carry")
    yield (f"by the record they take {waited:.1f} s, {each_alone(recipe, costs):.1f} if every parameter travels by "
           "itself, as DeepSpeed of 2021 gathered them")
    yield f"beside operations, as fully_shard sends them, the rate would be {beside:.0f}"
    yield "how DeepSpeed was set, and what held its messages up, is not stated"
    if not found.memory.fits:
        yield (f"fully_shard gathers whole layers, with which a rank needs {found.memory.peak.needed / GIGA:.0f} GB "
               f"of {found.memory.limit / GIGA:.0f}")
