"""What arXiv:2205.05198 says of whole pipelines: totals, figures 1 and 9, appendices B and C, by arithmetic of their own."""

from collections import Counter

import pytest

from common.claims.judge import Row
from common.claims.listing import claims_of
from common.claims.published import load
from common.claims.run import rows_of, run
from common.pipeline.schedule import KEEP, Schedule
from common.pipeline.windows import keep_some
from papers.sequence_parallelism import first_stage, micro_batch_windows, rank_memory, stage_memory, terms
from papers.sequence_parallelism.held_outputs import peaks
from papers.sequence_parallelism.in_flight import at_peak, beyond_kept, held, schedule
from papers.sequence_parallelism.itemised import itemised, items
from papers.sequence_parallelism.reproduce import PAPER
from papers.sequence_parallelism.traces import stage
from tests.common.claims.sample_paper import ORIGIN
from tests.distributed import ranks

MIB, GIB = 2**20, 2**30
# a, h, L, p, chunks; b 1, s 2048, t 8, v 51200 (table 3 and section 6)
SIZES = {"175b": (96, 12288, 96, 8, 3), "530b": (128, 20480, 105, 35, 3), "1t": (160, 25600, 128, 64, 1)}
S, T, V = 2048, 8, 51200


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    """The rows of these producers, run now, without the 22B, which has no pipeline."""
    modules = (rank_memory, first_stage, stage_memory, micro_batch_windows)
    mine = {q.id for module in modules for producer in module.PRODUCERS for q in producer.quantities
            if "table3" not in q.id and not q.id.startswith("figure1-22b")}
    outcome = run(PAPER, ORIGIN, [claim.id for claim in claims_of(PAPER, load(PAPER.published)) if claim.id in mine])
    assert outcome.failures == []
    return {row.claim.id: row for row in rows_of(PAPER, outcome.results) if row.claim.id in mine}


def ours(rows: dict[str, Row], id: str):
    return rows[id].result.ours


def most_in_flight(plan: Schedule, rank: int, weight=lambda chunk: 1) -> tuple[float, Counter]:
    """The most that micro-batches weigh on a rank at once, counted action by action, and how many of each chunk then."""
    now, most, then = Counter(), 0, Counter()
    for action in plan.of(rank):
        now[action.chunk] += 1 if action.kind == "forward" else -1
        total = sum(count * weight(chunk) for chunk, count in now.items())
        if total > most:
            most, then = total, now.copy()
    return most, then


@pytest.mark.parametrize("size", SIZES)
def test_totals_of_the_first_stage(rows: dict[str, Row], size: str) -> None:
    a, h, layers, p, _ = SIZES[size]
    assert ours(rows, f"eq5-total-first-stage/{size}") == S * h * layers / T * (34 + 5 * a * S / h) / GIB
    assert ours(rows, f"eq6-total-selective/{size}") == 34 * S * h * layers / T / GIB
    assert ours(rows, f"eq-total-full-recompute/{size}") == 2 * S * h * layers / GIB
    assert ours(rows, f"eq-extra-embedding/{size}") == S * h * p / T / MIB


def test_the_interleaving_factor(rows: dict[str, Row]) -> None:
    assert (ours(rows, "eq-interleave-factor/175b"), ours(rows, "eq-interleave-factor/530b")) == (124, 139)
    assert ours(rows, "eq-interleave-factor/175b_factors") == pytest.approx([1 + 7 / (8 * m) for m in (2, 3, 4, 6, 12)])
    for size, (_, _, layers, p, v) in SIZES.items():
        assert most_in_flight(schedule(size), 0)[0] * layers / (p * v) == {"175b": 124, "530b": 139, "1t": 128}[size]


