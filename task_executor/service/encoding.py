"""Encodes the executor's values as protocol messages.

Fields with equal names are copied. The table below lists only the fields whose name or form differs
between protocol and executor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from finegrain.cpuset import CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.errors import FinegrainError
from finegrain.rpc.mapping.writer import As, FromValue, Writer, Writing
from finegrain.rpc.status import item_error
from finegrain.rpc.wire import amounts_to_proto, profile_to_proto, timestamp_ms_to_proto
from finegrain.rpc.wire_cpus import (
    NOTE_LENGTH_MAX,
    NOTES_MAX,
    assignment_to_proto,
    host_policy_to_proto,
)
from finegrain.rpc.wire_devices import condition_to_proto
from finegrain.rpc.wire_topology import isolation_to_proto
from finegrain.topology import printable
from finegrain.v1 import cpus_pb2, resources_pb2, slots_pb2, task_executor_pb2
from finegrain.values.bounds import AMOUNT_MAX
from finegrain.values.operators import ChainEdge, GraphPlace
from finegrain.values.usage import HostUsage, Temperature
from task_executor.engine.cpu_ledger import CpuConditions, HostCpus
from task_executor.engine.report_log import NumberedState
from task_executor.engine.slots import EndedSlot, Slot
from task_executor.host.helper_messages import ExitRecord, TaskFault
from task_executor.host.kubelet import KubeletContainer, KubeletState
from task_executor.host.numa_capacity import NumaCapacity
from task_executor.service.task_table import Task

SIGKILL = 9
STATE_BYTES_WITH_NOTES_MAX = 2 * 1024 * 1024
CONTAINERS_MAX = 4_096
OPTIONS_MAX = 64
WORD_LENGTH_MAX = 300


def state_to_proto(state: NumberedState) -> slots_pb2.SlotReport:
    """Encodes a report.

    If there are very many slots, the function leaves out the notes on isolation, because the size
    of a message is limited. The registration contains the same notes for the whole host.
    """
    message = write(slots_pb2.SlotReport, state)
    if len(message.slots) and message.ByteSize() > STATE_BYTES_WITH_NOTES_MAX:
        for slot in message.slots:
            slot.isolation.ClearField("notes")
    return message


def host_cpus_to_proto(
    cpus: HostCpus, nodes: Iterable[NumaCapacity], *, time_shared: bool = False
) -> cpus_pb2.HostCpus:
    """Encodes those cpus and NUMA nodes of the host that slots can use."""
    offers = [write(cpus_pb2.NumaCapacity, node) for node in nodes]
    return write(cpus_pb2.HostCpus, cpus, numa=offers, time_shared=time_shared)


def result(identity: str, error: FinegrainError | None) -> slots_pb2.ItemResult:
    """Encodes the result of one item of a batch."""
    return slots_pb2.ItemResult(id=identity, error=item_error(error) if error else None)


def _task_exit(task: Task) -> task_executor_pb2.TaskExit | None:
    if task.exit is None:
        return None
    cause = task.cause
    return write(
        task_executor_pb2.TaskExit,
        task.exit,
        cancelled=task.cancelled,
        end_reason="" if cause is None else cause.reason,
        end_message="" if cause is None else cause.message,
        peak_gpu_memory_bytes=task.peak_gpu_memory_bytes,
    )


def _place(task: Task) -> task_executor_pb2.GraphPlace | None:
    place = task.operator_task.place if task.operator_task else None
    return None if place is None else write(task_executor_pb2.GraphPlace, place)


def _peer_operators(task: Task) -> list[str]:
    work = task.operator_task
    return sorted({peer.operator_id for peer in work.peers}) if work else []


def _signal(record: ExitRecord) -> int:
    # If the host restarted, no process observed the end of the task. Report such a task as killed.
    lost = record.exit_code is None and record.signal is None
    return SIGKILL if lost else record.signal or 0


def _fault_details(details: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in details.items()}


def _kubelet(kubelet: object) -> cpus_pb2.KubeletReport | None:
    if not isinstance(kubelet, KubeletState):
        return None
    return write(cpus_pb2.KubeletReport, kubelet)


def _containers(containers: tuple[KubeletContainer, ...]) -> list[cpus_pb2.KubeletContainer]:
    """Encodes at most `CONTAINERS_MAX` containers. Containers with dedicated cpus come first."""
    first = sorted(containers, key=lambda each: not each.cpus)[:CONTAINERS_MAX]
    return write.each(cpus_pb2.KubeletContainer, first)


def _word(text: str) -> str:
    """Makes a name from another program's file printable, and shortens it.

    Without this step, the RM would reject the whole report because of one invalid name.
    """
    return printable(text)[:WORD_LENGTH_MAX]


def _options(options: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {_word(name): _word(value) for name, value in options[:OPTIONS_MAX]}


def _moment(time_ms: int) -> Any:
    return timestamp_ms_to_proto(time_ms) if time_ms else None


write = Writer(
    (
        Writing(
            Slot,
            slots_pb2.SlotStatus,
            {"allocated_time": As("allocated_time_ms", _moment)},
            parts="spec",
            # Until a resize is confirmed, reports contain the old size.
            kept=("accepted becoming end_reason limited_since_ms spec.owner spec.target_address"),
            unset="executor_id executor_address resizes device_conditions used revocable",
        ),
        Writing(
            NumberedState,
            slots_pb2.SlotReport,
            {
                "available": FromValue(
                    lambda state: None if state.unchanged else amounts_to_proto(state.available),
                    ("available",),
                ),
                "cpu_state": "cpus",
            },
        ),
        Writing(EndedSlot, slots_pb2.EndedSlot, parts="key"),
        Writing(
            Task,
            task_executor_pb2.TaskStatus,
            {
                "allocation_id": "key.allocation_id",
                "generation": "key.generation",
                "start_time": As("start_time_ms", _moment),
                "exit": FromValue(
                    _task_exit, ("exit", "cancelled", "ended_for", "peak_gpu_memory_bytes")
                ),
                "error": "fault",
                "peer_operator_ids": FromValue(_peer_operators, ("operator_task",)),
                "subtask_index": FromValue(
                    lambda task: task.operator_task.subtask_index if task.operator_task else 0,
                    ("operator_task",),
                ),
                "parallelism": FromValue(
                    lambda task: task.operator_task.parallelism if task.operator_task else 0,
                    ("operator_task",),
                ),
                "place": FromValue(_place, ("operator_task",)),
            },
            kept=(
                "owner digest submit_time_ms submit_number directory "
                "is_recorded slot_removed_at watchers registered first_quota_bytes "
                "settled _wakers"
            ),
        ),
        Writing(GraphPlace, task_executor_pb2.GraphPlace),
        Writing(ChainEdge, task_executor_pb2.ChainEdge),
        Writing(TaskFault, slots_pb2.ItemError, {"details": As("details", _fault_details)}),
        Writing(
            ExitRecord,
            task_executor_pb2.TaskExit,
            {
                "exit_code": As("exit_code", int),
                "signal": FromValue(_signal, ("signal",)),
                "cpu_time_us": "cpu_usec",
                "end_time": "ended_unix_ms",
                # The protocol has one count for all output of a task. The record counts stored
                # output and dropped output separately, so add both.
                "stdout_bytes": FromValue(
                    lambda record: record.stdout_bytes + record.stdout_dropped_bytes,
                    ("stdout_bytes",),
                ),
                "stderr_bytes": FromValue(
                    lambda record: record.stderr_bytes + record.stderr_dropped_bytes,
                    ("stderr_bytes",),
                ),
                "dropped_bytes": FromValue(
                    lambda record: record.stdout_dropped_bytes + record.stderr_dropped_bytes,
                    ("stdout_dropped_bytes", "stderr_dropped_bytes"),
                ),
            },
            given="cancelled end_reason end_message peak_gpu_memory_bytes",
            kept="oom_kills started_unix_ms error",
        ),
        Writing(
            HostCpus,
            cpus_pb2.HostCpus,
            {"reserved_cpus": "reserved", "isolated_cpus": "isolated"},
            given="numa time_shared",
            kept="pools memory_nodes",
        ),
        Writing(HostUsage, slots_pb2.HostUsage),
        Writing(Temperature, slots_pb2.Temperature),
        Writing(NumaCapacity, cpus_pb2.NumaCapacity, {"numa_node_id": "id"}),
        Writing(
            CpuConditions,
            cpus_pb2.CpuState,
            {
                "offline_cpus": "offline",
                "host_policy_number": "policy_number",
                "squeezed_cpus": "squeezed",
                "notes": As(
                    "notes", lambda notes: [note[:NOTE_LENGTH_MAX] for note in notes[:NOTES_MAX]]
                ),
                "kubelet": As("kubelet", _kubelet),
            },
            kept="kubelet_cpus kubelet_policy operator_policy",
        ),
        Writing(
            KubeletState,
            cpus_pb2.KubeletReport,
            {
                "cpu_manager_policy": As("cpu_manager_policy", _word),
                "cpu_manager_options": As("cpu_manager_options", _options),
                "topology_manager_policy": As("topology_manager_policy", _word),
                "topology_manager_scope": As("topology_manager_scope", _word),
                "memory_manager_policy": As("memory_manager_policy", _word),
                "containers": As("containers", _containers),
            },
            kept="given kept devices notes",
        ),
        Writing(
            KubeletContainer,
            cpus_pb2.KubeletContainer,
            {
                "pod_uid": As("pod_uid", _word),
                "container": As("container", _word),
                "memory_bytes": As(
                    "memory_bytes",
                    lambda sizes: {node: min(size, AMOUNT_MAX) for node, size in sizes},
                ),
            },
        ),
    ),
    converters={
        CpuSet: str,
        DeviceCondition: condition_to_proto,
        resources_pb2.ResourceProfile: profile_to_proto,
        resources_pb2.IsolationReport: isolation_to_proto,
        cpus_pb2.CpuAssignment: assignment_to_proto,
        cpus_pb2.HostPolicy: host_policy_to_proto,
    },
)
"""Encodes a value as a message: `write(slots_pb2.SlotStatus, slot)`."""
