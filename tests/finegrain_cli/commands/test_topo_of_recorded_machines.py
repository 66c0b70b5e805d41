"""Every recorded machine is drawn completely, with slots on it, as an RM reports it."""

from __future__ import annotations

import json

import pytest

from finegrain.cpuset import CpuSet, union
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.topology import HostTopology
from finegrain.v1 import cluster_pb2
from finegrain_cli.text.cpu_map import LABEL, LETTERS, WIDTH, Marks, drawing, legend
from finegrain_client.decoding_hosts import read
from finegrain_client.types.topology import TopologyReport
from resource_manager.engine.explain.topology import topology_view
from resource_manager.service.wire.encoding import write
from tests.support.cpu_layouts import RECORDED, as_reported, recorded
from tests.support.engine_cluster import BE, LSE, LSR, PLAIN, EngineCluster, FakeExecutor


def executor(topology: HostTopology) -> FakeExecutor:
    """The executor offers all resources of its machine."""
    cpus = 1_000 * len(topology.allowed)
    announced = {
        "slot_cpus": str(topology.allowed),
        "numa": [
            {
                "numa_node_id": node.id,
                "memory_bytes": node.memory_bytes or 0,
                "default_memory": True,
            }
            for node in topology.numa_nodes
        ],
    }
    return FakeExecutor(
        "host-a",
        {"cpu_milli": cpus, "best_effort_cpu_milli": cpus, "memory_bytes": 64 * GIB},
        ResourceProfile(1_000, 256 * MIB),
        topology=as_reported(topology),
        host_cpus=json.dumps(announced),
    )


def reported(topology: HostTopology) -> TopologyReport:
    """With slots of every class, as far as there is room."""
    cluster = EngineCluster.settled(executor(topology))
    for name, cpus, policy in (("lse", 3, LSE), ("lsr", 2, LSR), ("ls", 1, PLAIN), ("be", 1, BE)):
        cluster.submit(name, cpu_milli=cpus * 1_000, policy=policy, allow_pending=True)
    return read(
        TopologyReport,
        write(cluster_pb2.GetTopologyResponse, topology_view(cluster.state, "host-a")),
    )


@pytest.mark.parametrize("name", RECORDED)
def test_every_thread_is_there_once(name: str) -> None:
    topology = recorded(name)
    report = reported(topology)
    marks = Marks.of(report)
    lines = drawing(report, marks) + legend(report, marks)
    drawn = "".join(
        line[LABEL:].replace(" ", "")
        for line in drawing(report, marks)
        if line[:LABEL].strip().isdigit()
    )
    own = union(CpuSet.parse(slot.cpus) for slot in report.slots)
    shared = union(CpuSet.parse(pool.shared_cpus) for pool in report.pools)
    assert len(drawn) == len(report.cpus) == len(topology.online)
    assert sum(drawn.count(letter) for letter in LETTERS) == len(own)
    assert drawn.count("s") == len(shared)
    assert drawn.count(".") == len(topology.online - topology.allowed)
    assert own | shared == topology.allowed
    assert max(map(len, lines)) <= WIDTH
    assert {zone.node for zone in report.zones} >= {each.node for each in report.cpus} - {-1}
