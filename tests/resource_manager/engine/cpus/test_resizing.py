"""Tests of the cpus and NUMA nodes of a slot that is resized, on one host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.cpus.resizing import fits_alone, resized, together
from resource_manager.engine.model.host_refusal import HostRefusal
from tests.support.cpu_layouts import machine

KEY = ("slot", 1)
LSR = CpuPolicy(QosClass.LSR)
ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LS_ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def books(policy: EffectivePolicy | None = None) -> CpuLedger:
    """Two nodes of 4 cores with 2 threads: cpus 0-3,8-11 and 4-7,12-15; 16 GiB each."""
    return CpuLedger(machine(2, 1, 4, 2, 16 * GIB), policy)


def wish(policy: CpuPolicy, cpus: float, memory: int = GIB, limit: int = 0) -> CpuRequest:
    return CpuRequest.of(policy, {"cpu_milli": int(cpus * 1000), "memory_bytes": memory}, limit)


def given(host: CpuLedger, asked: CpuRequest, key: tuple[str, int] = KEY) -> CpuAssignment:
    found = assign(host, asked)
    assert isinstance(found, CpuAssignment), found
    host.add(key, found)
    return found


def changed(host: CpuLedger, held: CpuAssignment, asked: CpuRequest) -> CpuAssignment:
    found = resized(host, KEY, held, asked)
    assert isinstance(found, CpuAssignment), found
    host.replace(KEY, found)
    assert host.problems() == []
    return found


def refused(host: CpuLedger, held: CpuAssignment, asked: CpuRequest) -> HostRefusal:
    version = host.version
    found = resized(host, KEY, held, asked)
    assert isinstance(found, HostRefusal), found
    assert host.version == version
    return found


def test_a_slot_that_grows_keeps_its_cpus_and_one_that_shrinks_gives_back_whole_cores() -> None:
    host = books()
    held = given(host, wish(LSR, 4))
    grown = changed(host, held, wish(LSR, 6))
    assert held.cpus < grown.cpus
    assert host.layout.whole(grown.cpus.bits) == grown.cpus.bits
    shrunk = changed(host, grown, wish(LSR, 3))
    assert shrunk.cpus < grown.cpus
    assert len(shrunk.cpus) == 3
    assert host.layout.whole(shrunk.cpus.bits).bit_count() == 2  # one of three cores was returned
    again = changed(host, shrunk, wish(LSR, 4))
    assert host.layout.whole(again.cpus.bits) == again.cpus.bits
    assert again.notes == ()


def test_one_that_cannot_grow_is_told_what_is_free() -> None:
    host = books()
    held = given(host, wish(LSR, 4))
    given(host, wish(LSR, 10), ("other", 1))
    refusal = refused(host, held, wish(LSR, 7))
    assert refusal.blocker is CpuBlocker.CPU_NOT_ENOUGH
    assert (refusal.number("asked"), refusal.number("free")) == (3, 2)
    assert len(changed(host, held, wish(LSR, 6)).cpus) == 6
    assert fits_alone(host, KEY, held, wish(LSR, 16)) is None
    assert fits_alone(host, KEY, held, wish(LSR, 17)) is not None


def test_its_own_claim_to_whole_cores_is_not_in_its_way() -> None:
    policy = CpuPolicy(
        QosClass.LSR,
        BindPolicy.SPREAD_BY_PCPUS,
        exclusive=ExclusivePolicy.PCPU_LEVEL,
        exclusive_required=True,
    )
    host = books()
    held = given(host, wish(policy, 2))
    grown = changed(host, held, wish(policy, 4))
    assert grown.exclusive is ExclusivePolicy.PCPU_LEVEL
    assert host.layout.first_threads(grown.cpus.bits) == grown.cpus.bits
    given(host, wish(policy, 3), ("other", 1))
    refusal = refused(host, grown, wish(policy, 11))  # it has 4 cores, and one more is free
    assert refusal.blocker is CpuBlocker.EXCLUSIVE_UNMET
    assert len(changed(host, grown, wish(policy, 10)).cpus) == 10


def test_a_slot_bound_to_a_node_grows_there_or_not_at_all() -> None:
    host = books()
    held = given(host, wish(ONE_NODE, 4))
    grown = changed(host, held, wish(ONE_NODE, 8, 3 * GIB))
    assert grown.nodes == held.nodes
    assert grown.numa == (
        NodeShare(held.nodes[0], (("cpu_milli", 8000), ("memory_bytes", 3 * GIB))),
    )
    assert refused(host, grown, wish(ONE_NODE, 10)).blocker is CpuBlocker.CPU_NOT_ENOUGH
    refusal = refused(host, grown, wish(ONE_NODE, 8, 17 * GIB))
    assert refusal.blocker is CpuBlocker.NUMA_NOT_ENOUGH_MEMORY
    assert refusal.number("asked") == 14 * GIB
    assert fits_alone(host, KEY, held, wish(ONE_NODE, 10)) is not None


def test_a_slot_in_the_pool_of_a_node_grows_by_what_the_node_has_left() -> None:
    host = books()
    held = given(host, wish(LS_ONE_NODE, 1.5))
    node = held.nodes[0]
    given(host, wish(ONE_NODE, 4), ("elsewhere", 1))
    position = host.layout.position_of_node[node]
    left = host.available(position, "cpu_milli")
    grown = changed(host, held, wish(LS_ONE_NODE, 1.5 + left / 1000, 2 * GIB))
    assert grown.pools == held.pools
    assert host.available(position, "cpu_milli") == 0
    refusal = refused(host, grown, wish(LS_ONE_NODE, 1.6 + left / 1000))
    assert refusal.blocker is CpuBlocker.NUMA_NOT_ENOUGH_CPU
    shrunk = changed(host, grown, wish(LS_ONE_NODE, 1))
    assert shrunk.numa == (NodeShare(node, (("cpu_milli", 1000), ("memory_bytes", GIB))),)


def test_a_slot_spread_over_nodes_takes_and_gives_evenly() -> None:
    policy = CpuPolicy(QosClass.LSR, numa=NumaPolicy.RESTRICTED, numa_required=True)
    host = books(EffectivePolicy(numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY))
    held = given(host, wish(policy, 12, 4 * GIB))
    assert len(held.nodes) == 2
    grown = changed(host, held, wish(policy, 16, 6 * GIB))
    assert [dict(share.amounts)["memory_bytes"] for share in grown.numa] == [3 * GIB, 3 * GIB]
    shrunk = changed(host, grown, wish(policy, 12, 2 * GIB))
    assert [dict(share.amounts) for share in shrunk.numa] == [
        {"cpu_milli": 6000, "memory_bytes": GIB},
        {"cpu_milli": 6000, "memory_bytes": GIB},
    ]


def test_what_a_slot_gives_up_altogether_lies_nowhere() -> None:
    host = books()
    held = given(host, wish(ONE_NODE, 4))
    share = held.numa[0]
    pages = NodeShare(share.node, (*share.amounts[:1], ("extended.hugepages-2Mi", 4)))
    with_pages = replace(held, numa=(pages,))
    host.replace(KEY, with_pages)
    assert changed(host, with_pages, wish(ONE_NODE, 4)).numa == (share,)


def test_what_the_host_demands_since_does_not_hold_for_slots_that_were_there() -> None:
    policy = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    host = books()
    held = given(host, wish(policy, 2))
    host.set_policy(
        EffectivePolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY, alignment=NumaPolicy.SINGLE_NUMA_NODE)
    )
    assert isinstance(assign(host, wish(policy, 2)), HostRefusal)
    grown = changed(host, held, wish(policy, 3))
    assert (grown.bind, grown.numa) == (BindPolicy.SPREAD_BY_PCPUS, ())
    assert host.layout.first_threads(grown.cpus.bits) == grown.cpus.bits


def test_whole_cores_that_are_required_stay_whole() -> None:
    policy = CpuPolicy(QosClass.LSE, BindPolicy.FULL_PCPUS, bind_required=True)
    host = books()
    held = given(host, wish(policy, 4))
    assert refused(host, held, wish(policy, 5)).blocker is CpuBlocker.SMT_ALIGNMENT
    assert fits_alone(host, KEY, held, wish(policy, 3)) is not None
    assert len(changed(host, held, wish(policy, 2)).cpus) == 2


@pytest.mark.parametrize("what", ["offline", "kubelet", "reserved"])
def test_cpus_that_are_not_for_slots_any_more_are_the_first_to_be_given_back(what: str) -> None:
    host = books()
    held = given(host, wish(LSR, 4))
    first = held.cpus.min()
    gone = CpuSet.of(first, first + 8)  # a whole core
    if what == "reserved":
        host.set_policy(replace(host.policy, shared_reserved_cpus=gone))
    elif what == "kubelet":
        host.set_unavailable(kubelet=gone)
    else:
        host.set_unavailable(offline=gone)
    assert first not in changed(host, held, wish(LSR, 3)).cpus
    assert resized(host, KEY, held, wish(LSR, 2)) == replace(held, cpus=held.cpus - gone)


def test_what_is_not_there_goes_before_what_others_have_and_the_rest_of_its_core_next() -> None:
    policy = CpuPolicy(QosClass.LSE, BindPolicy.FULL_PCPUS, bind_required=True)
    host = books()
    held = given(host, wish(policy, 6))
    first = held.cpus.min()
    host.set_unavailable(offline=CpuSet.of(first + 1), kubelet=CpuSet.of(first))
    shrunk = resized(host, KEY, held, wish(policy, 2))
    assert isinstance(shrunk, CpuAssignment)
    assert shrunk.cpus == CpuSet.of(first + 2, first + 10)


def test_a_burst_above_its_pool_is_refused_if_the_pool_is_a_must_and_noted_if_not() -> None:
    for required in (True, False):
        policy = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=required)
        host = books()
        held = given(host, wish(policy, 1, limit=4000))
        grown = changed(host, held, wish(policy, 2, limit=8000))
        assert grown.numa == (NodeShare(held.nodes[0], (("cpu_milli", 2000),)),)
        found = resized(host, KEY, grown, wish(policy, 2, limit=9000))
        if required:
            assert isinstance(found, HostRefusal)
            assert found.blocker is CpuBlocker.BURST_POOL_TOO_SMALL
        else:
            assert isinstance(found, CpuAssignment)
            assert "cpu limit is 9 cpus" in found.notes[-1]


@pytest.mark.parametrize("cpus", [2, 6])
def test_both_sizes_are_booked_until_one_of_them_is_known_to_hold(cpus: int) -> None:
    host = books()
    held = given(host, wish(ONE_NODE, 4, 2 * GIB))
    after = resized(host, KEY, held, wish(ONE_NODE, cpus, GIB))
    assert isinstance(after, CpuAssignment)
    both = together(held, after)
    assert both.cpus == held.cpus | after.cpus
    assert dict(both.numa[0].amounts) == {
        "cpu_milli": max(4, cpus) * 1000,
        "memory_bytes": 2 * GIB,
    }
    host.replace(KEY, both)
    assert host.problems() == []
