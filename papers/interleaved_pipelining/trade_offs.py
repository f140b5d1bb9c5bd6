"""Measured here: micro-batch size (Figure 16, equation 1) and recomputation (Figure 17) in a pipeline of two real ranks.

What is tested is what the figures order, not their heights: two stages on two cores for eight and sixteen on GPUs.
"""

from collections.abc import Iterator, Sequence

from common.claims import Ask, AtLeast, AtMost, Order, Quantity, Relative, Result, produces
from common.claims.quantities import measured
from papers.interleaved_pipelining.sizes import FACTS

STAGES = 2
SIZES = (1, 2, 4, 8, 16)
BATCHES = {"figure16-b128": 16, "figure16-b512": 64}
"""Sequences of a batch here for each curve: four times as many for the second, as in the figure."""
ROUNDS = 21
EQUATION, CHOICE = "eq-batch-time", "takeaway-3"


def rates(name: str) -> tuple[float, ...]:
    return tuple(FACTS[name].values["tflops_per_gpu"])


def ends(values: Sequence[float]) -> tuple[float, float, float]:
    """At the smallest micro-batch, at the best one, at the largest."""
    return values[0], max(values), values[-1]


def _ends(name: str, pair: slice):
    return lambda facts: ends(rates(name))[pair]


def _steeper(facts) -> tuple[float, ...]:
    return tuple(rates(name)[-1] / max(rates(name)) for name in BATCHES)


def _curve(name: str) -> tuple[Quantity, ...]:
    words = f"batch {BATCHES[name]}, two stages, micro-batches {', '.join(map(str, SIZES))}"
    return (
        measured(name, "laptop_smallest_best", Order(), _ends(name, slice(0, 2)), unit="relative",
                 text=f"throughput at the smallest micro-batch, at the best; {words}"),
        measured(name, "laptop_best_largest", Order(), _ends(name, slice(1, 3)), unit="relative",
                 text=f"throughput at the best micro-batch, at the largest; {words}"),
        measured(EQUATION, f"laptop_b{BATCHES[name]}", Relative(0.1), lambda facts: (1.0,) * len(SIZES), unit="",
                 text=f"iteration over (b'/b + p - 1)(t_f + t_b), a stage timed by itself; {words}"),
    )


