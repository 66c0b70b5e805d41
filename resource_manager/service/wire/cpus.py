"""Decodes the reports of executors about their hosts' cpus, and checks their form."""

from __future__ import annotations

import json

from google.protobuf.json_format import MessageToDict

from finegrain.cpuset import EMPTY
from finegrain.errors import InvalidArgument
from finegrain.ids import check_text
from finegrain.rpc.wire import check_amount
from finegrain.rpc.wire_cpus import (
    cpus_from_text,
    host_policy_from_proto,
    notes_from_proto,
)
from finegrain.v1 import cpus_pb2 as pb
from resource_manager.engine.model.entities import CpuState

CONTAINERS_MAX = 4_096
OPTIONS_MAX = 64
MEMORY_AMOUNTS_MAX = 16_384  # of all containers together; one amount is for one NUMA node
TEXT_LENGTH_MAX = 300

_WORDS = (
    "cpu_manager_policy",
    "topology_manager_policy",
    "topology_manager_scope",
    "memory_manager_policy",
)


def cpu_state_from_proto(message: pb.CpuState, field: str) -> CpuState:
    """Decodes the current state of a host's cpus, as its executor reports it.

    Raises:
        InvalidArgument: a list, text or amount is malformed.
    """
    number = message.host_policy_number
    if number < 0:
        raise InvalidArgument(f"{field}.host_policy_number", number, "0 or more")
    state = CpuState(
        offline_cpus=cpus_from_text(message.offline_cpus, f"{field}.offline_cpus"),
        host_policy_number=number,
        squeezed_cpus=cpus_from_text(message.squeezed_cpus, f"{field}.squeezed_cpus"),
        notes=notes_from_proto(message.notes, f"{field}.notes"),
    )
    if not message.HasField("kubelet"):
        return state
    return _with_kubelet(state, message.kubelet, f"{field}.kubelet")


def _with_kubelet(state: CpuState, message: pb.KubeletReport, field: str) -> CpuState:
    # Check the form of all fields, because the resource manager stores and shows the report
    # unchanged.
    for name in _WORDS:
        _check_short(f"{field}.{name}", getattr(message, name))
    if len(message.cpu_manager_options) > OPTIONS_MAX:
        count = len(message.cpu_manager_options)
        raise InvalidArgument(f"{field}.cpu_manager_options", count, f"at most {OPTIONS_MAX}")
    for name, value in message.cpu_manager_options.items():
        _check_short(f"{field}.cpu_manager_options key", name)
        _check_short(f"{field}.cpu_manager_options[{name}]", value)
    cpus_from_text(message.reserved_cpus, f"{field}.reserved_cpus")
    count = len(message.containers)
    if count > CONTAINERS_MAX:
        raise InvalidArgument(f"{field}.containers", count, f"at most {CONTAINERS_MAX}")
    # The engine needs only the sums: all cpus that containers have, and their memory on each NUMA
    # node.
    amounts = sum(len(each.memory_bytes) for each in message.containers)
    if amounts > MEMORY_AMOUNTS_MAX:
        expected = f"at most {MEMORY_AMOUNTS_MAX}"
        raise InvalidArgument(f"{field}.containers.memory_bytes", f"{amounts} amounts", expected)
    pinned, memory = EMPTY, dict[int, int]()
    for at, each in enumerate(message.containers):
        where = f"{field}.containers[{at}]"
        _check_short(f"{where}.pod_uid", each.pod_uid)
        _check_short(f"{where}.container", each.container)
        pinned |= cpus_from_text(each.cpus, f"{where}.cpus")
        for node, amount in each.memory_bytes.items():
            check_amount(f"{where}.memory_bytes[{node}]", amount)
            memory[node] = memory.get(node, 0) + amount
    # The report is stored as text, because the engine does not read its fields.
    report = MessageToDict(message, preserving_proto_field_name=True)
    return CpuState(
        offline_cpus=state.offline_cpus,
        kubelet_cpus=pinned,
        kubelet_memory=tuple(sorted(memory.items())),
        kubelet_policy=host_policy_from_proto(message.policy, f"{field}.policy"),
        kubelet=json.dumps(report, separators=(",", ":")),
        host_policy_number=state.host_policy_number,
        squeezed_cpus=state.squeezed_cpus,
        notes=state.notes,
    )


def _check_short(field: str, text: str) -> None:
    check_text(field, text, longest=TEXT_LENGTH_MAX, empty_ok=True)