@pytest.mark.parametrize("size", SIZES)
def test_the_first_rank_of_figure_1(rows: dict[str, Row], size: str) -> None:
    a, h, layers, p, v = SIZES[size]
    passes = most_in_flight(schedule(size), 0)[0]
    each, sbh, square = layers / (p * v), S * h, 5 * a * S * S
    elements = layers / p * ((12 * h * h + 7 * h) / T + 6 * h) + V * h / T + S * h
    for bar, layer, cut in (("baseline", 10 * sbh + (24 * sbh + square) / T, 1), ("present_work", 34 * sbh / T, T)):
        assert ours(rows, f"figure1-{size}/layers_{bar}") == pytest.approx(passes * each * layer / GIB, rel=1e-12)
        parts = items(rows[f"figure1-{size}/rank_{bar}"].result.detail)
        masks = 2 * p if v > 1 else p  # micro-batches through the first chunk before one comes back to it
        assert parts["embedding.dropout_mask"] == pytest.approx(masks * sbh / cut / GIB, abs=1e-4)
        assert sum(parts[kind] for kind in rank_memory.STATE) == pytest.approx(18 * elements / GIB, rel=1e-4)
        assert sum(parts.values()) == pytest.approx(ours(rows, f"figure1-{size}/rank_{bar}"), abs=1e-3)
        assert 0 < parts[rank_memory.REST] < 0.01
    detail = rows[f"figure1-{size}/params_optimizer_gib"].result.detail
    assert f"{18 * elements / GIB:.2f} GiB, {18 * (V * h / T + S * h) / GIB:.2f} of them for embedding and" in detail
    expected = {"175b": (66.84, 12.35), "530b": (114.02, 23.08), "1t": (131.25, 26.56)}[size]
    found = tuple(ours(rows, f"figure1-{size}/layers_{bar}") for bar in ("baseline", "present_work"))
    assert found == pytest.approx(expected, rel=1e-3)


def test_what_is_in_flight_when_a_rank_holds_most() -> None:
    for size, (*_, v) in SIZES.items():
        plan = schedule(size)
        for rank in (0, 1, plan.ranks - 1):
            weights = [10 + 3 * chunk for chunk in range(v)]
            most, then = most_in_flight(plan, rank, weights.__getitem__)
            found = at_peak(plan, rank, weights)
            assert sum(n * w for n, w in zip(found, weights, strict=True)) == most
            assert found == tuple(then[chunk] for chunk in range(v))


def test_a_rank_adds_up_its_chunks() -> None:
    rank = held("175b", "tp-sp-selective", rank=7)
    traced = [stage("175b", "tp-sp-selective", 8 * chunk + 7, 3) for chunk in range(3)]
    assert [found.last - found.first for found in traced] == [4, 4, 4] and traced[2].last == 96
    assert sum(rank.state.values()) == sum(found.state_bytes for found in traced)
    assert rank.kept["loss.logits"] == rank.in_flight[2] * 4 * S * V // T
    assert sum(rank.in_flight) == most_in_flight(schedule("175b"), 7)[0] == 17


OUTPUT = 2 * S * 20480  # bytes of one micro-batch between stages of the 530B


def test_figure_9(rows: dict[str, Row]) -> None:
    for name, tensors in (("dealloc", 3), ("no-dealloc", 4)):
        row = rows[f"figure9-{name}/slope"]
        assert row.result.ours == tensors * OUTPUT / GIB
        assert row.claim.published - tensors * OUTPUT / GIB == pytest.approx(S * S / GIB, abs=0.0005)
        memory = dict(zip(stage_memory.RANKS, ours(rows, f"figure9-{name}/memory_gib"), strict=True))
        inner = [rank for rank in memory if 0 < rank < 34]
        for before, after in zip(inner, inner[1:], strict=False):
            assert memory[before] - memory[after] == pytest.approx((after - before) * tensors * OUTPUT / GIB)
        spike = (tensors * OUTPUT + 35 * S * 20480) / GIB
        assert ours(rows, f"figure9-{name}/spike") == pytest.approx(spike, abs=2e-3)  # token indices, too
        assert memory[0] - memory[1] == pytest.approx(spike, abs=3e-3)
        assert memory[1] == pytest.approx((34 * tensors * OUTPUT + beyond_kept(stage("530b", "full", 1))) / GIB)
    last = stage("530b", "full", 34)
    assert memory[34] == pytest.approx((last.saved_bytes + last.statistics_bytes + beyond_kept(last)) / GIB)
    assert last.saved_bytes == pytest.approx(3 * OUTPUT + 2 * OUTPUT + 4 * S * V / T, rel=1e-3)


