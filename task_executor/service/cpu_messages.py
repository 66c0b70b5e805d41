"""What is announced and told of the host's cpus, as messages of the protocol.

Decides how the executor's own values look on the wire. Refuses to know where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.rpc.wire_cpus import NOTE_LENGTH_MAX, NOTES_MAX, host_policy_to_proto
from finegrain.v1 import cpus_pb2
from task_executor.engine.cpu_books import CpuConditions, HostCpus
from task_executor.host.kubelet.state import KubeletState
from task_executor.host.node_offers import NodeOffer
from task_executor.service.kubelet_report import kubelet_report


def host_cpus_to_proto(cpus: HostCpus, nodes: Iterable[NodeOffer]) -> cpus_pb2.HostCpus:
    """What slots can have of the host's cpus and NUMA nodes."""
    return cpus_pb2.HostCpus(
        slot_cpus=str(cpus.slot_cpus),
        reserved_cpus=str(cpus.reserved),
        isolated_cpus=str(cpus.isolated),
        policy=host_policy_to_proto(cpus.policy),
        numa=[
            cpus_pb2.NumaCapacity(
                numa_node_id=node.id,
                memory_bytes=node.memory_bytes,
                extended=dict(node.hugepages),
                default_memory=node.default_memory,
            )
            for node in nodes
        ],
    )


def cpu_state_to_proto(conditions: CpuConditions) -> cpus_pb2.CpuState:
    """What is seen of the host's cpus at present."""
    message = cpus_pb2.CpuState(
        offline_cpus=str(conditions.offline),
        host_policy_number=conditions.policy_number,
        squeezed_cpus="" if conditions.squeezed is None else str(conditions.squeezed),
        notes=[note[:NOTE_LENGTH_MAX] for note in conditions.notes[:NOTES_MAX]],
    )
    if isinstance(conditions.kubelet, KubeletState):
        message.kubelet.CopyFrom(kubelet_report(conditions.kubelet))
    return message
