"""What is known of a kubelet, as a message.

Decides how far its words are repeated: names come from files that are not ours, and a report that
the RM has to refuse would be worse than one that is cut.
"""

from __future__ import annotations

from finegrain.resources import AMOUNT_MAX
from finegrain.rpc.wire_cpus import host_policy_to_proto
from finegrain.topology import printable
from finegrain.v1 import cpus_pb2
from task_executor.host.kubelet import KubeletContainer, KubeletState

CONTAINERS_MAX = 4_096
OPTIONS_MAX = 64
WORD_LENGTH_MAX = 300


def kubelet_report(state: KubeletState) -> cpus_pb2.KubeletReport:
    """The report. Beyond a number that no kubelet has, containers are left out of it; those with
    cpus of their own come first.
    """
    containers = sorted(state.containers, key=lambda each: not each.cpus)[:CONTAINERS_MAX]
    return cpus_pb2.KubeletReport(
        cpu_manager_policy=_word(state.cpu_manager_policy),
        cpu_manager_options={
            _word(name): _word(value) for name, value in state.cpu_manager_options[:OPTIONS_MAX]
        },
        topology_manager_policy=_word(state.topology_manager_policy),
        topology_manager_scope=_word(state.topology_manager_scope),
        memory_manager_policy=_word(state.memory_manager_policy),
        reserved_cpus=str(state.reserved_cpus),
        policy=host_policy_to_proto(state.policy),
        containers=[_container(each) for each in containers],
    )


def _container(each: KubeletContainer) -> cpus_pb2.KubeletContainer:
    return cpus_pb2.KubeletContainer(
        pod_uid=_word(each.pod_uid),
        container=_word(each.container),
        cpus=str(each.cpus),
        memory_bytes={node: min(size, AMOUNT_MAX) for node, size in each.memory_bytes},
    )


def _word(text: str) -> str:
    return printable(text)[:WORD_LENGTH_MAX]