def test_what_letting_go_of_outputs_saves(rows: dict[str, Row]) -> None:
    saved = [(35 - rank) * OUTPUT if rank < 34 else 0 for rank in range(35)]
    assert ours(rows, "text-dealloc-formula/530b") == tuple(amount / MIB for amount in saved[:34])
    assert ours(rows, "figure9-no-dealloc/gap") == pytest.approx([saved[rank] / GIB for rank in stage_memory.RANKS])
    assert saved[0] / GIB == pytest.approx(2.73, abs=0.005)


def test_outputs_held_and_let_go_on_real_ranks() -> None:
    """Three ranks of the executor: all but the message under way and the last rank's loss are let go."""
    output = 2 * 256 * 2 * 160
    found = ranks(3, peaks, "530b", 5, 2)
    assert [after - before for before, after in found] == [2 * output, output, 0]


def test_outstanding_micro_batches(rows: dict[str, Row]) -> None:
    for size, (_, _, _, p, _) in SIZES.items():
        assert ours(rows, f"text-microbatch-window/{size}") == tuple(range(p, 0, -1))
    assert ours(rows, "text-microbatch-window/22b") == (1,)


def test_figure_10(rows: dict[str, Row]) -> None:
    assert ours(rows, "figure10-example/window") == 4
    assert ours(rows, "figure10-example/stored_per_window") == 1
    assert ours(rows, "figure10-example/stored") == (1, 5, 9)


@pytest.mark.parametrize("size", micro_batch_windows.GAINS)
def test_windows_fill_the_device_and_no_more(rows: dict[str, Row], size: str) -> None:
    """Bytes of a pass and of a rank's state from the paper's formulas; the moment of a pass from the trace."""
    a, h, layers, p, v = SIZES[size]
    plan, kept = schedule(size), micro_batch_windows.windows(size)
    each, sbh, square = layers / (p * v), S * h, 5 * a * S * S
    statistics = 2 * 2 * 4 * S / T  # of a layer's norms, fp32
    pieces = 2**20 * 4  # indices and labels

    def size_of(rank: int, chunk: int, whole: bool) -> float:
        first, last = (rank, chunk) == (0, 0), (rank, chunk) == (p - 1, v - 1)
        ends = first * sbh / T + last * (4 * sbh + 4 * S * V) / T
        return each * ((34 * sbh + whole * square) / T + statistics) + ends

    def peak(rank: int, window: int) -> float:
        holds, now, most = {}, 0.0, 0.0
        for action in keep_some(plan, [window] * p).of(rank):
            key = action.chunk, action.micro_batch
            if action.kind == "forward":
                holds[key] = size_of(rank, action.chunk, bool(action.flags & KEEP))
            now += holds[key] if action.kind == "forward" else -holds.pop(key)
            most = max(most, now)
        return most

    for rank in (0, p // 2):
        elements = layers / p * ((12 * h * h + 7 * h) / T + 6 * h) + (V * h / T + S * h if rank == 0 else 0)
        moment = max(beyond_kept(stage(size, technique, plan.stage(rank, chunk), v))
                     for technique in ("tp-sp", "tp-sp-selective") for chunk in range(v))
        room = 80e9 - 18 * elements - moment
        assert peak(rank, kept[rank]) <= room + pieces
        assert peak(rank, kept[rank] + 1) > room - pieces
    assert kept[-1] == most_in_flight(plan, p - 1)[0]  # the last rank keeps all
    worst = min(sum(bool(action.flags & KEEP) for action in keep_some(plan, kept).of(rank)) for rank in range(p))
    share = 100 * worst / (plan.micro_batches * v)
    assert f"{kept[0]} of {most_in_flight(plan, 0)[0]}, {kept[1]} of" in terms.windows(list(rows.values()))
    assert ours(rows, f"text-microbatch-recompute-{size}/kept_percent") == pytest.approx(share)


def test_parts_of_a_sum_come_back_from_their_text() -> None:
    parts = {"layers": 66.8438, "loss.labels (rest of its storage)": 0.0, "weights": 5.25}
    assert items(itemised(parts) + "; 80.00 GiB at the peak") == parts
