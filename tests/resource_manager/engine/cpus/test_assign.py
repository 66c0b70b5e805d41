"""Tests of one slot on one host: pinned, aligned to NUMA nodes, or bound to one node's pool."""

from dataclasses import replace

import pytest

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, GIB, MEMORY_BYTES
from resource_manager.engine.cpus.assign import assign, assign_many, fits_empty, score
from resource_manager.engine.cpus.layout import CpuLayout, layout_of
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.model.host_refusal import HostRefusal
from tests.support.cpu_layouts import RECORDED, as_reported, machine
from tests.support.cpu_layouts import recorded as recorded_machine

LSE, LSR = CpuPolicy(QosClass.LSE), CpuPolicy(QosClass.LSR)
LS, BE = CpuPolicy(), CpuPolicy(QosClass.BE)
SINGLE = NumaPolicy.SINGLE_NUMA_NODE
RESTRICTED, BEST_EFFORT = NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT


def two_nodes() -> CpuLayout:
    """Two nodes of four cores with two threads and 16 GiB: cpus 0-3,8-11 and 4-7,12-15."""
    return machine(2, 1, 4, 2, 16 * GIB)


def need(policy: CpuPolicy, cpus: float, memory: int = GIB, limit: int = 0) -> CpuRequest:
    name = BEST_EFFORT_CPU_MILLI if policy.best_effort else CPU_MILLI
    return CpuRequest.of(policy, {name: int(cpus * 1000), MEMORY_BYTES: memory}, limit * 1000)


def aligned(policy: CpuPolicy, numa: NumaPolicy, required: bool = True) -> CpuPolicy:
    return replace(policy, numa=numa, numa_required=required)


def given_to(books: CpuLedger, wish: CpuRequest) -> CpuAssignment:
    """Returns what a slot gets, and books it."""
    found = assign(books, wish)
    assert isinstance(found, CpuAssignment), found
    books.add((f"slot-{books.version}", 1), found)
    assert books.problems() == []
    return found


def refused(books: CpuLedger | None, wish: CpuRequest) -> HostRefusal:
    found = assign(books, wish)
    assert isinstance(found, HostRefusal), found
    return found


# Dedicated cpus.


def test_a_pinned_slot_gets_whole_cores_and_is_bound_to_no_memory() -> None:
    found = given_to(CpuLedger(two_nodes()), need(LSR, 4))
    assert (str(found.cpus), found.bind) == ("0-1,8-9", BindPolicy.FULL_PCPUS)
    assert found.numa == ()
    assert not found.memory_nodes
    assert found.notes == ()


def test_when_the_cpus_are_gone_the_refusal_counts_them() -> None:
    books = CpuLedger(two_nodes())
    given_to(books, need(LSE, 12))
    refusal = refused(books, need(LSE, 6))
    assert refusal.blocker is CpuBlocker.CPU_NOT_ENOUGH
    assert (refusal.number("asked"), refusal.number("free")) == (6, 4)
    assert "needs 6 dedicated cpus" in refusal.text
    assert "has 4 free" in refusal.text
    assert not refusal.lasting
    assert fits_empty(books, need(LSE, 6)) is None


