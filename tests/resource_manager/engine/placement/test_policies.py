"""Tests which host is chosen: preferences first, then what the policy says, then the name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from finegrain.cpu_policy import BindPolicy, CpuPolicy, NumaPolicy, QosClass
from finegrain.resources import GIB
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.placement.policies import HOSTS_PER_EMPTY_ONE
from tests.resource_manager.engine.placement.test_placing import (
    Naive,
    book,
    cluster_of,
    hosts,
    shapes_of,
    wishes,
)
from tests.support.engine_cluster import EngineCluster, host, numa_host
from tests.support.properties import examples

SPREAD = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS)
WHOLE = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS)
ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE)
ON_ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


class TestPack:
    @settings(max_examples=examples(30))
    @given(hosts, wishes)
    def test_an_empty_host_is_taken_only_if_none_in_use_has_room(
        self, described: Any, wished: Any
    ) -> None:
        cluster = cluster_of(described)
        assert len(described) < HOSTS_PER_EMPTY_ONE
        naive = Naive(cluster)
        used: set[str] = set()
        placer = Placer(cluster.state.hosts)
        for shape, count in shapes_of(cluster, wished):
            runs = placer.place(shape, count)
            for name, share in runs:
                if name not in used:
                    assert not any(naive.has_room(other, shape) for other in used)
                    used.add(name)
                for _ in range(share):
                    naive.take(name, shape)
            book(cluster, shape, runs)

    @pytest.mark.parametrize("number", [2, 40, 100])
    def test_a_host_in_use_comes_before_an_empty_one_with_an_earlier_name(
        self, number: int
    ) -> None:
        cluster = EngineCluster.settled(*(host(f"host-{n:02}") for n in range(number)))
        for n in range(number):
            cluster.submit(f"large-{n}", cpu_milli=3_000)
        last = f"host-{number - 1:02}"
        for name in sorted(set(cluster.running()).difference(cluster.running(last))):
            cluster.release(name)
        cluster.submit("small", cpu_milli=1_000)
        assert cluster.hosts_of("small") == [last]

    def test_a_cluster_that_is_hardly_used_empties_out(self) -> None:
        cluster = EngineCluster.settled(*(host(f"host-{n:02}") for n in range(10)))
        cluster.submit(*(f"slot-{n:02}" for n in range(40)), cpu_milli=1_000)
        on_each = [cluster.running(f"host-{n:02}") for n in range(10)]
        cluster.release(*(name for some in on_each[:9] for name in some), on_each[9][0])
        for n in range(3):
            cluster.submit(f"next-{n}", cpu_milli=1_000)
            cluster.release(on_each[9][n + 1])
        assert set(cluster.hosts_of(*(f"next-{n}" for n in range(3)))) == {"host-09"}


@pytest.mark.parametrize("number", [3, 100])
def test_spread_takes_the_host_whose_fullest_dimension_has_most_left(number: int) -> None:
    cluster = EngineCluster.settled(
        *(host(f"host-{n:03}", 16_000, 64 * GIB) for n in range(number)), strategy="spread"
    )
    for n in range(number):
        cluster.submit(f"each-{n}", cpu_milli=4_000, memory_bytes=8 * GIB)
    assert len(set(cluster.hosts_of(*(f"each-{n}" for n in range(number))))) == number
    last = f"host-{number - 1:03}"
    cluster.release(*cluster.running(last))
    cluster.submit("memory", cpu_milli=100, memory_bytes=32 * GIB)
    assert cluster.hosts_of("memory") == [last]
    cluster.submit("cpu", cpu_milli=1_000, memory_bytes=1 * GIB)
    assert cluster.hosts_of("cpu") == ["host-000"]  # of `last`, half of the memory is taken


def test_balanced_keeps_free_cpu_and_memory_in_proportion() -> None:
    cluster = EngineCluster.settled(
        *(host(f"host-{n}", 16_000, 64 * GIB) for n in range(3)), strategy="balanced"
    )
    cluster.submit("cpu", cpu_milli=8_000, memory_bytes=1 * GIB)
    cluster.submit("memory", cpu_milli=500, memory_bytes=40 * GIB)
    assert cluster.hosts_of("cpu", "memory") == ["host-0", "host-0"]
    cluster.submit("more-memory", cpu_milli=500, memory_bytes=24 * GIB)
    assert cluster.hosts_of("more-memory") == ["host-1"]  # now more cpu is free on host-0
    cluster.submit("more-cpu", cpu_milli=4_000, memory_bytes=1 * GIB)
    assert cluster.hosts_of("more-cpu") == ["host-1"]


class TestPreferred:
    @pytest.mark.parametrize("others", [12, pytest.param(1_000, marks=pytest.mark.full)])
    @pytest.mark.parametrize("strategy", ["pack", "spread", "balanced"])
    @pytest.mark.parametrize(
        ("demanded", "policy"),
        [("FullPCPUsOnly", SPREAD), ("SpreadByPCPUs", WHOLE)],
        ids=["threads of several cores", "whole cores"],
    )
    def test_the_only_host_that_does_not_demand_the_opposite_is_found(
        self, demanded: str, policy: CpuPolicy, strategy: Any, others: int
    ) -> None:
        cluster = EngineCluster.settled(
            *(numa_host(f"host-{n:04}", policy={"bind": demanded}) for n in range(others)),
            numa_host("z-plain"),
            strategy=strategy,
        )
        cluster.submit("slot", cpu_milli=2_000, policy=policy)
        assert cluster.hosts_of("slot") == ["z-plain"]
        assert cluster.assignment("slot").notes == ()
        cluster.drain("z-plain")
        cluster.submit("other", cpu_milli=2_000, policy=policy)
        assert "was preferred" in cluster.assignment("other").notes[0]

    @pytest.mark.parametrize("others", [12, pytest.param(1_000, marks=pytest.mark.full)])
    def test_the_only_host_with_a_node_that_is_large_enough_is_found(self, others: int) -> None:
        cluster = EngineCluster.settled(*(numa_host(f"host-{n:04}") for n in range(others)))
        halves = [f"half-{n}" for n in range(2 * others)]
        cluster.submit(*halves, cpu_milli=6_000, policy=ON_ONE_NODE)
        cluster.register(numa_host("z-empty"))
        cluster.submit("slot", cpu_milli=4_000, policy=ONE_NODE)
        assert cluster.hosts_of("slot") == ["z-empty"]
        assert cluster.assignment("slot").notes == ()

    def test_a_host_that_meets_one_of_two_comes_before_one_that_meets_none(self) -> None:
        cluster = EngineCluster.settled(
            *(numa_host(f"host-{n:02}", policy={"bind": "FullPCPUsOnly"}) for n in range(12))
        )
        cluster.submit(*(f"half-{n}" for n in range(24)), cpu_milli=6_000, policy=ON_ONE_NODE)
        cluster.register(numa_host("y-whole-cores", policy={"bind": "FullPCPUsOnly"}))
        both = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, numa=NumaPolicy.SINGLE_NUMA_NODE)
        cluster.submit("slot", cpu_milli=4_000, policy=both)
        assert cluster.hosts_of("slot") == ["y-whole-cores"]
        assert len(cluster.assignment("slot").notes) == 1

    def test_a_preference_without_effect_is_not_searched_for(self) -> None:
        policy = CpuPolicy(QosClass.LS, BindPolicy.FULL_PCPUS, numa=NumaPolicy.SINGLE_NUMA_NODE)
        cluster = EngineCluster.settled(*(numa_host(f"host-{n}") for n in range(3)))
        cluster.submit("slot", cpu_milli=2_000, policy=policy)
        assert cluster.hosts_of("slot") == ["host-0"]
        assert len(cluster.assignment("slot").notes) == 1
