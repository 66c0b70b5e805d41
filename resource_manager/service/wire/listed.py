"""Converts the engine's lists and cluster events to messages. Only fields that differ between the
value and the message need an entry in `WRITINGS`.
"""

from __future__ import annotations

from google.protobuf.json_format import Parse

from finegrain.cpu_pools import Pool
from finegrain.rpc.mapping.writer import As, FromValue, Writing
from finegrain.rpc.wire import duration_ms_to_proto, timestamp_ms_to_proto
from finegrain.rpc.wire_cpus import POOL_NAME
from finegrain.v1 import cluster_pb2, cpus_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.usage import Zone
from resource_manager.engine.executors.host_settings import HostPolicyView
from resource_manager.engine.explain.cluster import ClusterView
from resource_manager.engine.explain.groups import GroupView
from resource_manager.engine.explain.lists import (
    ExecutorView,
    JobView,
    RequestView,
)
from resource_manager.engine.explain.preview import SettingPreview, SharePreview, SlotPreview
from resource_manager.engine.explain.provisions import ProvidedView, ProvidersView, ShapeView
from resource_manager.engine.model.entities import (
    ClusterEvent,
    CpuState,
    JobEvent,
    JobState,
    Resize,
    Slot,
)
from resource_manager.service.wire.job_events import slot_status_of_event

BOOKED = "profile.booked_memory_bytes"


def _more_than_one(count: int) -> int:
    return count if count > 1 else 0


def _cpus(slot: Slot) -> str:
    return slot.cpus if slot.assignment is None else str(slot.assignment.cpus)


def _error(outcome: ItemOutcome) -> slots_pb2.ItemError | None:
    if not outcome.reason:  # the usual case: the item was accepted
        return None
    return slots_pb2.ItemError(
        reason=outcome.reason, message=outcome.message, details=dict(outcome.details)
    )


def _kubelet(state: CpuState) -> cpus_pb2.KubeletReport | None:
    if not state.kubelet:
        return None
    return Parse(state.kubelet, cpus_pb2.KubeletReport(), ignore_unknown_fields=True)


ITEM_ERROR = {"error": FromValue(_error, ("reason", "message", "details"))}

WRITINGS = (
    Writing(
        Slot,
        slots_pb2.SlotStatus,
        {"memory_bytes": BOOKED, "cpus": FromValue(_cpus)},
        given="executor_address resizes device_conditions used",
        kept=(
            "cpus ordered wanted revoked_for revoked_until_time_ms booked cost placed_with_command"
            " grace_ms thread_since_ms works_for policy"
        ),
    ),
    Writing(
        Resize,
        slots_pb2.SlotResize,
        {"resize_number": "number", "memory_bytes": BOOKED},
        given="state message",
        kept="wait_for_use arrival_number",
    ),
    Writing(
        RequestView,
        rm_pb2.RequestStatus,
        {
            "request": "request.spec",
            "profile": "request.spec.profile",
            "count": As("count", _more_than_one),
        },
        parts="request",
        given="token",
        kept="request.reason request.message request.waiting_until_ms",
    ),
    Writing(
        JobEvent,
        rm_pb2.JobEvent,
        {
            "event_time": "time_ms",
            "slot": As("slot", slot_status_of_event),
            "count": As("count", _more_than_one),
        },
        given="token",
        kept="job_id",
    ),
    Writing(
        SlotPreview,
        cluster_pb2.PreviewedSlot,
        {
            "allocation_id": "slot.allocation_id",
            "generation": "slot.generation",
            "job_id": "slot.job_id",
            "executor_id": "slot.executor_id",
        },
        given="pids",
        kept="slot",
    ),
    Writing(SharePreview, cluster_pb2.PreviewedShare),
    Writing(SettingPreview, cluster_pb2.PreviewedSetting),
    Writing(ClusterEvent, cluster_pb2.ClusterEvent, {"event_time": "time_ms"}),
    Writing(
        JobView,
        cluster_pb2.JobStatus,
        {
            "ended": FromValue(lambda view: view.job.state is JobState.ENDED, ("job.state",)),
            "detached": FromValue(lambda view: view.job.lease_ms is None),
        },
        parts="job",
        given="service share_now oldest_wait_time",
        kept=(
            "job.request_id_sha256 job.arrival_number "
            "job.trimmed_sequence job.specified job.witness_allocation_id "
            "job.lease_until_ms job.acknowledged_sequence job.arrivals job.live_requests "
            "job.slot_keys job.durations job.run_times"
        ),
    ),
    Writing(
        ExecutorView,
        cluster_pb2.ExecutorStatus,
        {
            "default_slot_profile": "executor.registration.default_profile",
            "report_time": As(
                "executor.report_time_ms",
                lambda time_ms: timestamp_ms_to_proto(time_ms) if time_ms else None,
            ),
        },
        parts="executor executor.registration",
        given="topology used",
        kept=(
            "executor.first_seen_time_ms executor.lost executor.report_at_ms "
            "executor.reported_available executor.cpu_state executor.device_conditions "
            "executor.command_number "
            "executor.drain_deadline_at_ms executor.registration.executor_id "
            "executor.registration.total executor.registration.topology "
            "executor.registration.boot_id "
            "executor.registration.host_cpus"
        ),
    ),
    Writing(
        ClusterView,
        cluster_pb2.GetClusterResponse,
        given="rm_epoch software_version start_time protocol_version used web_address",
    ),
    Writing(ItemOutcome, slots_pb2.ItemResult, ITEM_ERROR),
    Writing(
        GroupView,
        cluster_pb2.GroupStatus,
        parts="group flow",
        given="measured",
        kept="group.create_time_ms",
    ),
    Writing(
        ProvidersView,
        cluster_pb2.ListProvidersResponse,
        {
            "idle_timeout": As(
                "idle_timeout_ms",
                lambda idle_ms: duration_ms_to_proto(idle_ms) if idle_ms else None,
            )
        },
    ),
    Writing(
        ShapeView,
        cluster_pb2.ExecutorShape,
        parts="shape",
        kept="shape.default_profile shape.slots_max shape.start_timeout_ms",
    ),
    Writing(
        ProvidedView,
        cluster_pb2.ProvidedExecutor,
        parts="provision",
        kept=(
            "provision.number provision.deadline_at_ms provision.idle_since_ms "
            "provision.stop_failures"
        ),
    ),
    Writing(Zone, cluster_pb2.ZoneStatus, {"numa_node_id": "node"}),
    Writing(
        Pool,
        cluster_pb2.PoolStatus,
        {"pool": "name", "shared_cpus": "shared", "best_effort_cpus": "best_effort"},
    ),
    POOL_NAME,
    Writing(
        CpuState,
        cpus_pb2.CpuState,
        {"kubelet": FromValue(_kubelet, ("kubelet",))},
        kept="kubelet_cpus kubelet_memory kubelet_policy",
    ),
    Writing(HostPolicyView, cluster_pb2.GetHostPolicyResponse),
)
