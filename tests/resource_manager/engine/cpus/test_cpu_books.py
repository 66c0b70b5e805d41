"""Tests of node capacities in the cpu ledger while settings and conditions change."""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import EffectivePolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI
from resource_manager.engine.cpus.ledger import CpuLedger
from tests.support.cpu_layouts import machine


def bound(node: int, milli: int) -> CpuAssignment:
    return CpuAssignment(QosClass.BE, numa=(NodeShare(node, ((BEST_EFFORT_CPU_MILLI, milli),)),))


def books() -> CpuLedger:
    """Returns two nodes of 4 cores with 2 threads, and twice as much best-effort cpu as cpus."""
    return CpuLedger(machine(2, 1, 4, 2), best_effort_milli=32_000)


def capacities(host: CpuLedger) -> list[int]:
    return [host.capacity(node, BEST_EFFORT_CPU_MILLI) for node in range(2)]


def test_best_effort_cpu_lies_where_the_pool_is() -> None:
    host = books()
    assert capacities(host) == [16_000, 16_000]
    host.set_policy(EffectivePolicy(shared_reserved_cpus=CpuSet.of(0, 1)))
    assert capacities(host) == [16_000, 16_000]  # but they are still in the pool
    host.set_policy(EffectivePolicy(strictly_reserved_cpus=CpuSet.of(0, 1)))
    assert capacities(host) == [12_000, 16_000]
    host.set_unavailable(offline=CpuSet.of(4), kubelet=CpuSet.of(5))
    assert capacities(host) == [12_000, 12_000]


def test_what_was_taken_before_there_was_less_stays_no_problem_when_a_slot_changes() -> None:
    host = books()
    host.add(("a", 1), bound(0, 15_000))
    host.set_policy(EffectivePolicy(strictly_reserved_cpus=CpuSet.of(0, 1)))
    assert host.problems() == []
    host.replace(("a", 1), bound(0, 14_000))
    assert host.problems() == []
    host.replace(("a", 1), bound(0, 12_000))
    host.replace(("a", 1), bound(0, 14_000))  # more than it should have been given
    assert host.problems() == [
        "NUMA node 0: slots hold 14000 best_effort_cpu_milli, but it has 12000"
    ]
