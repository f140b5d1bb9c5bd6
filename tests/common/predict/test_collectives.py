"""Collectives: bus bandwidths that others measured on machines of no record, and what holds for all sizes and
groups."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.predict.collectives import RING, Communication, Span
from common.predict.hardware import cluster, clusters
from common.predict.machine import Cluster, Collective

GIB, MIB = 2**30, 2**20
SELENE, H100 = cluster("selene"), cluster("dgx_h100")
WIDE = [record for record in clusters() if record.network]
ALL = {record.name: Communication(record) for record in WIDE}
NAMES = (*RING, "all_to_all")
SIZES = [2**power for power in range(4, 34)]


def with_cards(record: Cluster, nics: int) -> Cluster:
    return replace(record, network=replace(record.network, nics=nics))


def bus(record: Cluster, name: str, size: float, ranks: int) -> float:
    """GB/s by NCCL's tests (doc/PERFORMANCE.md): bytes over seconds, times 2 (n - 1) / n for an all-reduce,
    (n - 1) / n for the others."""
    factor = (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks
    return 1e-9 * factor * size / Communication(record).seconds(name, size, range(ranks))


@pytest.mark.parametrize(
    "record, ranks, size, measured, within",
    [
        (SELENE, 32, 8 * GIB, 192, 0.03),  # NVIDIA/nccl, issue 812: DGX A100, eight cards of 200 Gbit/s
        (SELENE, 8, 4 * GIB, 232.5, 0.03),  # NVIDIA/nccl, issue 1048: one node
        (
            with_cards(SELENE, 4),
            16,
            8 * GIB,
            91,
            0.06,
        ),  # NVIDIA/nccl-tests, issue 100: two nodes with four cards
        (
            with_cards(SELENE, 4),
            24,
            128 * MIB,
            96,
            0.12,
        ),  # NVIDIA/nccl-tests, issue 119: three nodes with four cards
        (
            with_cards(SELENE, 1),
            96,
            8 * GIB,
            24,
            0.03,
        ),  # NVIDIA/nccl, issue 412: what one card of 200 Gbit/s should bring
        (
            with_cards(cluster("dgx1_v100_32gb"), 1),
            32,
            8 * GIB,
            12.2,
            0.03,
        ),  # NVIDIA/nccl-tests, issue 29: one of 100 Gbit/s
        (cluster("dgx1_v100_32gb"), 32, 8 * GIB, 48, 0.03),  # there: DGX-1 with its four
        (H100, 8, 16 * GIB, 480, 0.15),  # NVIDIA/nccl-tests, issue 212: the switches sum
    ],
)
def test_bandwidth_of_long_all_reduces(record, ranks, size, measured, within):
    assert bus(record, "all_reduce", size, ranks) == pytest.approx(measured, rel=within)


def test_mean_bandwidth_over_sizes():
    """NVIDIA/nccl-tests, issue 119: 84.8 GB/s over 8 B to 128 MiB in steps of a MiB, 24 A100 in three nodes
    of four cards."""
    found = fmean(bus(with_cards(SELENE, 4), "all_reduce", 8 + i * MIB, 24) for i in range(128))
    assert found == pytest.approx(84.8, rel=0.12)


@pytest.mark.parametrize("name, measured", [("all_gather", 350), ("reduce_scatter", 360)])
def test_switches_that_sum_do_not_help_to_gather(name, measured):
    """NVIDIA/nccl, issue 1281; nccl-tests, issue 212: 370 GB/s can be had of 450, all-reduces alone see more.
    """
    assert bus(H100, name, 8 * GIB, 8) == pytest.approx(measured, rel=0.06)


def test_a_few_bytes_take_the_start_of_a_message():
    """NVIDIA/nccl-tests, issue 150: 19 us for 8 bytes between A100s on two nodes, the start of the kernel
    included."""
    assert 0.5 * 19e-6 < Communication(SELENE).seconds("all_reduce", 8, (0, 8)) < 19e-6


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_reduce_scatter_and_all_gather_are_an_all_reduce(name, ranks):
    """The same bytes in the same ring: within a fifth for long messages, within a quarter where switches sum.
    The two start twice, and an all-reduce of few bytes may take a tree, so it is never far behind them."""
    one = ALL[name]
    for size in SIZES:
        halves = sum(one.seconds(half, size, range(ranks)) for half in ("reduce_scatter", "all_gather"))
        whole = one.seconds("all_reduce", size, range(ranks))
        assert halves >= 0.9 * whole
        if size == SIZES[-1]:
            assert halves == pytest.approx(whole, rel=0.25 if one.node.link.multicast else 0.2)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("what", NAMES)
def test_more_bytes_never_take_less(name, what):
    """But for the steps of an all-reduce's tree, whose share of the bandwidth is given at powers of two."""
    for ranks in (2, 8, 16, 128):
        took = [ALL[name].seconds(what, size, range(ranks)) for size in SIZES]
        assert all(b >= 0.95 * a for a, b in zip(took, took[1:], strict=False))
        assert took[-1] > 30 * took[0] > 0


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("what", NAMES)
def test_more_nodes_are_never_faster(name, what):
    """But for what an all-to-all leaves inside the nodes, which becomes less."""
    least = 0.95 if what == "all_to_all" else 1 - 1e-9
    per_node = ALL[name].node.ranks
    for size in (1024, MIB, GIB):
        took = [ALL[name].seconds(what, size, range(nodes * per_node)) for nodes in (1, 2, 4, 16, 64)]
        assert all(b >= a * least for a, b in zip(took[1:], took[2:], strict=False))
        assert took[2] >= took[0] * least or size == 1024


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ALL)),
    st.sampled_from(NAMES),
    st.sampled_from([1024, MIB, 100 * MIB]),
    st.integers(2, 8),
)
def test_a_group_inside_a_node_does_not_know_the_network(name, what, size, ranks):
    record = ALL[name].cluster
    ranks = range(min(ranks, record.node.ranks))
    took = ALL[name].seconds(what, size, ranks)
    assert took == Communication(replace(record, network=None)).seconds(what, size, ranks)
    assert took == Communication(with_cards(record, 1)).seconds(what, size, ranks)
    moved = tuple(record.node.ranks + rank for rank in ranks)
    assert took == ALL[name].seconds(what, size, moved)


