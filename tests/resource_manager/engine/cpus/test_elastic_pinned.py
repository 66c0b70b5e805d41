"""Tests of executors that are asked for on behalf of topology-constrained requests."""

from __future__ import annotations

from typing import Any

from finegrain.cpu_policy import CpuPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.errors import Reason
from finegrain.values.states import GangPlacement
from resource_manager.engine.explain.provisions import providers_view
from resource_manager.engine.explain.waiting_reasons import pending_reason
from resource_manager.engine.model.events import (
    ProvisionEnded,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.support.engine_cluster import BE, LSE, LSR, EngineCluster, numa_host

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
NODE_EACH = CpuPolicy(
    QosClass.LSR, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL, exclusive_required=True
)


def elastic_cluster(**more: Any) -> EngineCluster:
    """Returns a cluster whose provider starts hosts of two NUMA nodes with eight cpus each."""
    made = numa_host()
    totals = {name: made.total[name] for name in ("cpu_milli", "memory_bytes")}
    shape = ExecutorShape("big", "test", totals, made.default_profile)
    return EngineCluster.settled(provisioning=Provisioning(shapes=(shape,), **more))


def wait_long(cluster: EngineCluster) -> None:
    """Waits for more than the next check."""
    for _ in range(3):
        cluster.wait(1_000)
        cluster.report_all()
    cluster.check()


def come(cluster: EngineCluster) -> int:
    """Registers all pending executors; returns how many."""
    names = cluster.asked_for()
    for name in names:
        cluster.register(numa_host(name, provided_as="big"))
        cluster.settle()
    return len(names)


def test_executors_are_asked_for_by_amounts_and_then_by_what_the_last_one_was() -> None:
    cluster = elastic_cluster()
    for at in range(6):
        # three fit by amounts, two by nodes
        cluster.submit(f"r{at}", cpu_milli=5_000, policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 2
    assert sum(cluster.is_granted(f"r{at}") for at in range(6)) == 4
    wait_long(cluster)
    assert come(cluster) == 1
    assert all(cluster.is_granted(f"r{at}") for at in range(6))
    for at in range(4):
        cluster.submit(f"s{at}", cpu_milli=5_000, policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 2  # because that is known by now
    assert all(cluster.is_granted(f"s{at}") for at in range(4))


def test_a_shape_whose_nodes_are_too_small_is_not_asked_for_again_and_again() -> None:
    cluster = elastic_cluster(idle_timeout_ms=2_000)
    cluster.submit("wide", cpu_milli=10_000, policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 1
    assert not cluster.is_granted("wide")
    backoff = cluster.state.elastic.backoffs["big"]
    assert "its cpus and NUMA nodes do not suit" in backoff.last_failure
    for _ in range(20):
        wait_long(cluster)
        for name, each in list(cluster.state.provisions.items()):
            if each.state == "STOPPING":
                cluster.batch(ProvisionEnded(cluster.at, name))
                cluster.executors.pop(name, None)
    assert cluster.state.elastic.number == 1
    assert pending_reason(cluster.state, cluster.state.requests["wide"]) == Reason.INFEASIBLE_NEVER
    (why,) = providers_view(cluster.state).unplanned
    assert (
        "the last executor of shape big that registered has unsuitable cpus and NUMA nodes" in why
    )
    assert "place 10 cpus" in why
    (outcome,) = cluster.submit("another", cpu_milli=10_000, policy=ONE_NODE)
    assert outcome.reason == Reason.INFEASIBLE_NEVER
    cluster.submit("narrow", cpu_milli=8_000, policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 1
    assert cluster.is_granted("narrow")


def test_what_the_cluster_is_set_to_counts_for_those_to_come() -> None:
    cluster = elastic_cluster()
    cluster.submit("first", cpu_milli=10_000, policy=LSR)
    wait_long(cluster)
    come(cluster)
    assert cluster.is_granted("first")
    cluster.set_host_policy("", alignment=NumaPolicy.SINGLE_NUMA_NODE)
    (outcome,) = cluster.submit("second", cpu_milli=10_000, policy=LSR)
    assert outcome.reason == Reason.INFEASIBLE_NEVER
    cluster.set_host_policy("", alignment=NumaPolicy.NONE)
    cluster.submit("third", cpu_milli=10_000, policy=LSR)
    wait_long(cluster)
    assert come(cluster) == 1
    assert cluster.is_granted("third")


def test_a_gang_does_not_count_on_hosts_whose_nodes_do_not_suit_its_members() -> None:
    cluster = elastic_cluster()
    cluster.submit("a", cpu_milli=5_000, policy=ONE_NODE)
    cluster.submit("b", cpu_milli=5_000, policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 1  # six cpus are left there, three on each node
    cluster.submit_gang("g", [4_000, 4_000], policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 1
    assert cluster.is_granted("g-0")
    cluster.submit_gang("h", [3_000, 3_000], policy=ONE_NODE)
    wait_long(cluster)
    assert cluster.asked_for() == []
    assert cluster.is_granted("h-0")


def test_a_gang_whose_members_no_node_of_theirs_could_have_is_impossible() -> None:
    cluster = elastic_cluster()
    cluster.submit_gang("g", [8_000, 8_000], policy=ONE_NODE)
    wait_long(cluster)
    assert come(cluster) == 1
    assert cluster.is_granted("g-1")
    (outcome, _) = cluster.submit_gang("h", [9_000, 1_000], policy=ONE_NODE)
    assert outcome.reason == Reason.INFEASIBLE_NEVER


def test_members_that_differ_do_not_count_on_a_host_that_suits_them_one_kind_at_a_time() -> None:
    cluster = elastic_cluster()
    cluster.submit("first", cpu_milli=1_000, policy=BE)
    wait_long(cluster)
    assert come(cluster) == 1
    # each needs a separate node, and the host has two
    cluster.submit_gang("g", [2_000, 2_000, 4_000], policy=NODE_EACH)
    wait_long(cluster)
    assert come(cluster) == 1
    assert all(cluster.is_granted(f"g-{at}") for at in range(3))


def test_executors_are_not_asked_for_that_members_do_not_suit_together() -> None:
    cluster = elastic_cluster(idle_timeout_ms=2_000)
    cluster.submit("first", cpu_milli=1_000, policy=BE)
    wait_long(cluster)
    assert come(cluster) == 1
    members = (2_000, 2_000, 4_000)
    on_one = GangPlacement.SAME_EXECUTOR
    answer = cluster.submit_gang("g", members, on_one, policy=NODE_EACH)
    assert {outcome.reason for outcome in answer} == {Reason.INFEASIBLE_NEVER}
    wait_long(cluster)
    assert cluster.asked_for() == []
    cluster.submit_gang("h", [2_000, 4_000], on_one, policy=NODE_EACH)
    assert cluster.is_granted("h-0")


def test_best_effort_slots_are_planned_on_the_cpus_of_executors_once_more() -> None:
    cluster = elastic_cluster()
    cluster.submit("idle", cpu_milli=12_000, policy=BE)
    cluster.submit("busy", cpu_milli=12_000, policy=LSE)
    wait_long(cluster)
    assert come(cluster) == 1
    assert cluster.is_granted("idle")
    assert cluster.is_granted("busy")
    cluster.release("idle", "busy")
