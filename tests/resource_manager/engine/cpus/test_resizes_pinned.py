"""Tests of resizes of slots with dedicated cpus or bound to NUMA nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpu_policy import BindPolicy, CpuPolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import FailedPrecondition, InvalidArgument, Reason
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.events import HostPolicySet, ResizeRequested
from tests.support.engine_cluster import BE, LSE, LSR, EngineCluster, numa_host

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LS_ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def ask(cluster: EngineCluster, name: str, cpu_milli: int, mib: int = 64, **more: Any) -> Slot:
    """Requests a resize; delivers no command."""
    profile = ResourceProfile(cpu_milli, mib * MIB)
    slot: Slot = cluster.batch(ResizeRequested(cluster.at, "job", name, 0, 0, profile, **more))
    cluster.check()
    return slot


def resize(cluster: EngineCluster, name: str, cpu_milli: int, mib: int = 64, **more: Any) -> Slot:
    return cluster.resize(name, ResourceProfile(cpu_milli, mib * MIB), **more)


def why(cluster: EngineCluster, name: str) -> str:
    (change,) = explain(cluster.state, name).resizes
    return change.summary


def test_a_slot_grows_beside_what_it_has_and_gives_whole_cores_back_first() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
    before = cluster.assignment("pinned").cpus
    resize(cluster, "pinned", 6_000)
    grown = cluster.assignment("pinned").cpus
    assert before < grown
    assert cluster.slot("pinned").profile.cpu_milli == 6_000
    assert cluster.free_cpu() == 10_000
    resize(cluster, "pinned", 3_000)
    shrunk = cluster.assignment("pinned").cpus
    assert shrunk < grown
    siblings = [CpuSet.of(cpu, cpu + 8) for cpu in range(8)]
    assert sorted(len(shrunk & core) for core in siblings)[-2:] == [1, 2]
    assert cluster.free_cpu() == 13_000


def test_both_are_booked_until_the_executor_has_answered() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
    before = cluster.assignment("pinned").cpus
    slot = ask(cluster, "pinned", 8_000)
    assert slot.assignment is not None
    assert slot.assignment.cpus == before
    assert slot.ordered is not None
    assert slot.ordered.assignment is not None
    assert before < slot.ordered.assignment.cpus
    books = cluster.cpu_ledger()
    assert books.pinned == slot.ordered.assignment.cpus.bits
    cluster.restart_rm()
    assert cluster.cpu_ledger().pinned == books.pinned
    cluster.check()
    cluster.register(cluster.executors["host-a"])
    cluster.settle()
    assert cluster.assignment("pinned").cpus == slot.ordered.assignment.cpus
    slot = ask(cluster, "pinned", 2_000)
    assert cluster.cpu_ledger().pinned.bit_count() == 8  # the slot may still run on them
    cluster.settle()
    assert cluster.cpu_ledger().pinned.bit_count() == 2


def test_what_the_executor_refuses_leaves_everything_as_it_was() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
    before = cluster.assignment("pinned")
    cluster.executors["host-a"].broken.add("pinned")
    resize(cluster, "pinned", 8_000)
    slot = cluster.slot("pinned")
    assert (slot.assignment, slot.ordered, slot.wanted) == (before, None, None)
    assert cluster.cpu_ledger().pinned == before.cpus.bits


def test_cpus_that_go_offline_under_an_order_are_chosen_anew() -> None:
    executor = numa_host()
    cluster = EngineCluster.settled(executor)
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
    before = cluster.assignment("pinned").cpus
    slot = ask(cluster, "pinned", 6_000)
    assert slot.ordered is not None
    assert slot.ordered.assignment is not None
    more = slot.ordered.assignment.cpus - before
    executor.cpu_state = replace(executor.cpu_state, offline_cpus=more)
    cluster.settle()
    assert slot.wanted is not None
    assert slot.wanted.assignment is None
    cluster.wait(5_000)
    cluster.settle()
    assert slot.profile.cpu_milli == 6_000
    assert not (cluster.assignment("pinned").cpus & more)


def test_a_change_that_its_cpus_do_not_suit_waits_in_line_and_says_why() -> None:
    cluster = EngineCluster.settled(numa_host(policy={"numa_strategy": "MostAllocated"}))
    cluster.submit("pinned", cpu_milli=4_000, policy=ONE_NODE)
    (node,) = cluster.assignment("pinned").nodes
    cluster.submit("beside", cpu_milli=4_000, policy=ONE_NODE)
    assert cluster.assignment("beside").nodes == (node,)
    slot = resize(cluster, "pinned", 6_000)
    assert slot.wanted is not None
    assert cluster.free_cpu() == 8_000
    assert why(cluster, "pinned").startswith(
        "WAITING_TOPOLOGY: host-a has the amounts, but the slot"
    )
    cluster.release("beside")
    assert slot.profile.cpu_milli == 6_000
    assert cluster.assignment("pinned").nodes == (node,)


def test_a_slot_in_a_nodes_pool_grows_within_it_or_waits() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("bound", cpu_milli=2_000, policy=LS_ONE_NODE)
    (node,) = cluster.assignment("bound").nodes
    cluster.submit("pinned", cpu_milli=8_000, policy=ONE_NODE)
    assert cluster.assignment("pinned").nodes != (node,)
    resize(cluster, "bound", 7_500, 1_024)
    assert dict(cluster.assignment("bound").numa[0].amounts) == {
        "cpu_milli": 7_500,
        "memory_bytes": 1_024 * MIB,
    }
    cluster.release("pinned")
    cluster.submit("beside", cpu_milli=500, policy=LS_ONE_NODE)
    assert cluster.assignment("beside").nodes == (1 - node,)
    with pytest.raises(FailedPrecondition) as refused:
        resize(cluster, "bound", 9_000)  # the node has eight cpus
    assert refused.value.reason is Reason.INFEASIBLE_NEVER
    assert refused.value.details["blocker"] == "NUMA_NOT_ENOUGH_CPU"


def test_slots_in_the_whole_pool_grow_by_amounts_alone() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("plain", cpu_milli=1_000)
    cluster.submit("idle", cpu_milli=1_000, policy=BE)
    cluster.batch(
        HostPolicySet(cluster.at, "host-a", HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE))
    )
    resize(cluster, "plain", 12_000)
    assert cluster.slot("plain").assignment is None
    resize(cluster, "idle", 12_000)
    assert cluster.assignment("idle").numa == ()
    assert cluster.free_cpu() == 4_000
    assert cluster.state.hosts["host-a"].booked["best_effort_cpu_milli"] == 12_000


def test_a_lost_slot_leaves_nothing_pinned() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=4_000, policy=LSE)
    ask(cluster, "pinned", 8_000)
    cluster.release("pinned")
    assert cluster.cpu_ledger().pinned == 0
    assert cluster.free_cpu() == 16_000


@pytest.mark.parametrize(
    ("policy", "cpu_milli", "limit", "field"),
    [
        (LSR, 2_500, 0, "profile.cpu_milli"),
        (LSE, 2_000, 3_000, "cpu_limit_milli"),
        (BE, 1_500, 2_000, "cpu_limit_milli"),
    ],
)
def test_sizes_that_a_class_does_not_have_are_refused(
    policy: CpuPolicy, cpu_milli: int, limit: int, field: str
) -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("slot", cpu_milli=1_000, policy=policy)
    with pytest.raises(InvalidArgument) as refused:
        ask(cluster, "slot", cpu_milli, cpu_limit_milli=limit)
    assert refused.value.details["field"] == field
    assert str(policy.qos) in refused.value.message or "LS slots" in refused.value.message


def test_half_a_core_of_whole_ones_is_never_to_be_had() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit(
        "slot",
        cpu_milli=4_000,
        policy=CpuPolicy(QosClass.LSE, BindPolicy.FULL_PCPUS, bind_required=True),
    )
    with pytest.raises(FailedPrecondition) as refused:
        ask(cluster, "slot", 5_000)
    assert refused.value.reason is Reason.INFEASIBLE_NEVER
    assert "request a multiple of 2 cpus" in refused.value.message
    assert cluster.slot("slot").resize_number == 0
