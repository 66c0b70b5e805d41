"""What is told of an executor's cpus: pools, zones, settings, and whose cpus are gone."""

from __future__ import annotations

import json

import pytest

from finegrain.cpu_assignment import PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    PolicyOrigin,
    QosClass,
)
from finegrain.cpuset import CpuSet, union
from finegrain.errors import NotFound
from finegrain.resources import MIB
from resource_manager.engine.explain.lists import executor_view
from resource_manager.engine.explain.topology import topology_view
from resource_manager.engine.model.events import HostPolicySet
from resource_manager.service.wire.encoding import executor_status
from resource_manager.service.wire.topology import topology_response
from tests.support.cpu_hosts import BE, LSE, NODE_MEMORY, PLAIN, CpuStory, host

SPREAD = CpuPolicy(QosClass.LSR, bind=BindPolicy.SPREAD_BY_PCPUS)
ALIGNED = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def test_pools_are_what_nobody_has_to_himself() -> None:
    story = CpuStory(host())  # node 0: cpus 0-3 and 8-11, node 1: 4-7 and 12-15
    story.ask("exclusive", 2_000, LSE)
    story.ask("shared", 2_000, SPREAD)
    story.ask("plain", 500, PLAIN)
    view = topology_view(story.state, "host-a")
    exclusive, shared = story.has("exclusive").cpus, story.has("shared").cpus
    pools = {pool.name: pool for pool in view.pools.members}
    assert list(pools) == [PoolName(0, 0), PoolName(1, 1)]
    assert view.pools.shared | exclusive | shared == view.pools.best_effort | exclusive
    assert view.pools.shared.isdisjoint(exclusive | shared)
    assert shared <= view.pools.best_effort
    assert len(view.pools.shared) == 12
    assert [each.slot.allocation_id for each in view.slots] == ["exclusive", "plain", "shared"]


def test_zones_tell_what_another_bound_slot_could_have() -> None:
    story = CpuStory(host())
    story.ask("pinned", 2_000, LSE)
    story.ask("bound", 1_500, ALIGNED, mib=1_024)
    story.ask("unbound", 3_000, PLAIN, mib=2_048)
    zones = topology_view(story.state, "host-a").zones
    pinned_node = 0 if "0" in story.cpus("pinned").split(",")[0] else 1
    (bound_node,) = story.has("bound").nodes
    assert [zone.node for zone in zones] == [0, 1]
    for zone in zones:
        own = 2_000 * (zone.node == pinned_node)
        lent = 1_500 * (zone.node == bound_node)
        memory = 1_024 * MIB * (zone.node == bound_node)
        assert zone.total["cpu_milli"] == 8_000
        assert zone.total["memory_bytes"] == NODE_MEMORY
        assert zone.allocated.get("cpu_milli", 0) == own + lent
        assert zone.available["cpu_milli"] == 8_000 - own - lent
        assert zone.allocated.get("memory_bytes", 0) == memory
        assert zone.available["memory_bytes"] == NODE_MEMORY - memory


def test_what_is_reserved_isolated_offline_or_a_kubelets_is_taken_out() -> None:
    executor = host(policy={"reserved_cpus": "0,8"})
    announced = json.loads(executor.host_cpus)
    announced |= {"isolated_cpus": "7", "slot_cpus": "0-14", "reserved_cpus": "15"}
    executor.host_cpus = json.dumps(announced)
    story = CpuStory(executor)
    story.cluster.batch(
        HostPolicySet(story.cluster.at, "host-a", HostPolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY))
    )
    story.see("host-a", offline_cpus="3", kubelet_cpus="4")
    view = topology_view(story.state, "host-a")
    assert str(view.pools.shared) == "0-2,5-6,8-14"  # 0 and 8 are reserved, and in the pool
    assert view.policy.bind is HostBindPolicy.FULL_PCPUS_ONLY
    assert view.policy.origin("bind") is PolicyOrigin.OPERATOR
    assert view.policy.origin("reserved_cpus") is PolicyOrigin.CONFIGURATION


def test_what_is_listed_as_its_total_is_what_can_be_booked_there() -> None:
    story = CpuStory(host())
    reserved = HostPolicy(reserved_cpus=CpuSet.parse("0,8"))
    story.cluster.batch(HostPolicySet(story.cluster.at, "host-a", reserved))
    story.ask("pinned", 2_000, LSE)
    story.see("host-a", offline_cpus="3")
    status = executor_status(executor_view(story.state, "host-a"))
    assert status.total.cpu_milli == 13_000
    assert status.allocated.cpu_milli + status.available.cpu_milli == 13_000


def test_slots_whose_cpus_are_gone_are_named() -> None:
    story = CpuStory(host())
    story.ask("pinned", 8_000, LSE)
    had = story.has("pinned").cpus
    gone = min(had)
    story.see("host-a", offline_cpus=str(gone))
    view = topology_view(story.state, "host-a")
    assert [(name, generation, str(cpus)) for name, generation, cpus in view.lost_cpus] == [
        ("pinned", 1, str(gone))
    ]
    assert view.pools.cpus_of(story.has("pinned")) == had - CpuSet.of(gone)


def test_the_message_says_the_same() -> None:
    story = CpuStory(host())
    story.ask("exclusive", 2_000, LSE)
    story.ask("besteffort", 2_000, BE)
    story.see("host-a", offline_cpus="15")
    message = topology_response(topology_view(story.state, "host-a"))
    assert message.host_cpus.slot_cpus == "0-15"
    assert message.cpu_state.offline_cpus == "15"
    assert message.policy.origins["bind"] == "built-in"
    assert len(message.topology.cores) == 8
    assert [zone.numa_node_id for zone in message.zones] == [0, 1]
    own = story.cpus("exclusive")
    slots = {each.allocation_id: each for each in message.slots}
    assert slots["exclusive"].assignment.cpus == own
    assert slots["exclusive"].executor_id == "host-a"
    best_effort = [CpuSet.parse(each.best_effort_cpus) for each in message.pools]
    assert union(best_effort) == CpuSet.parse("0-14") - CpuSet.parse(own)
    assert not message.lost_cpus


def test_an_executor_that_says_nothing_of_its_cpus() -> None:
    executor = host()
    executor.host_cpus, executor.topology = "{}", "{}"
    story = CpuStory(executor)
    message = topology_response(topology_view(story.state, "host-a"))
    assert not message.HasField("host_cpus")
    assert not message.HasField("cpu_state")
    assert not message.zones
    assert not message.pools
    with pytest.raises(NotFound):
        topology_view(story.state, "nobody")