def test_whole_cores_are_required_or_only_preferred() -> None:
    layout = machine(1, 1, 4, 2, GIB)
    books = CpuLedger(layout)
    spread = replace(LSR, bind=BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    assert str(given_to(books, need(spread, 3)).cpus) == "0-2"
    full = replace(LSR, bind=BindPolicy.FULL_PCPUS, bind_required=True)
    refusal = refused(books, need(full, 4))
    assert refusal.blocker is CpuBlocker.WHOLE_CORES_NOT_ENOUGH
    assert refusal.number("free") == 2
    found = given_to(books, need(replace(full, bind_required=False), 4))
    assert str(found.cpus) == "3-5,7"
    assert found.notes == ("FullPCPUs was preferred: 2 of 4 cpus are not on whole cores",)
    assert refused(books, need(spread, 3)).blocker is CpuBlocker.CPU_NOT_ENOUGH


def test_a_core_of_ones_own_is_required_or_only_preferred() -> None:
    books = CpuLedger(machine(1, 1, 4, 2, GIB))
    apart = replace(LSR, bind=BindPolicy.SPREAD_BY_PCPUS, exclusive=ExclusivePolicy.PCPU_LEVEL)
    assert given_to(books, need(apart, 3)).exclusive is ExclusivePolicy.PCPU_LEVEL
    refusal = refused(books, need(replace(apart, exclusive_required=True), 3))
    assert refusal.blocker is CpuBlocker.EXCLUSIVE_UNMET
    assert refusal.number("free") == 2
    found = given_to(books, need(apart, 3))
    assert found.exclusive is ExclusivePolicy.NONE
    assert found.notes[-1].startswith("PCPULevel was preferred")


def test_a_node_of_ones_own_falls_back_to_cores_and_says_so() -> None:
    books = CpuLedger(machine(1, 1, 4, 2, GIB))
    apart = replace(LSR, bind=BindPolicy.SPREAD_BY_PCPUS, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL)
    assert str(given_to(books, need(apart, 1)).cpus) == "0"
    found = given_to(books, need(apart, 3))
    assert str(found.cpus) == "1-3"
    assert found.exclusive is ExclusivePolicy.PCPU_LEVEL
    assert "PCPULevel was reached" in found.notes[0]


def test_isolated_cpus_go_to_pinned_slots_first() -> None:
    layout = replace(two_nodes(), isolated=CpuSet.parse("3,11").bits)
    books = CpuLedger(layout)
    assert str(given_to(books, need(LSR, 2)).cpus) == "3,11"
    assert books.shared_cpus == CpuSet.parse("0-2,4-10,12-15").bits


def test_reserved_and_lost_cpus_are_given_to_nobody() -> None:
    policy = EffectivePolicy(shared_reserved_cpus=CpuSet.of(0, 4))
    books = CpuLedger(machine(1, 1, 4, 2, GIB), policy)
    books.set_unavailable(offline=CpuSet.of(7), kubelet=CpuSet.of(1))
    assert str(given_to(books, need(LSR, 4)).cpus) == "2-3,5-6"
    assert refused(books, need(LSR, 1)).number("free") == 0
    books.set_unavailable()
    assert str(given_to(books, need(LSR, 2)).cpus) == "1,7"


# Pools with slots in them.


def test_pinned_slots_leave_the_shared_pool_a_cpu() -> None:
    books = CpuLedger(machine(1, 1, 4, 1, GIB))
    books.add(("plain", 1), None)
    refusal = refused(books, need(LSR, 4))
    assert refusal.blocker is CpuBlocker.SHARED_POOL_EMPTY
    assert refusal.number("slots") == 1
    given_to(books, need(LSR, 3))
    books.remove(("plain", 1))
    given_to(books, need(LSR, 1))
    assert refused(books, need(LS, 1)).blocker is CpuBlocker.SHARED_POOL_EMPTY


def test_only_lse_slots_shrink_the_best_effort_pool_and_never_empty_it() -> None:
    books = CpuLedger(machine(1, 1, 4, 1, GIB))
    given_to(books, need(BE, 0.5))
    refusal = refused(books, need(LSE, 4))
    assert refusal.blocker is CpuBlocker.BEST_EFFORT_POOL_EMPTY
    assert refusal.number("slots") == 1
    given_to(books, need(LSR, 4))  # best-effort slots run beside them


def test_a_best_effort_slot_needs_a_pool() -> None:
    books = CpuLedger(machine(1, 1, 4, 1, GIB))
    given_to(books, need(LSE, 4))
    assert refused(books, need(BE, 0.5)).blocker is CpuBlocker.BEST_EFFORT_POOL_EMPTY
    assert fits_empty(books, need(BE, 0.5)) is None


def test_what_a_node_has_promised_to_slots_in_its_pool_is_not_pinned() -> None:
    books = CpuLedger(two_nodes())
    for _ in range(2):
        given_to(books, need(aligned(LS, SINGLE), 2.5))  # of four free cpus on each node
    assert sorted(books.used(at, CPU_MILLI) for at in (0, 1)) == [2500, 2500]
    assert len(given_to(books, need(LSR, 10)).cpus) == 10
    refusal = refused(books, need(LSR, 1))
    assert refusal.blocker is CpuBlocker.CPU_NOT_ENOUGH
    assert "promised" in refusal.text
    assert all(books.shared_cpus & node.mask for node in books.layout.nodes)


# NUMA nodes.


def test_a_slot_on_one_node_gets_its_cpus_and_memory_there() -> None:
    books = CpuLedger(two_nodes())
    first = given_to(books, need(aligned(LSE, SINGLE), 6, 12 * GIB))
    assert first.numa == (NodeShare(0, ((CPU_MILLI, 6000), (MEMORY_BYTES, 12 * GIB))),)
    assert str(first.memory_nodes) == "0"
    second = given_to(books, need(aligned(LSE, SINGLE), 2, 8 * GIB))
    assert second.nodes == (1,)  # node 0 has the cpus, but not the memory
    refusal = refused(books, need(aligned(LSE, SINGLE), 2, 9 * GIB))
    assert refusal.blocker is CpuBlocker.NUMA_UNALIGNED
    assert "one NUMA node" in refusal.text
    assert "8Gi memory" in refusal.text


def test_what_the_nodes_together_do_not_have_is_named() -> None:
    books = CpuLedger(two_nodes())
    given_to(books, need(aligned(LS, SINGLE), 1, 16 * GIB))
    refusal = refused(books, need(aligned(LS, RESTRICTED), 1, 17 * GIB))
    assert refusal.blocker is CpuBlocker.NUMA_NOT_ENOUGH_MEMORY
    assert (refusal.number("asked"), refusal.number("free")) == (17 * GIB, 16 * GIB)
    assert (refusal.number("node 0"), refusal.number("node 1")) == (0, 16 * GIB)


def test_restricted_takes_as_few_nodes_as_the_empty_host_would_need() -> None:
    books = CpuLedger(two_nodes())
    given_to(books, need(aligned(LSR, SINGLE), 6))
    given_to(books, need(aligned(LSR, SINGLE), 6))
    refusal = refused(books, need(aligned(LSR, RESTRICTED), 4))  # two cpus are free on each node
    assert refusal.blocker is CpuBlocker.NUMA_UNALIGNED
    found = given_to(books, need(aligned(LSR, BEST_EFFORT), 4))
    assert found.nodes == (0, 1)
    assert "2 NUMA nodes" in found.notes[0]
    books = CpuLedger(two_nodes())
    assert given_to(books, need(aligned(LSR, RESTRICTED), 10)).nodes == (0, 1)


def test_a_preferred_node_is_given_up_with_a_note() -> None:
    books = CpuLedger(two_nodes())
    found = given_to(books, need(aligned(LSR, SINGLE, required=False), 10))
    assert found.nodes == (0, 1)
    assert found.notes[0].startswith("NUMA policy SingleNUMANode was preferred")


def test_a_pinned_slot_gets_cpus_where_no_node_has_the_memory_that_was_preferred_there() -> None:
    books = CpuLedger(two_nodes())
    for _ in range(2):
        given_to(books, need(aligned(LS, SINGLE), 1, 16 * GIB))
    found = given_to(books, need(aligned(LSR, SINGLE, required=False), 2))
    assert (len(found.cpus), found.nodes) == (2, ())
    assert found.notes[0].startswith("NUMA policy SingleNUMANode was preferred")


def test_the_hosts_alignment_holds_for_every_slot() -> None:
    books = CpuLedger(two_nodes(), EffectivePolicy(alignment=SINGLE))
    plain = given_to(books, need(LS, 3, 4 * GIB))
    assert plain.numa == (NodeShare(0, ((CPU_MILLI, 3000), (MEMORY_BYTES, 4 * GIB))),)
    assert plain.pools == (PoolName(0, 0),)
    best_effort = given_to(books, need(BE, 3))
    assert dict(best_effort.numa[0].amounts)[BEST_EFFORT_CPU_MILLI] == 3000
    assert best_effort.pools == (PoolName(1, 1),)
    assert refused(books, need(LS, 9)).blocker is CpuBlocker.NUMA_UNALIGNED
    assert refused(books, need(LS, 17)).blocker is CpuBlocker.NUMA_NOT_ENOUGH_CPU


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        (NumaStrategy.LEAST_ALLOCATED, (1,)),
        (NumaStrategy.MOST_ALLOCATED, (0,)),
        (NumaStrategy.DISTRIBUTE_EVENLY, (1,)),
    ],
)
def test_the_strategy_says_which_node_comes_first(
    strategy: NumaStrategy, nodes: tuple[int, ...]
) -> None:
    books = CpuLedger(two_nodes(), EffectivePolicy(numa_strategy=strategy))
    taken = CpuAssignment(QosClass.LSR, cpus=CpuSet.of(0, 8))
    books.add(("there", 1), taken)
    for policy in (LSR, LS):
        found = assign(books, need(aligned(policy, SINGLE), 2))
        assert isinstance(found, CpuAssignment)
        assert found.nodes == nodes


