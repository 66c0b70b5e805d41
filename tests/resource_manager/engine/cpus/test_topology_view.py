"""Tests of the topology view of an executor: pools, zones, settings, and lost cpus."""

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
from finegrain.devices.names import device_requests
from finegrain.errors import NotFound
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.v1 import cluster_pb2, slots_pb2
from resource_manager.engine.explain.lists import executor_view
from resource_manager.engine.explain.topology import topology_view
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import HostPolicySet
from resource_manager.service.wire.encoding import executor_status, write
from tests.support.devices import gpu_host
from tests.support.engine_cluster import BE, LSE, NODE_MEMORY_BYTES, EngineCluster, numa_host

SPREAD = CpuPolicy(QosClass.LSR, bind=BindPolicy.SPREAD_BY_PCPUS)
ALIGNED = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def test_pools_are_what_nobody_has_to_himself() -> None:
    cluster = EngineCluster.settled(numa_host())  # node 0: cpus 0-3 and 8-11, node 1: 4-7 and 12-15
    cluster.submit("exclusive", cpu_milli=2_000, policy=LSE)
    cluster.submit("shared", cpu_milli=2_000, policy=SPREAD)
    cluster.submit("plain", cpu_milli=500)
    view = topology_view(cluster.state, "host-a")
    exclusive, shared = cluster.assignment("exclusive").cpus, cluster.assignment("shared").cpus
    pools = {pool.name: pool for pool in view.pools.members}
    assert list(pools) == [PoolName(0, 0), PoolName(1, 1)]
    assert view.pools.shared | exclusive | shared == view.pools.best_effort | exclusive
    assert view.pools.shared.isdisjoint(exclusive | shared)
    assert shared <= view.pools.best_effort
    assert len(view.pools.shared) == 12
    assert [each.slot.allocation_id for each in view.slots] == ["exclusive", "plain", "shared"]


def test_zones_tell_what_another_bound_slot_could_have() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=2_000, policy=LSE)
    cluster.submit("bound", cpu_milli=1_500, policy=ALIGNED, memory_bytes=1 * GIB)
    cluster.submit("unbound", cpu_milli=3_000, memory_bytes=2 * GIB)
    zones = topology_view(cluster.state, "host-a").zones
    pinned_node = 0 if "0" in cluster.cpus("pinned").split(",")[0] else 1
    (bound_node,) = cluster.assignment("bound").nodes
    assert [zone.node for zone in zones] == [0, 1]
    for zone in zones:
        own = 2_000 * (zone.node == pinned_node)
        lent = 1_500 * (zone.node == bound_node)
        memory = 1_024 * MIB * (zone.node == bound_node)
        assert zone.total["cpu_milli"] == 8_000
        assert zone.total["memory_bytes"] == NODE_MEMORY_BYTES
        assert zone.allocated.get("cpu_milli", 0) == own + lent
        assert zone.available["cpu_milli"] == 8_000 - own - lent
        assert zone.allocated.get("memory_bytes", 0) == memory
        assert zone.available["memory_bytes"] == NODE_MEMORY_BYTES - memory
        assert zone.capacity == {"cpu_milli": 8_000, "memory_bytes": NODE_MEMORY_BYTES}


def test_zones_count_the_devices_on_their_node() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=4))
    profile = ResourceProfile(1_000, 64 * MIB, devices=device_requests({"gpu": 100}))
    cluster.submit(RequestSpec("r1", profile))
    (share,) = cluster.assignment("r1").devices
    ledger = cluster.cpu_ledger().devices
    broken = next(
        each
        for each in ledger.layout.devices
        if each.uuid != share.uuid and each.numa_node is not None
    )
    ledger.set_unusable({(broken.type, broken.uuid): "it is broken"})
    zones = topology_view(cluster.state, "host-a").zones
    placed = [each for each in ledger.layout.devices if each.numa_node is not None]
    core = "device.gpu-core"
    for zone in zones:
        here = [each for each in placed if each.numa_node == zone.node]
        lost = 100 * (broken in here)
        used = 100 * any(each.uuid == share.uuid for each in here)
        assert zone.capacity.get(core, 0) == 100 * len(here)
        assert zone.total.get(core, 0) == 100 * len(here) - lost
        assert zone.allocated.get(core, 0) == used
        assert zone.available.get(core, 0) == 100 * len(here) - lost - used
    assert sum(zone.capacity.get(core, 0) for zone in zones) == 400


