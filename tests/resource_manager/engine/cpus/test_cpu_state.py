"""Tests of cpus that go offline or that a kubelet takes: the capacity changes, and an event names
the slots.
"""

from __future__ import annotations

import json

from finegrain.cpu_policy import CpuPolicy, NumaPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB, MIB
from resource_manager.engine.model.entities import NO_CPU_STATE
from tests.resource_manager.engine.infeasible import AFTER_MS, rejected_after
from tests.support.engine_cluster import LSR, NODE_MEMORY_BYTES, EngineCluster, numa_host


def test_cpus_that_do_not_run_are_nobodys_capacity() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.report_cpus("host-a", offline_cpus="3,11")
    assert cluster.free_cpu() == 14_000
    cluster.submit("waits", cpu_milli=15_000, allow_pending=True)
    assert cluster.state_of("waits") == "PENDING"
    cluster.report_cpus("host-a", offline_cpus="3")
    cluster.settle()
    assert cluster.state_of("waits") == "GRANTED"
    cluster.report_cpus("host-a")
    assert cluster.free_cpu() == 1_000


def test_isolated_cpus_let_nobody_book_more_than_the_pool_has() -> None:
    executor = numa_host()
    executor.host_cpus = json.dumps(json.loads(executor.host_cpus) | {"isolated_cpus": "6-7"})
    cluster = EngineCluster.settled(executor)
    assert cluster.state.hosts["host-a"].total["best_effort_cpu_milli"] == 14_000
    cluster.submit("pinned", cpu_milli=2_000, policy=CpuPolicy(QosClass.LSR))
    assert cluster.cpus("pinned") == "6-7"  # no other slot can use them
    assert cluster.free_cpu() == 12_000
    cluster.check()


def test_slots_that_are_there_stay_when_capacity_goes() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("all", cpu_milli=16_000)
    cluster.report_cpus("host-a", kubelet_cpus="0-7")
    books = cluster.state.hosts["host-a"]
    assert books.shrunk
    assert cluster.free_cpu() == 0
    assert books.total["best_effort_cpu_milli"] == 8_000
    assert cluster.state_of("all") == "GRANTED"


def test_what_was_seen_before_a_restart_is_known_again_with_the_first_report() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.report_cpus("host-a", offline_cpus="3,11")
    cluster.restart_rm()
    books = cluster.state.hosts["host-a"]
    assert books.executor.cpu_state == NO_CPU_STATE
    assert not books.eligible
    cluster.register(cluster.executors["host-a"])
    assert cluster.free_cpu() == 14_000
    cluster.check()


def test_a_report_that_says_nothing_leaves_it_as_it_was_and_a_full_one_does_not() -> None:
    executor = numa_host()
    cluster = EngineCluster.settled(executor)
    cluster.report_cpus("host-a", offline_cpus="3")
    cluster.report(executor)
    cluster.short_report(executor)
    assert cluster.free_cpu() == 15_000
    executor.cpu_state = NO_CPU_STATE
    cluster.report(executor)
    assert cluster.free_cpu() == 16_000


def test_offline_cpus_that_slots_never_could_have_change_nothing() -> None:
    cluster = EngineCluster.settled(numa_host())
    version = cluster.state.hosts.version
    cluster.report_cpus("host-a", offline_cpus="64-127")
    assert cluster.free_cpu() == 16_000
    assert cluster.state.hosts.version == version
    assert cluster.state.hosts["host-a"].present.taken == CpuSet()


def test_memory_that_a_kubelet_gave_away_is_not_there_for_slots_bound_to_its_node() -> None:
    one_node = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
    cluster = EngineCluster.settled(numa_host(policy={"numa_strategy": "MostAllocated"}))
    cluster.report_cpus("host-a", kubelet_memory=((0, NODE_MEMORY_BYTES - GIB),))
    cluster.submit("large", cpu_milli=1_000, policy=one_node, memory_bytes=2 * 1_024 * MIB)
    assert cluster.assignment("large").nodes == (1,)
    cluster.submit(
        "second",
        cpu_milli=1_000,
        policy=one_node,
        memory_bytes=15 * 1_024 * MIB,
        allow_pending=True,
    )
    assert cluster.state_of("second") == "PENDING"
    cluster.report_cpus("host-a")
    cluster.settle()
    assert cluster.assignment("second").nodes == (0,)


def test_slots_whose_own_cpus_vanish_are_named_and_stay() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=2_000, policy=LSR)
    cluster.submit("plain", cpu_milli=1_000)
    cpus = cluster.assignment("pinned").cpus
    cluster.report_cpus("host-a", offline_cpus=cpus.first(1))
    (amount_text,) = cluster.history("cpus_lost")
    assert amount_text.startswith(f"dedicated cpus {cpus.first(1)} of the slot are offline")
    assert cluster.state.hosts["host-a"].lost_cpus == {("pinned", 1): cpus.first(1)}
    assert cluster.state_of("pinned") == "GRANTED"
    cluster.report_cpus("host-a", offline_cpus=cpus.first(1))
    assert len(cluster.history("cpus_lost")) == 1  # the event is published once only
    cluster.report_cpus("host-a", kubelet_cpus=cpus)
    assert len(cluster.history("cpus_lost")) == 2
    cluster.report_cpus("host-a")
    assert len(cluster.history("cpus_returned")) == 1
    assert cluster.state.hosts["host-a"].lost_cpus == {}
    cluster.executors["host-a"].host_cpus = '{"slot_cpus":"0-6"}'
    cluster.register(cluster.executors["host-a"])
    assert len(cluster.history("cpus_lost")) == 2 + bool(cpus - CpuSet.parse("0-6"))


def test_what_a_slot_lost_is_in_nobodys_books_when_it_is_gone() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=2_000, policy=LSR)
    cluster.report_cpus("host-a", offline_cpus=cluster.assignment("pinned").cpus.first(1))
    cluster.release("pinned")
    assert cluster.state.hosts["host-a"].lost_cpus == {}
    assert cluster.free_cpu() == 15_000


def test_what_a_host_refused_is_asked_for_again_when_its_cpus_are_others() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.executors["host-a"].broken.add("pinned")
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR, allow_pending=True)
    assert cluster.state_of("pinned") == "PENDING"
    cluster.executors["host-a"].broken.clear()
    cluster.report_cpus("host-a", offline_cpus="0")  # it did not report this at the refusal
    cluster.settle()
    assert cluster.state_of("pinned") == "GRANTED"
    assert 0 not in cluster.assignment("pinned").cpus


def test_what_executors_see_of_their_cpus_restarts_the_clock_of_late_rejection() -> None:
    cluster = EngineCluster.settled(lost_timeout_ms=10**9)
    cluster.submit("early", cpu_milli=64_000)
    executor = numa_host()
    cluster.register(executor)
    cluster.wait(AFTER_MS - 1)
    cluster.report_cpus("host-a", offline_cpus="3")
    assert rejected_after(cluster, AFTER_MS)
