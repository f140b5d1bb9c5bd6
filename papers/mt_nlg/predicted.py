"""Predicted: the three published iteration times, from traces priced on the record of the cluster.

One constant is fitted, on the 280-node row (common/predict/constants.toml): the other two rows test how time falls as
data ranks are added.
"""

from collections.abc import Iterator

from common.claims import Ask, Relative, Result, produces
from common.claims.quantities import predicted
from common.predict.series import TERA, Predicted, Series

NODES = (280, 350, 420)
SECONDS, RATE = "iteration_time_s", "tflops_per_gpu"


def _made(nodes: int):
    from papers.mt_nlg.recipes import on_nodes

    return (on_nodes(nodes),)


def source(nodes: int) -> str:
    return f"throughput-{nodes}-nodes"


PREDICTED = Predicted("mt_nlg", "selene", tuple(
    Series(source(nodes), SECONDS, "Section 2.3", lambda nodes=nodes: _made(nodes), "s") for nodes in NODES))


@produces(
    *(predicted(source(nodes), SECONDS, Relative(0.04), headline=nodes == 420, text=f"iteration, {nodes} nodes")
      for nodes in NODES),
    *(predicted(source(nodes), RATE, Relative(0.04), text=f"rate, {nodes} nodes") for nodes in NODES),
    minutes=0.1,
)
def iteration_times(ask: Ask) -> Iterator[Result]:
    for series in PREDICTED:
        found = PREDICTED.of(*series.recipes)
        detail, cause = PREDICTED.note(series), found.longest()
        yield Result(series.id, found.seconds, detail=detail, cause=cause)
        yield Result(f"{series.source}/{RATE}", found.flops_per_second() / TERA, detail=detail, cause=cause)


PRODUCERS = (iteration_times,)