def test_a_node_whose_cores_are_unclaimed_goes_before_the_strategy() -> None:
    books = CpuLedger(two_nodes(), EffectivePolicy(numa_strategy=NumaStrategy.MOST_ALLOCATED))
    apart = replace(aligned(LSR, SINGLE), exclusive=ExclusivePolicy.NUMA_NODE_LEVEL)
    assert [given_to(books, need(apart, 2)).nodes for _ in range(2)] == [(0,), (1,)]


def test_even_distribution_over_two_nodes_takes_whole_cores() -> None:
    policy = EffectivePolicy(numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY)
    books = CpuLedger(two_nodes(), policy)
    found = given_to(books, need(aligned(LSE, RESTRICTED), 12))
    assert [dict(share.amounts)[CPU_MILLI] for share in found.numa] == [6000, 6000]
    assert books.layout.whole(found.cpus.bits) == found.cpus.bits


def test_cpus_without_memory_use_that_of_the_nearest_node() -> None:
    layout = two_nodes()
    nodes = (layout.nodes[0], replace(layout.nodes[1], memory_bytes=0, memory_node=0))
    books = CpuLedger(replace(layout, nodes=nodes))
    given_to(books, need(aligned(LSE, SINGLE), 8))
    found = given_to(books, need(aligned(LSE, SINGLE), 8))
    assert found.numa == (
        NodeShare(0, ((MEMORY_BYTES, GIB),)),
        NodeShare(1, ((CPU_MILLI, 8000),)),
    )
    assert str(found.memory_nodes) == "0"


