"""Turns what the RM says about an executor's cpus and NUMA nodes into the values of
`types/topology.py`.
"""

from __future__ import annotations

from finegrain.cpuset import CpuSet
from finegrain.rpc.wire_cpus import host_policy_from_proto
from finegrain.v1 import cluster_pb2, cpus_pb2, resources_pb2
from finegrain_client.decoding import status as reading
from finegrain_client.types import topology as types


def topology_report(message: cluster_pb2.GetTopologyResponse) -> types.TopologyReport:
    """All that is known of the cpus and NUMA nodes of one executor."""
    return types.TopologyReport(
        executor_id=message.executor_id,
        topology=reading.plain(message.topology),
        cpus=_cpus(message.topology),
        announced=_announced(message.host_cpus) if message.HasField("host_cpus") else None,
        now=_now(message.cpu_state) if message.HasField("cpu_state") else None,
        settings=settings(message.policy),
        zones=tuple(
            types.Zone(
                each.numa_node_id,
                reading.amounts(each.total),
                reading.amounts(each.allocated),
                reading.amounts(each.available),
            )
            for each in message.zones
        ),
        pools=tuple(
            types.Pool(
                each.pool.package_index,
                each.pool.numa_node_id,
                each.shared_cpus,
                each.best_effort_cpus,
            )
            for each in message.pools
        ),
        slots=tuple(reading.slot(each) for each in message.slots),
        lost_cpus=tuple(
            types.LostCpus(each.allocation_id, each.generation, each.cpus)
            for each in message.lost_cpus
        ),
    )


def _cpus(topology: resources_pb2.HostTopology) -> tuple[types.Cpu, ...]:
    cores = sorted(
        ((tuple(CpuSet.parse(core.cpus)), core) for core in topology.cores),
        key=lambda core: core[0],
    )
    return tuple(
        sorted(
            (
                types.Cpu(cpu, at, core.numa_node_id, core.package_index, core.kind)
                for at, (cpus, core) in enumerate(cores)
                for cpu in cpus
            ),
            key=lambda each: each.cpu,
        )
    )


def _announced(message: cpus_pb2.HostCpus) -> types.AnnouncedCpus:
    return types.AnnouncedCpus(
        slot_cpus=message.slot_cpus,
        reserved_cpus=message.reserved_cpus,
        isolated_cpus=message.isolated_cpus,
        nodes=tuple(
            types.NodeCapacity(
                each.numa_node_id, each.memory_bytes, dict(each.extended), each.default_memory
            )
            for each in message.numa
        ),
    )


def _now(message: cpus_pb2.CpuState) -> types.CpusNow:
    return types.CpusNow(
        offline_cpus=message.offline_cpus,
        squeezed_cpus=message.squeezed_cpus,
        host_policy_number=message.host_policy_number,
        notes=tuple(message.notes),
        kubelet=_kubelet(message.kubelet) if message.HasField("kubelet") else None,
    )


def _kubelet(message: cpus_pb2.KubeletReport) -> types.Kubelet:
    return types.Kubelet(
        cpu_manager_policy=message.cpu_manager_policy,
        cpu_manager_options=dict(message.cpu_manager_options),
        topology_manager_policy=message.topology_manager_policy,
        topology_manager_scope=message.topology_manager_scope,
        memory_manager_policy=message.memory_manager_policy,
        reserved_cpus=message.reserved_cpus,
        containers=tuple(
            types.KubeletContainer(each.pod_uid, each.container, each.cpus, dict(each.memory_bytes))
            for each in message.containers
        ),
    )


def settings(message: cpus_pb2.EffectiveHostPolicy) -> types.HostSettings:
    """What holds on a host, and by whom."""
    policy = host_policy_from_proto(message.policy, "policy")
    return types.HostSettings(
        bind=str(policy.bind or ""),
        numa_strategy=str(policy.numa_strategy or ""),
        alignment=str(policy.alignment or ""),
        reserved_cpus=message.policy.reserved_cpus,
        strictly_reserved_cpus=message.strictly_reserved_cpus,
        default_bind=str(policy.default_bind or ""),
        default_exclusive=str(policy.default_exclusive or ""),
        origins=dict(message.origins),
    )
