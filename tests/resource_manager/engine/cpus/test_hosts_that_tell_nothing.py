"""Tests of executors that report no cpu topology, such as older versions.

They serve requests that require nothing of single cpus or NUMA nodes, and note what was preferred.
"""

from __future__ import annotations

import pytest

from finegrain.cpu_policy import BindPolicy, CpuPolicy, ExclusivePolicy, NumaPolicy
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from tests.support.engine_cluster import LSR, EngineCluster, host, numa_host

UNKNOWN = "the host does not report its cores and NUMA nodes"
BURST = BindPolicy.CONSTRAINED_BURST
ONE_NODE = NumaPolicy.SINGLE_NUMA_NODE


@pytest.mark.parametrize(
    ("policy", "note"),
    [
        (CpuPolicy(numa=ONE_NODE), f"NUMA policy SingleNUMANode was preferred: {UNKNOWN}"),
        (
            CpuPolicy(numa=NumaPolicy.BEST_EFFORT),
            f"NUMA policy BestEffort was preferred: {UNKNOWN}",
        ),
        (CpuPolicy(bind=BURST), f"ConstrainedBurst was preferred: {UNKNOWN}"),
        (
            CpuPolicy(exclusive=ExclusivePolicy.PCPU_LEVEL),
            "PCPULevel was preferred: LS slots have no dedicated cpus",
        ),
    ],
)
def test_what_is_only_preferred_never_refuses(policy: CpuPolicy, note: str) -> None:
    cluster = EngineCluster.settled(host("host-a", cpu_milli=16_000))
    cluster.submit("alone", cpu_milli=1_000, policy=policy, cpu_limit_milli=2_000)
    assert cluster.where("alone") == "host-a"
    given = cluster.assignment("alone")
    assert given.notes == (note,)
    assert given.numa == ()


@pytest.mark.parametrize(
    "policy",
    [LSR, CpuPolicy(numa=ONE_NODE, numa_required=True), CpuPolicy(bind=BURST, bind_required=True)],
)
def test_what_is_required_is_refused_and_says_why(policy: CpuPolicy) -> None:
    cluster = EngineCluster.settled(host("host-a", cpu_milli=16_000))
    [answer] = cluster.submit("alone", cpu_milli=1_000, policy=policy)
    assert UNKNOWN in answer.message


def test_hosts_that_tell_go_first() -> None:
    cluster = EngineCluster.settled(host("host-a", cpu_milli=16_000), numa_host("host-b"))
    for number in range(3):
        cluster.submit(f"bound-{number}", cpu_milli=8_000, policy=CpuPolicy(numa=ONE_NODE))
    assert cluster.hosts_of("bound-0", "bound-1", "bound-2") == ["host-b", "host-b", "host-a"]


def test_gangs_may_prefer_as_well() -> None:
    cluster = EngineCluster.settled(host("host-a", cpu_milli=4_000))
    policy = CpuPolicy(numa=ONE_NODE)
    cluster.submit_gang("gang", [2_000] * 2, GangPlacement.SAME_EXECUTOR, policy=policy)
    assert cluster.hosts_of("gang-0", "gang-1") == ["host-a", "host-a"]


def test_default_slots_prefer_as_well() -> None:
    cluster = EngineCluster.settled(host("host-a", cpu_milli=4_000))
    cluster.submit("one", profile=None, policy=CpuPolicy(numa=ONE_NODE))
    assert cluster.where("one") == "host-a"


def test_of_hosts_that_are_alike_one_may_have_smaller_default_slots() -> None:
    """The default slot of one host is larger than its nodes; the default slot of an equal host is
    not.
    """
    large, small = numa_host("host-a"), numa_host("host-b")
    large.default_profile = ResourceProfile(12_000, 256 * MIB)
    cluster = EngineCluster.settled(large, small)
    cluster.submit("one", profile=None, policy=CpuPolicy(numa=ONE_NODE, numa_required=True))
    assert cluster.where("one") == "host-b"
