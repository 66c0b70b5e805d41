"""Builds messages from the engine's values. A field of a message gets the value of the field with
the same name.

The tables in `listed.py`, `explained.py`, `commands.py` and in this module list the names that
differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from finegrain.cpuset import CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.rpc.mapping.writer import As, FromValue, Writer, Writing
from finegrain.rpc.wire import (
    amounts_to_proto,
    duration_ms_to_proto,
    profile_to_proto,
    timestamp_ms_to_proto,
)
from finegrain.rpc.wire_cpus import (
    assignment_to_proto,
    cpu_policy_to_proto,
    effective_policy_to_proto,
    host_cpus_to_proto,
    host_policy_to_proto,
)
from finegrain.rpc.wire_devices import condition_to_proto
from finegrain.rpc.wire_topology import isolation_to_proto, topology_dict_to_proto
from finegrain.v1 import cluster_pb2, cpus_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.explain.groups import FlowView, GroupView
from resource_manager.engine.explain.lists import (
    ExecutorView,
    JobView,
    SlotView,
    slot_view,
)
from resource_manager.engine.explain.requests import Explanation
from resource_manager.engine.explain.reservations import ReservationView
from resource_manager.engine.explain.resizes import ResizeExplanation
from resource_manager.engine.explain.topology import TopologyView
from resource_manager.engine.model.entities import (
    NO_CPU_STATE,
    Resize,
    Slot,
)
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.state import State
from resource_manager.service.group_use import GroupUse
from resource_manager.service.wire import commands, explained, listed

ORDERED, WAITING = slots_pb2.SLOT_RESIZE_STATE_ORDERED, slots_pb2.SLOT_RESIZE_STATE_WAITING


def slot_status(
    slot: Slot,
    executor_address: str = "",
    resize_message: str = "",
    conditions: Sequence[DeviceCondition] = (),
) -> slots_pb2.SlotStatus:
    """Returns a slot with its resizes in progress.

    Args:
        slot: the slot.
        executor_address: the address at which job masters reach the executor.
        resize_message: the reason why a resize waits, as a text for people.
        conditions: the conditions of the slot's devices that are not healthy, or that foreign
            processes use.
    """
    under_way = []
    # The ordered resize comes first, because it ends before the waiting resize.
    if slot.ordered is not None:
        under_way.append(resize_status(slot.ordered, ordered=True))
    if slot.wanted is not None:
        under_way.append(resize_status(slot.wanted, ordered=False, message=resize_message))
    # Call the compiled function and not `write`, which is slower. Slots are the most frequent
    # messages.
    function = write.function(Slot, slots_pb2.SlotStatus)
    return function(
        slot,
        executor_address=executor_address,
        resizes=under_way,
        device_conditions=[condition_to_proto(each) for each in conditions],
    )


def slot_status_of_view(view: SlotView) -> slots_pb2.SlotStatus:
    """Returns a slot with the address of its executor."""
    return slot_status(
        view.slot, view.executor_address, view.resize_message, view.device_conditions
    )


def resize_status(resize: Resize, *, ordered: bool, message: str = "") -> slots_pb2.SlotResize:
    """Returns one resize of a slot.

    Args:
        resize: the resize.
        ordered: whether the executor was ordered to resize the slot. If not, the resize waits.
        message: the reason why the resize waits, as a text for people.
    """
    state = ORDERED if ordered else WAITING
    return write(slots_pb2.SlotResize, resize, state=state, message=message)


def explanation(found: Explanation, state: State) -> rm_pb2.ExplainResponse:
    """Returns the state of a request: the reason why it waits, the resizes of its slot, or how it
    ended.
    """
    blocking = [slot_status_of_view(slot_view(state, slot)) for slot in found.blocked_by]
    return write(rm_pb2.ExplainResponse, found, blocked_by=blocking)


def groups_message(
    views: list[GroupView],
    held: list[ReservationView],
    fairness: Fairness,
    use: GroupUse,
) -> cluster_pb2.ListGroupsResponse:
    """Returns all groups, the usage settings, and all reservations.

    Args:
        views: the groups.
        held: the reservations.
        fairness: measure and half-life of usage.
        use: the samples of groups.
    """
    return cluster_pb2.ListGroupsResponse(
        groups=[group_message(view, use) for view in views],
        service_measure=fairness.usage_measure,
        reservations=write.each(rm_pb2.Reservation, held),
        half_life=None
        if fairness.half_life_ms is None
        else duration_ms_to_proto(fairness.half_life_ms),
    )


def group_message(view: GroupView, use: GroupUse) -> cluster_pb2.GroupStatus:
    """Returns a group with the measured use in its last sample."""
    measured = use.measured_now(view.group.name)
    amounts = measured and resources_pb2.ResourceAmounts(
        cpu_milli=measured[0], memory_bytes=measured[1]
    )
    return write(cluster_pb2.GroupStatus, view, measured=amounts)


def job_status(view: JobView, flow: FlowView) -> cluster_pb2.JobStatus:
    """Returns a job with its usage and current share."""
    since_ms = flow.oldest_wait_time_ms
    return write(
        cluster_pb2.JobStatus,
        view,
        service=flow.service,
        share_now=flow.share_now,
        oldest_wait_time=None if since_ms is None else timestamp_ms_to_proto(since_ms),
    )


def executor_status(
    view: ExecutorView, used: slots_pb2.UsageReport, *, with_topology: bool = False
) -> cluster_pb2.ExecutorStatus:
    """Returns an executor with the sums over its slots.

    Args:
        view: the executor.
        used: the measured use of its slots and of the host.
        with_topology: whether the message contains the topology of the host.
    """
    # A topology is large, so lists leave it out.
    if not with_topology:
        return write(cluster_pb2.ExecutorStatus, view, used=used)
    topology = topology_dict_to_proto(json.loads(view.executor.registration.topology))
    return write(cluster_pb2.ExecutorStatus, view, used=used, topology=topology)


def _host_cpus(view: TopologyView) -> cpus_pb2.HostCpus | None:
    text = view.executor.registration.host_cpus
    return host_cpus_to_proto(text) if json.loads(text or "{}") else None


def _cpu_state(view: TopologyView) -> cpus_pb2.CpuState | None:
    seen = view.executor.cpu_state
    return None if seen == NO_CPU_STATE else write(cpus_pb2.CpuState, seen)


def _lost_cpus(view: TopologyView) -> list[cluster_pb2.LostCpus]:
    return [
        cluster_pb2.LostCpus(allocation_id=allocation_id, generation=generation, cpus=str(cpus))
        for allocation_id, generation, cpus in view.lost_cpus
    ]


write = Writer(
    (
        *listed.WRITINGS,
        *explained.WRITINGS,
        *commands.WRITINGS,
        Writing(
            ResizeExplanation,
            rm_pb2.ResizeExplanation,
            {
                "resize": FromValue(
                    lambda one: resize_status(one.resize, ordered=one.ordered, message=one.summary),
                    ("resize", "ordered"),
                )
            },
        ),
        Writing(
            TopologyView,
            cluster_pb2.GetTopologyResponse,
            {
                "executor_id": "executor.executor_id",
                "topology": As(
                    "executor.registration.topology",
                    lambda text: topology_dict_to_proto(json.loads(text)),
                ),
                "host_cpus": FromValue(_host_cpus),
                "cpu_state": FromValue(_cpu_state),
                "pools": "pools.members",
                "lost_cpus": FromValue(_lost_cpus, ("lost_cpus",)),
            },
        ),
    ),
    converters={
        Slot: slot_status,
        SlotView: slot_status_of_view,
        CpuSet: str,
        resources_pb2.ResourceProfile: profile_to_proto,
        resources_pb2.ResourceAmounts: amounts_to_proto,
        resources_pb2.IsolationReport: isolation_to_proto,
        cpus_pb2.CpuPolicy: cpu_policy_to_proto,
        cpus_pb2.CpuAssignment: assignment_to_proto,
        cpus_pb2.HostPolicy: host_policy_to_proto,
        cpus_pb2.EffectiveHostPolicy: effective_policy_to_proto,
    },
)
"""Returns the message of a value, for example `write(cluster_pb2.ClusterEvent, event)`."""
