"""Tests of aligning hosts, which align every slot, even without a cpu policy."""

from __future__ import annotations

from finegrain.cpu_policy import HostPolicy, NumaPolicy
from tests.support.engine_cluster import EngineCluster, numa_host


def aligned() -> EngineCluster:
    cluster = EngineCluster.settled(numa_host())  # eight cpus on each of two nodes
    policy = HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE)
    cluster.set_host_policy("host-a", policy=policy)
    return cluster


def test_equal_requests_that_come_one_by_one_are_placed_while_there_is_room() -> None:
    cluster = aligned()
    for name in ("first", "second", "third"):
        cluster.submit(name, cpu_milli=6_000)
    assert [cluster.where(name) for name in ("first", "second", "third")] == [
        "host-a",
        "host-a",
        "",
    ]
    assert {cluster.assignment("first").nodes, cluster.assignment("second").nodes} == {(0,), (1,)}


def test_who_waits_is_placed_as_soon_as_a_node_has_room() -> None:
    cluster = aligned()
    for name in ("first", "second", "third"):
        cluster.submit(name, cpu_milli=6_000)
    (node,) = cluster.assignment("second").nodes
    cluster.release("second")
    assert cluster.assignment("third").nodes == (node,)


def test_plain_requests_are_spread_over_such_hosts_too() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"), strategy="spread")
    for name in ("host-a", "host-b"):
        cluster.set_host_policy(name, alignment=NumaPolicy.SINGLE_NUMA_NODE)
    names = ("first", "second", "third", "fourth")
    for name in names:
        cluster.submit(name, cpu_milli=2_000)
    assert cluster.hosts_of(*names) == ["host-a", "host-b", "host-a", "host-b"]
