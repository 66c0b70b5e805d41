"""Tests of the cpu ledger of one host: which slots have which cpus, and what is free."""

import pytest

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import EffectivePolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, GIB, MEMORY_BYTES
from resource_manager.engine.cpus.layout import layout_of_rows
from resource_manager.engine.cpus.ledger import CpuLedger, PinRoom
from tests.support.cpu_layouts import cpus, machine

FIRST, SECOND, THIRD = ("first", 1), ("second", 1), ("third", 1)


def books(policy: EffectivePolicy | None = None) -> CpuLedger:
    """Two nodes of four cores with two threads and 8 GiB: cpus 0-3,8-11 and 4-7,12-15."""
    return CpuLedger(machine(2, 1, 4, 2, 8 * GIB), policy)


def own(
    text: str,
    qos: QosClass = QosClass.LSE,
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
    *shares: NodeShare,
) -> CpuAssignment:
    return CpuAssignment(qos, cpus=CpuSet.parse(text), exclusive=exclusive, numa=shares)


def on_node(node: int, qos: QosClass = QosClass.LS, **amounts: int) -> CpuAssignment:
    return CpuAssignment(qos, numa=(NodeShare(node, tuple(sorted(amounts.items()))),))


def test_what_comes_is_taken_and_what_goes_is_free_again() -> None:
    its = books()
    before = its.version
    its.add(FIRST, own("0,8", QosClass.LSE, ExclusivePolicy.PCPU_LEVEL))
    its.add(SECOND, own("1,9", QosClass.LSR, ExclusivePolicy.NUMA_NODE_LEVEL))
    assert its.free == cpus("2-7,10-15")
    assert its.shared_cpus == its.free
    assert its.best_effort_cpus == cpus("1-7,9-15")  # beside the LSR slot
    assert (its.claimed_cores, its.claimed_nodes) == (cpus("0,8"), cpus("1,9"))
    its.remove(FIRST)
    its.remove(SECOND)
    assert its.free == its.pinnable == cpus("0-15")
    assert (its.claimed_cores, its.claimed_nodes, its.exclusive) == (0, 0, 0)
    assert its.version == before + 4
    assert its.problems() == []


def test_a_slot_comes_once_and_goes_once() -> None:
    its = books()
    its.add(FIRST, None)
    with pytest.raises(ValueError, match="already"):
        its.add(FIRST, None)
    its.remove(FIRST)
    with pytest.raises(KeyError):
        its.remove(FIRST)
    with pytest.raises(KeyError):
        its.replace(FIRST, None)


def test_a_slot_has_other_cpus_now() -> None:
    its = books()
    its.add(FIRST, own("0,8"))
    version = its.version
    its.replace(FIRST, own("0,8"))
    assert its.version == version
    its.replace(FIRST, own("4-5,12-13"))
    assert its.version > version
    assert its.free == cpus("0-3,6-11,14-15")
    its.replace(FIRST, None)
    assert (its.free, its.shared_count) == (its.pinnable, 1)
    assert its.problems() == []


def test_nodes_count_what_slots_are_promised_there() -> None:
    its = books()
    its.add(FIRST, on_node(0, cpu_milli=2500, memory_bytes=GIB))
    its.add(
        SECOND,
        own(
            "0,8",
            QosClass.LSR,
            ExclusivePolicy.NONE,
            NodeShare(0, ((CPU_MILLI, 2000), (MEMORY_BYTES, GIB))),
        ),
    )
    assert its.available(0, CPU_MILLI) == 6000 - 2500
    assert its.available(0, MEMORY_BYTES) == 6 * GIB
    assert its.available(1, CPU_MILLI) == 8000
    assert its.pool_spare(0, QosClass.LSR) == 3  # of six, three are promised
    its.add(THIRD, on_node(0, QosClass.BE, best_effort_cpu_milli=8000))
    assert its.available(0, BEST_EFFORT_CPU_MILLI) == 0
    assert its.pool_spare(1, QosClass.LSE) == 8
    for key in (FIRST, SECOND, THIRD):
        its.remove(key)
    assert [its.used(at, name) for at in (0, 1) for name in (CPU_MILLI, MEMORY_BYTES)] == [0] * 4


def test_best_effort_capacity_lies_where_its_cpus_are() -> None:
    its = CpuLedger(machine(2, 1, 4, 2, GIB), best_effort_milli=8000)
    assert [its.available(at, BEST_EFFORT_CPU_MILLI) for at in (0, 1)] == [4000, 4000]
    its.add(FIRST, own("0-3,8-11", QosClass.LSR))
    assert its.available(0, BEST_EFFORT_CPU_MILLI) == 4000
    its.replace(FIRST, own("0-3,8-11", QosClass.LSE))
    assert its.available(0, BEST_EFFORT_CPU_MILLI) == 0