def test_groups_share_the_cards_of_their_nodes():
    """On two DGX A100 eight groups of two ranks have a card each, of 24 GB/s; four groups of four have two
    each; one group of all sixteen has all eight."""
    network = Communication(SELENE)
    size = 8 * GIB
    for stride, cards in ((8, 1), (4, 2), (2, 4), (1, 8)):
        ranks = tuple(range(0, 16, stride))
        n = len(ranks)
        took = network.seconds("all_gather", size, ranks)
        assert took == pytest.approx((n - 1) / n * size / (cards * 24e9), rel=0.01)


def test_messages_between_nodes_share_the_cards():
    """A gigabyte at 24 GB/s from each of eight ranks with eight cards; with two cards a quarter of that."""
    for nics, rate in ((8, 24e9), (2, 6e9)):
        network = Communication(with_cards(SELENE, nics))
        assert network.transfer(1e9, 0, 8) == pytest.approx(1e9 / rate, rel=0.01)
        assert network.transfer(1e9, 0, 1) == pytest.approx(1e9 / 240e9, rel=0.01)
        assert network.seconds("send", 1e9, (0, 8)) == network.transfer(1e9, 0, 8)


def test_all_to_all_sends_each_part_once():
    """Inside a node 7 of 8 parts leave a rank at 240 GB/s. On two nodes 8 of 16 parts leave it through its
    card."""
    network = Communication(SELENE)
    assert network.seconds("all_to_all", 8e9, range(8)) == pytest.approx(7e9 / 240e9, rel=0.01)
    assert network.seconds("all_to_all", 16e9, range(16)) == pytest.approx(8e9 / 24e9, rel=0.01)


def test_an_oversubscribed_core_is_slower():
    narrow = replace(SELENE, network=replace(SELENE.network, oversubscription=2.0))
    assert bus(narrow, "all_gather", GIB, 64) == pytest.approx(
        bus(SELENE, "all_gather", GIB, 64) / 2, rel=0.03
    )


@pytest.mark.parametrize("what", NAMES)
def test_one_rank_and_no_bytes_are_free(what):
    network = Communication(SELENE)
    assert network.seconds(what, GIB, (5,)) == network.seconds(what, 0, range(16)) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda network: network.seconds("all_reduce", MIB, range(16)),
        lambda network: network.seconds("all_to_all", MIB, (7, 8)),
        lambda network: network.transfer(MIB, 0, 8),
    ],
)
def test_several_nodes_without_a_network_are_refused_by_name(call):
    with pytest.raises(
        ValueError, match="selene is one node of 8 ranks without a network: use no more ranks"
    ):
        call(Communication(replace(SELENE, network=None)))


def test_an_unknown_collective_is_refused_by_name():
    with pytest.raises(
        ValueError, match="collective 'gossip' is unknown: use one of all_reduce, all_gather, reduce_scatter"
    ):
        Communication(SELENE).seconds("gossip", MIB, range(8))


@pytest.mark.parametrize(
    "ranks, per_node, span",
    [
        (range(16), 8, Span(16, 2, 8)),
        (range(12), 8, Span(12, 2, 8)),
        (range(4, 12), 8, Span(8, 2, 4)),
        ((0, 8, 16), 8, Span(3, 3, 1)),
        ((1, 2, 9), 8, Span(3, 2, 2)),
        (range(0, 64, 2), 8, Span(32, 8, 4)),
    ],
)
def test_spans_are_counted(ranks, per_node, span):
    assert Span.of(ranks, per_node) == Span.of(tuple(ranks), per_node) == span


def test_tables_of_this_very_machine_hold_as_they_are():
    """Several tables in a record: seconds as measured for what they hold, scaled by the nearest group for
    what they do not."""
    rows = [
        Collective("all_reduce", ranks, size, 1e-3 * ranks * size / MIB)
        for ranks in (2, 4)
        for size in (MIB, 16 * MIB)
    ]
    own = Communication(replace(SELENE, network=None, node=replace(SELENE.node, collectives=tuple(rows))))
    assert own.seconds("all_reduce", MIB, range(2)) == pytest.approx(2e-3)
    assert own.seconds("all_reduce", 4 * MIB, range(4)) == pytest.approx(
        16e-3
    )  # the table's law between its sizes
    assert own.seconds("all_reduce", 32 * MIB, range(4)) == pytest.approx(128e-3)
    bare = Communication(replace(SELENE, node=replace(SELENE.node, collectives=())))
    slower = own.seconds("all_reduce", MIB, range(4)) / bare.seconds("all_reduce", MIB, range(4))
    assert own.seconds("all_gather", MIB, range(4)) == pytest.approx(
        slower * bare.seconds("all_gather", MIB, range(4))
    )
