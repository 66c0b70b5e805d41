"""Tests that the RM's report about an executor's cpus becomes plain values."""

from __future__ import annotations

import json

from finegrain.v1 import cluster_pb2, cpus_pb2, resources_pb2
from finegrain.values.usage import Zone
from finegrain_client.decoding_hosts import read
from finegrain_client.types.topology import AnnouncedCpus, Cpu, NodeCapacity, TopologyReport

TOPOLOGY = resources_pb2.HostTopology(
    online_cpus="0-5",
    cores=[
        resources_pb2.Core(cpus="2,5", package_index=1, numa_node_id=1, kind="atom"),
        resources_pb2.Core(cpus="0,3", package_index=0, numa_node_id=0, kind="core"),
        resources_pb2.Core(cpus="1,4", package_index=0, numa_node_id=-1, kind="core"),
    ],
)
KUBELET = cpus_pb2.KubeletReport(
    cpu_manager_policy="static",
    cpu_manager_options={"full-pcpus-only": "true"},
    topology_manager_policy="restricted",
    topology_manager_scope="pod",
    memory_manager_policy="Static",
    reserved_cpus="0",
    containers=[
        cpus_pb2.KubeletContainer(pod_uid="p", container="c", cpus="4", memory_bytes={1: 1 << 30})
    ],
)
ANSWER = cluster_pb2.GetTopologyResponse(
    executor_id="host-a",
    topology=TOPOLOGY,
    host_cpus=cpus_pb2.HostCpus(
        slot_cpus="0-5",
        isolated_cpus="5",
        numa=[cpus_pb2.NumaCapacity(numa_node_id=1, memory_bytes=7, extended={"hugepages-2Mi": 3})],
    ),
    cpu_state=cpus_pb2.CpuState(offline_cpus="3", notes=["strange"], kubelet=KUBELET),
    policy=cpus_pb2.EffectiveHostPolicy(
        policy=cpus_pb2.HostPolicy(
            bind=cpus_pb2.HOST_BIND_POLICY_FULL_PCPUS_ONLY,
            numa_strategy=cpus_pb2.NUMA_STRATEGY_DISTRIBUTE_EVENLY,
            alignment=cpus_pb2.NUMA_POLICY_SINGLE_NUMA_NODE,
            reserved_cpus="0-1",
            default_bind=cpus_pb2.BIND_POLICY_SPREAD_BY_PCPUS,
            default_exclusive=cpus_pb2.EXCLUSIVE_POLICY_PCPU_LEVEL,
        ),
        origins={"bind": "kubelet"},
        strictly_reserved_cpus="1",
    ),
    zones=[
        cluster_pb2.ZoneStatus(
            numa_node_id=1,
            total=resources_pb2.ResourceAmounts(cpu_milli=2000, extended={"hugepages-2Mi": 3}),
            available=resources_pb2.ResourceAmounts(cpu_milli=500),
        )
    ],
    pools=[
        cluster_pb2.PoolStatus(
            pool=cpus_pb2.PoolName(package_index=1, numa_node_id=1),
            shared_cpus="2",
            best_effort_cpus="2,5",
        )
    ],
    lost_cpus=[cluster_pb2.LostCpus(allocation_id="a", generation=2, cpus="3")],
)


def test_every_thread_has_its_core_node_and_package() -> None:
    assert read(TopologyReport, ANSWER).cpus == (
        Cpu(0, 0, 0, 0, "core"),
        Cpu(1, 1, -1, 0, "core"),
        Cpu(2, 2, 1, 1, "atom"),
        Cpu(3, 0, 0, 0, "core"),
        Cpu(4, 1, -1, 0, "core"),
        Cpu(5, 2, 1, 1, "atom"),
    )


def test_the_rest_keeps_the_words_of_the_vocabulary() -> None:
    report = read(TopologyReport, ANSWER)
    pages = {"hugepages-2Mi": 3}
    assert report.announced == AnnouncedCpus(
        "0-5", "", "5", (NodeCapacity(1, 7, pages, default_memory=False),)
    )
    assert report.zones == (
        Zone(1, {"cpu_milli": 2000, "extended.hugepages-2Mi": 3}, {}, {"cpu_milli": 500}),
    )
    data = json.loads(json.dumps(report.to_dict()))
    assert data["settings"] == {
        "bind": "FullPCPUsOnly",
        "numa_strategy": "DistributeEvenly",
        "alignment": "SingleNUMANode",
        "reserved_cpus": "0-1",
        "strictly_reserved_cpus": "1",
        "default_bind": "SpreadByPCPUs",
        "default_exclusive": "PCPULevel",
        "origins": {"bind": "kubelet"},
    }
    assert data["pools"] == [
        {"package": 1, "node": 1, "shared_cpus": "2", "best_effort_cpus": "2,5"}
    ]
    assert data["lost_cpus"] == [{"allocation_id": "a", "generation": 2, "cpus": "3"}]
    kubelet = data["now"].pop("kubelet")
    assert data["now"] == {
        "offline_cpus": "3",
        "squeezed_cpus": "",
        "host_policy_number": 0,
        "notes": ["strange"],
    }
    assert kubelet["cpu_manager_options"] == {"full-pcpus-only": "true"}
    assert kubelet["containers"] == [
        {"pod_uid": "p", "container": "c", "cpus": "4", "memory_bytes": {"1": 1 << 30}}
    ]


def test_an_executor_that_tells_nothing() -> None:
    report = read(TopologyReport, cluster_pb2.GetTopologyResponse(executor_id="old"))
    assert report.announced is None
    assert report.now is None
    assert report.cpus == ()
    assert report.settings.bind == ""
