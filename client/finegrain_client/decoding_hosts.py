"""Converts messages about the cpus, NUMA nodes and settings of one host into the values of
`types/topology.py` and `types/host_policy.py`.
"""

from __future__ import annotations

from functools import partial

from finegrain.cpuset import CpuSet
from finegrain.rpc.mapping.reader import FromMessage, Reading, Via
from finegrain.rpc.wire_cpus import host_policy_from_proto
from finegrain.v1 import cluster_pb2, cpus_pb2
from finegrain.values.usage import Zone
from finegrain_client import decoding
from finegrain_client.decoding import known, plain
from finegrain_client.types.host_policy import HostPolicyStatus
from finegrain_client.types.topology import (
    AnnouncedCpus,
    Cpu,
    HostSettings,
    Kubelet,
    NodeCapacity,
    Pool,
    TopologyReport,
)

NODE = {"node": "numa_node_id"}


def _settings(message: cpus_pb2.EffectiveHostPolicy) -> HostSettings:
    policy = known(host_policy_from_proto, message.policy, "policy")
    words = ("bind", "numa_strategy", "alignment", "default_bind", "default_exclusive")
    return HostSettings(
        **{name: str(getattr(policy, name) or "") for name in words},
        reserved_cpus=message.policy.reserved_cpus,
        strictly_reserved_cpus=message.strictly_reserved_cpus,
        origins=dict(message.origins),
    )


def _cpus(message: cluster_pb2.GetTopologyResponse) -> tuple[Cpu, ...]:
    # Sort the cores by cpus, because the number of a core is its position in this order.
    cores = sorted(
        ((tuple(CpuSet.parse(core.cpus)), core) for core in message.topology.cores),
        key=lambda core: core[0],
    )
    found = (
        Cpu(cpu, at, core.numa_node_id, core.package_index, core.kind)
        for at, (numbers, core) in enumerate(cores)
        for cpu in numbers
    )
    return tuple(sorted(found, key=lambda each: each.cpu))


read = decoding.read.extended(
    (
        Reading(
            HostPolicyStatus,
            cluster_pb2.GetHostPolicyResponse,
            # `followed_number` is None only in the answer to a change
            {"followed_number": Via("followed_number", int)},
            given="executor_id",
        ),
        Reading(
            HostPolicyStatus,
            cluster_pb2.SetHostPolicyResponse,
            given="executor_id followed_number",
        ),
        Reading(
            TopologyReport,
            cluster_pb2.GetTopologyResponse,
            {
                "topology": Via("topology", plain),
                "cpus": FromMessage(_cpus, ("topology",)),
                "announced": "host_cpus",
                "now": "cpu_state",
                "settings": "policy",
            },
        ),
        Reading(Zone, cluster_pb2.ZoneStatus, NODE),
        Reading(
            Pool,
            cluster_pb2.PoolStatus,
            {"package": "pool.package_index", "node": "pool.numa_node_id"},
        ),
        Reading(
            AnnouncedCpus,
            cpus_pb2.HostCpus,
            {"nodes": "numa"},
            unread="policy time_shared",
        ),
        Reading(NodeCapacity, cpus_pb2.NumaCapacity, NODE),
        Reading(Kubelet, cpus_pb2.KubeletReport, unread="policy"),
    ),
    converters={
        cpus_pb2.HostPolicy: partial(known, host_policy_from_proto, field="set"),
        cpus_pb2.EffectiveHostPolicy: _settings,
    },
)
"""Converts a message into a value; see `decoding.read`."""