def test_nodes_without_cpus_are_given_to_nobody() -> None:
    layout = two_nodes()
    fast = replace(layout.nodes[0], id=2, mask=0, packages=(), memory_node=2)
    books = CpuLedger(replace(layout, nodes=(*layout.nodes, fast)))
    found = given_to(books, need(aligned(LS, BEST_EFFORT), 1, 30 * GIB))
    assert found.nodes == (0, 1)
    refusal = refused(books, need(aligned(LS, RESTRICTED), 1, 3 * GIB))
    assert refusal.number("free") == 2 * GIB


def test_huge_pages_lie_on_nodes() -> None:
    layout = two_nodes()
    nodes = (layout.nodes[0], replace(layout.nodes[1], extended=(("hugepages-1Gi", 4),)))
    books = CpuLedger(replace(layout, nodes=nodes))
    policy = aligned(LSE, SINGLE)
    wish = CpuRequest.of(
        policy, {CPU_MILLI: 2000, "extended.hugepages-1Gi": 3, "extended.licence": 1}
    )
    found = given_to(books, wish)
    assert found.numa == (NodeShare(1, ((CPU_MILLI, 2000), ("extended.hugepages-1Gi", 3))),)
    assert refused(books, wish).blocker is CpuBlocker.NUMA_NOT_ENOUGH_RESOURCE


def test_where_memory_is_in_separate_pools_nodes_count_it_as_one() -> None:
    booking = {CPU_MILLI: 1000, "task_heap_memory_bytes": GIB, "managed_memory_bytes": 2 * GIB}
    found = given_to(CpuLedger(two_nodes()), CpuRequest.of(aligned(LS, SINGLE), booking))
    assert dict(found.numa[0].amounts)[MEMORY_BYTES] == 3 * GIB


# The pool of one node.


def test_a_bursting_slot_is_bound_to_the_pool_that_suits_its_limit_best() -> None:
    books = CpuLedger(two_nodes())
    books.add(("there", 1), CpuAssignment(QosClass.LSR, cpus=CpuSet.of(0, 8)))
    burst = replace(LS, bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)
    small = given_to(books, need(burst, 1, limit=6))
    assert small.pools == (PoolName(0, 0),)
    assert small.numa == (NodeShare(0, ((CPU_MILLI, 1000),)),)
    assert not small.memory_nodes
    assert given_to(books, need(burst, 1, limit=7)).pools == (PoolName(1, 1),)
    refusal = refused(books, need(burst, 1, limit=9))
    assert refusal.blocker is CpuBlocker.BURST_POOL_TOO_SMALL
    assert (refusal.number("node 0"), refusal.number("node 1")) == (6, 8)
    free = given_to(books, need(replace(burst, bind_required=False), 1, limit=9))
    assert free.pools == ()
    assert free.notes[0].startswith("ConstrainedBurst was preferred")


