"""Communication between tensor ranks: collectives per layer and their bytes (section 4.2.2)."""

from collections.abc import Iterator

from common.claims import Ask, Equal, Relative, Result, produces
from common.claims.quantities import exact

SIZE = "22b"
RELATED = "comm-related-sagemaker"


def ring_bytes(message) -> float:
    """What each rank sends in a ring; an all-reduce is a reduce-scatter and an all-gather of one tensor."""
    share = (message.size - 1) / message.size * message.bytes
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}[message.name]


def gathers_again(message) -> bool:
    """The extra all-gather: a column-parallel layer gathers its stored input shard again in backward."""
    column = message.module.endswith((".qkv", ".up"))
    return (message.name, message.phase, column) == ("all_gather", "backward", True)


@produces(
    exact("comm-tp", "allreduces", Equal(), text="all-reduces"),
    exact("comm-tp-sp", "allgathers", Equal(), text="all-gathers"),
    exact("comm-tp-sp", "reducescatters", Equal(), text="reduce-scatters"),
    exact("comm-tp-sp", "extra_gathers", Equal(), lambda facts: (1, 1), unit="",
          text="extra all-gathers in backward, attention and MLP block"),
    exact("comm-tp-sp", "bandwidth", Relative(1e-9), lambda facts: 1, unit="",
          text="ring bytes over those of four all-reduces"),
    exact(RELATED, "megatron_allreduces", Equal(), text="all-reduces of a forward pass"),
    minutes=0.01,
)
def collectives(ask: Ask) -> Iterator[Result]:
    from papers.sequence_parallelism.traces import layer

    both = ("forward", "backward")
    whole, cut = (layer(SIZE, technique).sent(*both, group="tp") for technique in ("tp", "tp-sp"))
    extra = [message for message in cut if gathers_again(message)]
    counted = [message for message in cut if not gathers_again(message)]

    def number(messages, name: str) -> int:
        return sum(message.name == name for message in messages)

    yield Result("comm-tp/allreduces", number(whole, "all_reduce"), detail="one layer, forward and backward")
    yield Result("comm-tp-sp/allgathers", number(counted, "all_gather"), detail="the extra ones left out")
    yield Result("comm-tp-sp/reducescatters", number(counted, "reduce_scatter"))
    blocks = tuple(sum(f".{block}." in message.module for message in extra) for block in ("attention", "mlp"))
    hidden = sum(message.asynchronous for message in extra)
    yield Result("comm-tp-sp/extra_gathers", blocks,
                 detail=f"{hidden} of {len(extra)} run beside the input gradient")
    base = sum(map(ring_bytes, whole))
    yield Result("comm-tp-sp/bandwidth", sum(map(ring_bytes, counted)) / base,
                 detail=f"each rank sends {base / 2**20:.0f} MiB; with the extra all-gathers "
                        f"{sum(map(ring_bytes, cut)) / base:g} times as much")
    forward = layer(SIZE, "tp").sent("forward", group="tp")
    yield Result(f"{RELATED}/megatron_allreduces", number(forward, "all_reduce"))


PRODUCERS = (collectives,)