def test_what_is_reserved_lost_or_a_kubelets_is_not_there() -> None:
    its = books()
    its.set_policy(
        EffectivePolicy(shared_reserved_cpus=CpuSet.of(0), strictly_reserved_cpus=CpuSet.of(8))
    )
    its.set_unavailable(
        offline=CpuSet.of(4), kubelet=CpuSet.of(5, 13), kubelet_memory=[(1, 3 * GIB)]
    )
    assert its.pinnable == cpus("1-3,6-7,9-12,14-15")
    assert its.shared_cpus == its.pinnable | cpus("0")
    assert its.available(1, MEMORY_BYTES) == 5 * GIB
    assert its.available(1, CPU_MILLI) == 5000
    assert its.layout.cores_touched(cpus("12")) == cpus("12")  # its sibling is offline
    version = its.version
    its.set_unavailable(
        offline=CpuSet.of(4), kubelet=CpuSet.of(5, 13), kubelet_memory=[(1, 3 * GIB)]
    )
    assert its.version == version
    its.set_unavailable()
    its.set_policy(EffectivePolicy())
    assert its.free == cpus("0-15")
    assert its.layout is its.reported_layout


def test_a_host_that_shrank_under_its_slots_is_no_problem() -> None:
    its = books()
    its.add(FIRST, on_node(1, cpu_milli=7000, memory_bytes=8 * GIB))
    its.set_unavailable(kubelet=CpuSet.parse("4-7"), kubelet_memory=[(1, GIB)])
    assert its.available(1, CPU_MILLI) == its.available(1, MEMORY_BYTES) == 0
    assert its.problems() == []
    its.add(SECOND, on_node(0, memory_bytes=9 * GIB))
    assert its.problems() == [
        f"NUMA node 0: slots hold {9 * GIB} memory_bytes, but it has {8 * GIB}"
    ]
    its.tolerate()
    assert its.problems() == []


def test_a_cpu_that_two_slots_have_is_found_and_freed_with_the_last() -> None:
    its = books()
    its.add(FIRST, own("0-1,8-9"))
    its.add(SECOND, own("1-2"))
    assert its.problems() == [f"cpus 1 belong to slot {SECOND} and to another slot"]
    its.remove(FIRST)
    assert its.pinned == cpus("1-2")
    assert its.problems() == []
    its.remove(SECOND)
    assert its.pinned == 0


def test_a_tally_that_drifted_is_found() -> None:
    its = books()
    its.add(FIRST, own("0,8"))
    its.pinned |= cpus("1")
    assert its.problems() == ["the counter pinned does not match the assignments of slots"]


def test_a_scratch_copy_and_an_empty_one_change_nothing() -> None:
    its = books(EffectivePolicy(shared_reserved_cpus=CpuSet.of(15)))
    its.add(FIRST, on_node(0, cpu_milli=1000))
    its.add(SECOND, own("0,8"))
    scratch, empty = its.scratch(), its.empty()
    scratch.remove(FIRST)
    scratch.remove(SECOND)
    assert empty.free == scratch.free == cpus("0-14")
    assert empty.used(0, CPU_MILLI) == scratch.used(0, CPU_MILLI) == 0
    assert its.used(0, CPU_MILLI) == 1000
    assert its.free == cpus("1-7,9-14")
    assert set(its.holdings) == {FIRST, SECOND}


def test_the_room_for_cpus_of_ones_own() -> None:
    its = books()
    assert its.pin_room() == PinRoom(16, 8, 16, 8, 8)
    its.add(FIRST, own("0-1,4,12"))
    assert its.pin_room() == PinRoom(12, 5, 10, 7, 6)


def test_pools_are_named_as_the_host_reports_them() -> None:
    layout = layout_of_rows([(0, 0, 7, 3), (1, 1, 7, 4), (2, 2, 9, 4)])
    its = CpuLedger(layout)
    assert its.pools(0) == (PoolName(3, 7), PoolName(4, 7))  # one node in two packages
    assert its.pools(1) == (PoolName(4, 9),)


def test_a_node_that_is_no_longer_reported_counts_nowhere() -> None:
    its = books()
    its.add(FIRST, on_node(5, memory_bytes=GIB))
    assert its.problems() == []
    its.remove(FIRST)
    assert its.problems() == []