@produces(
    *(quantity for name in BATCHES for quantity in _curve(name)),
    measured(CHOICE, "laptop_largest_loses", Order(), _steeper, unit="",
             text=f"throughput of the largest micro-batch over the best, batch {', '.join(map(str, BATCHES.values()))}: a "
                  "larger batch allows larger micro-batches"),
    minutes=1.5,
    full=True,
)
def micro_batch_sizes(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.recipes import laptop_figure_16
    from papers.interleaved_pipelining.stage_times import timed
    from papers.sequence_parallelism.layer_time import median_interval

    recipes = [laptop_figure_16(b, batch) for batch in BATCHES.values() for b in SIZES]
    found = timed(recipes, ROUNDS)
    steep = []
    for i, (name, batch) in enumerate(BATCHES.items()):
        mine = found[i * len(SIZES):(i + 1) * len(SIZES)]
        whole = [median_interval(each.iterations) for each in mine]
        best = min(range(len(SIZES)), key=lambda k: whole[k][0])
        # Within a round: throughput of each size over that of the best one.
        over = [median_interval([t / s for t, s in zip(mine[best].iterations, each.iterations, strict=True)]) for each in mine]
        heights = ", ".join(f"{b}: {m:.2f}" for b, (m, _) in zip(SIZES, over, strict=True))
        detail = f"throughput over the best by micro-batch size {heights}; {ROUNDS} alternated rounds"
        cause = f"best is micro-batch {SIZES[best]}; intervals of the medians over {ROUNDS} rounds overlap"
        first, last = over[0], over[-1]
        yield Result(f"{name}/laptop_smallest_best", (first[0], 1.0), spread=(first[1], (1.0, 1.0)), detail=detail, cause=cause)
        yield Result(f"{name}/laptop_best_largest", (1.0, last[0]), spread=((1.0, 1.0), last[1]), detail=detail, cause=cause)
        steep.append(last)
        alone = [median_interval(each.alone)[0] for each in mine]
        share = [[t / ((batch / b + STAGES - 1) * one) for t in each.iterations]
                 for b, one, each in zip(SIZES, alone, mine, strict=True)]
        medians = [median_interval(each) for each in share]
        yield Result(f"{EQUATION}/laptop_b{batch}", tuple(m for m, _ in medians), spread=tuple(s for _, s in medians),
                     detail=f"t_f + t_b {', '.join(f'{1e3 * one:.1f}' for one in alone)} ms; iterations "
                            f"{', '.join(f'{1e3 * m:.0f}' for m, _ in whole)} ms",
                     cause="the equation leaves messages and the executor's own time out, which weigh most where a micro-batch "
                           f"takes {1e3 * min(alone):.1f} ms")
    yield Result(f"{CHOICE}/laptop_largest_loses", tuple(m for m, _ in steep), spread=tuple(s for _, s in steep),
                 cause=f"the intervals of the medians over {ROUNDS} rounds overlap")


WITH, WITHOUT = "figure17-recompute", "figure17-no-recompute"
FITTING, REST = (1, 2, 4, 8), (16,)
"""Batches that the figure has without recomputation too, and one that it has with it alone."""
HALF = 1
"""Micro-batches that fit without recomputation: half of those in flight, as 8 of 16 in the figure."""
LOSS, GAIN = "text-recompute-loss", "text-recompute-gain"


def _slower(facts) -> tuple[float, ...]:
    """Throughput with recomputation over that without, at the batches that have both."""
    both = (dict(zip(facts[name].values["global_batch"], facts[name].values["sequences_per_s"], strict=True))
            for name in (WITH, WITHOUT))
    recomputed, plain = both
    return tuple(recomputed[batch] / plain[batch] for batch in FITTING)


def _largest(facts) -> tuple[float, ...]:
    return tuple(max(facts[name].values["global_batch"]) for name in (WITHOUT, WITH))


@produces(
    measured(WITH, "laptop_slower", AtMost(1.0), _slower, unit="",
             text=f"throughput with recomputation over without, batch {', '.join(map(str, FITTING))}, two stages"),
    measured(LOSS, "laptop_loss", AtMost(), lambda facts: facts[LOSS].values["throughput_loss_percent_up_to"], unit="%",
             text=f"throughput lost to recomputation, mean of batch {', '.join(map(str, FITTING))}"),
    measured(WITHOUT, "laptop_largest_batch", Order(), _largest, unit="sequences",
             text="largest batch whose activations fit, without recomputation and with"),
    measured(GAIN, "laptop_factor", AtLeast(1.0), lambda facts: facts[GAIN].values["throughput_factor_up_to"], unit="",
             text="best throughput with recomputation over the best that fits without"),
    minutes=1.5,
    full=True,
)
def recomputation_pays(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining.recipes import laptop_figure_17
    from papers.interleaved_pipelining.stage_times import timed
    from papers.sequence_parallelism.layer_time import median_interval

    keys = [(policy, batch) for policy in ("none", "full") for batch in (*FITTING, *REST)]
    found = dict(zip(keys, timed([laptop_figure_17(batch, policy) for policy, batch in keys], ROUNDS), strict=True))
    slower = [[n / f for n, f in zip(found["none", batch].iterations, found["full", batch].iterations, strict=True)]
              for batch in FITTING]
    ratios = [median_interval(each) for each in slower]
    rounds = f"{ROUNDS} alternated rounds"
    yield Result(f"{WITH}/laptop_slower", tuple(m for m, _ in ratios), spread=tuple(s for _, s in ratios), detail=rounds,
                 cause=f"intervals over {rounds} reach 1")
    lost, spread = median_interval([100 * (1 - sum(each) / len(each)) for each in zip(*slower, strict=True)])
    yield Result(f"{LOSS}/laptop_loss", lost, spread=spread, detail=f"{rounds}; forward is made again in each backward",
                 cause=f"the interval over {rounds} reaches above it; the calls that recomputation adds weigh more in layers of "
                       "a few ms than in those of a GPU's model")
    room = found["none", HALF].peak
    fits = {policy: [batch for p, batch in keys if p == policy and found[p, batch].peak <= room] for policy, _ in keys}
    peaks = "; ".join(f"{policy} " + ", ".join(f"{found[p, batch].peak / 2**20:.2f}" for p, batch in keys if p == policy)
                      for policy in ("none", "full"))
    yield Result(f"{WITHOUT}/laptop_largest_batch", (max(fits["none"]), max(fits["full"])),
                 detail=f"of {', '.join(map(str, (*FITTING, *REST)))}, in the {room / 2**20:.2f} MiB that {HALF} of "
                        f"{STAGES} micro-batches in flight needs without; peak of live bytes, MiB: {peaks}",
                 cause="what recomputation keeps of a micro-batch does not fit either")
    best = {policy: max(at, key=lambda batch: batch / median_interval(found[policy, batch].iterations)[0])
            for policy, at in fits.items()}
    plain, again = (found[policy, best[policy]].iterations for policy in ("none", "full"))
    gain, spread = median_interval([best["full"] / f / (best["none"] / n) for n, f in zip(plain, again, strict=True)])
    yield Result(f"{GAIN}/laptop_factor", gain, spread=spread,
                 detail=f"batch {best['full']} with recomputation over batch {best['none']} without; {rounds}",
                 cause=f"over {rounds} the interval reaches below 1: recomputation cost more than the bubble that it saves")


PRODUCERS = (micro_batch_sizes, recomputation_pays)