def test_what_is_reserved_isolated_offline_or_a_kubelets_is_taken_out() -> None:
    executor = numa_host(policy={"reserved_cpus": "0,8"})
    announced = json.loads(executor.host_cpus)
    announced |= {"isolated_cpus": "7", "slot_cpus": "0-14", "reserved_cpus": "15"}
    executor.host_cpus = json.dumps(announced)
    cluster = EngineCluster.settled(executor)
    cluster.batch(
        HostPolicySet(cluster.at, "host-a", HostPolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY))
    )
    cluster.report_cpus("host-a", offline_cpus="3", kubelet_cpus="4")
    view = topology_view(cluster.state, "host-a")
    assert str(view.pools.shared) == "0-2,5-6,8-14"  # 0 and 8 are reserved, and in the pool
    assert view.policy.bind is HostBindPolicy.FULL_PCPUS_ONLY
    assert view.policy.origin("bind") is PolicyOrigin.OPERATOR
    assert view.policy.origin("reserved_cpus") is PolicyOrigin.CONFIGURATION


def test_what_is_listed_as_its_total_is_what_can_be_booked_there() -> None:
    cluster = EngineCluster.settled(numa_host())
    reserved = HostPolicy(reserved_cpus=CpuSet.parse("0,8"))
    cluster.batch(HostPolicySet(cluster.at, "host-a", reserved))
    cluster.submit("pinned", cpu_milli=2_000, policy=LSE)
    cluster.report_cpus("host-a", offline_cpus="3")
    status = executor_status(executor_view(cluster.state, "host-a"), slots_pb2.UsageReport())
    assert status.total.cpu_milli == 13_000
    assert status.allocated.cpu_milli + status.available.cpu_milli == 13_000


def test_slots_whose_cpus_are_gone_are_named() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=8_000, policy=LSE)
    had = cluster.assignment("pinned").cpus
    gone = min(had)
    cluster.report_cpus("host-a", offline_cpus=str(gone))
    view = topology_view(cluster.state, "host-a")
    assert [(name, generation, str(cpus)) for name, generation, cpus in view.lost_cpus] == [
        ("pinned", 1, str(gone))
    ]
    assert view.pools.cpus_of(cluster.assignment("pinned")) == had - CpuSet.of(gone)


def test_the_message_says_the_same() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("exclusive", cpu_milli=2_000, policy=LSE)
    cluster.submit("besteffort", cpu_milli=2_000, policy=BE)
    cluster.report_cpus("host-a", offline_cpus="15")
    message = write(cluster_pb2.GetTopologyResponse, topology_view(cluster.state, "host-a"))
    assert message.host_cpus.slot_cpus == "0-15"
    assert message.cpu_state.offline_cpus == "15"
    assert message.policy.origins["bind"] == "built-in"
    assert len(message.topology.cores) == 8
    assert [zone.numa_node_id for zone in message.zones] == [0, 1]
    own = cluster.cpus("exclusive")
    slots = {each.allocation_id: each for each in message.slots}
    assert slots["exclusive"].assignment.cpus == own
    assert slots["exclusive"].executor_id == "host-a"
    best_effort = [CpuSet.parse(each.best_effort_cpus) for each in message.pools]
    assert union(best_effort) == CpuSet.parse("0-14") - CpuSet.parse(own)
    assert not message.lost_cpus


def test_an_executor_that_says_nothing_of_its_cpus() -> None:
    executor = numa_host()
    executor.host_cpus, executor.topology = "{}", "{}"
    cluster = EngineCluster.settled(executor)
    message = write(cluster_pb2.GetTopologyResponse, topology_view(cluster.state, "host-a"))
    assert not message.HasField("host_cpus")
    assert not message.HasField("cpu_state")
    assert not message.zones
    assert not message.pools
    with pytest.raises(NotFound):
        topology_view(cluster.state, "nobody")