def test_a_bursting_slot_on_an_aligned_host_keeps_to_suitable_nodes() -> None:
    books = CpuLedger(two_nodes(), EffectivePolicy(alignment=RESTRICTED))
    given_to(books, need(LSE, 4))
    burst = replace(LS, bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)
    found = given_to(books, need(burst, 1, limit=7))
    assert (found.pools, str(found.memory_nodes)) == ((PoolName(1, 1),), "1")
    assert refused(books, need(burst, 1, limit=9)).blocker is CpuBlocker.BURST_POOL_TOO_SMALL


# Recorded machines.


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_machine_serves_every_class(name: str) -> None:
    layout = layout_of(as_reported(recorded_machine(name)))
    assert layout is not None
    for policy in (LSE, LSR, LS, BE):
        for numa in NumaPolicy:
            books = CpuLedger(layout)
            wish = need(aligned(policy, numa), 1, memory=0)
            found = given_to(books, wish)
            assert fits_empty(books, wish) is None
            assert len(found.cpus) == policy.qos.is_pinned
            assert bool(found.numa) is numa.aligns
            reported = {core.place for core in layout.cores}
            assert set(found.pools) <= reported


# Hosts without topology, several slots, and the ranking of hosts.


def test_a_host_without_topology_serves_what_demands_nothing() -> None:
    for policy in (LS, BE, aligned(LS, BEST_EFFORT), replace(LS, numa=SINGLE)):
        found = assign(None, need(policy, 1))
        assert isinstance(found, CpuAssignment)
        assert bool(found.notes) is policy.numa.aligns
    for policy in (LSE, LSR, aligned(LS, SINGLE)):
        refusal = refused(None, need(policy, 1))
        assert refusal.blocker is CpuBlocker.NO_CPU_TOPOLOGY
        assert fits_empty(None, need(policy, 1)) == refusal


def test_several_slots_are_assigned_until_the_first_that_fits_nowhere() -> None:
    books = CpuLedger(two_nodes())
    wish = need(LSE, 6)
    found = assign_many(books, [wish] * 4)
    assert [isinstance(each, HostRefusal) for each in found] == [False, False, True]
    assert books.holdings == {}


def test_hosts_are_ranked_by_what_they_grant_and_then_by_strategy() -> None:
    wish = need(aligned(LSR, SINGLE, required=False), 4)

    def rated(taken: int, strategy: NumaStrategy) -> int:
        books = CpuLedger(two_nodes(), EffectivePolicy(numa_strategy=strategy))
        for _ in range(2):
            given_to(books, need(aligned(LSR, SINGLE), taken))
        found = assign(books, wish)
        assert isinstance(found, CpuAssignment)
        return score(books, wish, found)

    least = [rated(taken, NumaStrategy.LEAST_ALLOCATED) for taken in (2, 4, 6)]
    assert least == sorted(least, reverse=True)
    assert least[1] >= 500 > least[2]  # there it spans two nodes
    most = [rated(taken, NumaStrategy.MOST_ALLOCATED) for taken in (2, 4, 6)]
    # with 2 cpus taken on each node, the slot fills a half-full node
    assert most[0] > most[1] > most[2]


def test_only_cpus_that_are_free_make_a_node_suit_what_is_preferred() -> None:
    """Each node has four free unclaimed cpus; only the second has them as whole cores."""
    books = CpuLedger(two_nodes())
    spread = replace(aligned(LSR, SINGLE), bind=BindPolicy.SPREAD_BY_PCPUS)
    assert str(given_to(books, need(spread, 4)).cpus) == "0-3"
    assert str(given_to(books, need(aligned(LSE, SINGLE), 4)).cpus) == "4-5,12-13"
    apart = replace(
        aligned(LSR, SINGLE),
        bind=BindPolicy.FULL_PCPUS,
        exclusive=ExclusivePolicy.NUMA_NODE_LEVEL,
    )
    found = given_to(books, need(apart, 4))
    assert str(found.cpus) == "6-7,14-15"
    assert found.notes == ()


def test_the_more_of_what_is_preferred_is_not_granted_the_lower_a_host_ranks() -> None:
    """The hosts are equal, so that nothing else decides."""
    books = CpuLedger(two_nodes())
    wish = need(LSR, 4)
    found = given_to(books, wish)
    noted = [replace(found, notes=("unmet",) * count) for count in range(4)]
    scores = [score(books, wish, each) for each in noted]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
