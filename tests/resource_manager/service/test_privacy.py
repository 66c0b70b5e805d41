"""What the resource manager shows of a job to callers that do not own the job.

The manager never receives commands, environments and outputs. Each field with text in an answer is
listed here, so that a new field needs a decision.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from finegrain.identity import Role
from finegrain.rpc.access import CLUSTER_ACCESS, READERS, RESOURCE_MANAGER_ACCESS
from finegrain.v1 import cluster_pb2, task_executor_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.content import answers_to_readers, listed, messages_within, texts_of
from tests.support.every_method import Method, methods_of
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    eventually,
    running_rm,
    slot_request,
)

SERVICES = ((rm_pb2, RESOURCE_MANAGER_ACCESS), (cluster_pb2, CLUSTER_ACCESS))

PRIVATE = {
    "GetAllocationTokenResponse": "token",
    "JobEvent": "token",
    "RequestStatus": "token",
    "SlotRequest": "target_address",
}
"""Fields that only the owner of the job and administrators see."""

OF_TASKS = ("TaskSpec", "OperatorTask", "TaskStatus", "TaskExit", "OperatorStatus", "OutputChunk")
"""Messages with commands, environments, outputs, end messages, and operators of job graphs."""

CHOSEN_BY_USERS = {
    "ClusterEvent": "allocation_id job_id message",  # names of jobs, in messages
    "CpuPolicy": "slot_labels",
    "FlowTally": "job_name name",
    "Gang": "gang_id label",
    "JobStatus": "group job_id name",
    "NeighborRule": "labels",
    "PreviewedShare": "group",
    "PreviewedSlot": "allocation_id group job_id job_name",
    "RequestStatus": "allocation_id job_id job_name range_id",
    "SlotRequest": "allocation_id gang_id required_labels",
}
"""Ids, names and labels that users choose. All users see them: they are no place for secrets."""

OF_THE_CLUSTER = {
    "AdviseThreadsResponse": "remarks",
    "ChoiceStep": "group summary",
    "ClusterEvent": "actor executor_id kind reason",
    "Core": "cpus kind",
    "Counterfactual": "executor_id message relaxed",
    "CpuAssignment": "cpus memory_nodes notes",
    "CpuState": "notes offline_cpus squeezed_cpus",
    "CpuVerdict": "code message",
    "Device": (
        "kind labels levels local_cpus model parent_uuid parking pci_address pcie_group "
        "unavailable_reason uuid vendor"
    ),
    "DeviceCondition": "health problem type uuid",
    "DeviceHint": "model near scope type vendor",
    "DeviceIsolation": "levels type uuid",
    "DeviceLink": "first_uuid path second_uuid",
    "DeviceShare": "functions type uuid",
    "DeviceStatus": "problem",
    "DeviceUsage": "type uuid",
    "DeviceUse": "allocation_id job_id",
    "DimensionStatus": "dimension",
    "EffectiveHostPolicy": "origins strictly_reserved_cpus",
    "ExecutorDevices": "executor_id",
    "ExecutorShape": "labels last_failure name provider",
    "ExecutorStatus": (
        "address drain_reason executor_id instance_id labels protocol_version provided_as "
        "shared_cpus software_version unreachable_reason"
    ),
    "ExecutorVerdict": "blockers executor_id message",
    "ExplainResponse": "planned_on primary_reason summary",
    "ForeignUse": "kind name user",
    "GangExplanation": "summary",
    "GangSpot": "name",
    "GetClusterResponse": "protocol_version software_version web_address",
    "GetTopologyResponse": "executor_id",
    "GetUsageResponse": "executor_id",
    "GroupLimit": "dimension group user",
    "GroupRule": "job labels user",
    "GroupStatus": "description name parent users",
    "HostCpus": "isolated_cpus reserved_cpus slot_cpus",
    "HostPolicy": "reserved_cpus",
    "HostUsage": "cpus",
    "HostTopology": "allowed_cpus isolated_cpus online_cpus warnings",
    "IsolationReport": (
        "countable cpu cpuset device_access devices driver gpu_core gpu_memory kill "
        "memory notes pids"
    ),
    "ItemError": "details message reason",
    "ItemResult": "id",
    "JobEvent": "allocation_id message reason",
    "JobDependency": "job_id",
    "JobStatus": "awaited_job_ids end_reason owner",
    "KubeletContainer": "container cpus pod_uid",
    "KubeletReport": (
        "cpu_manager_options cpu_manager_policy memory_manager_policy reserved_cpus "
        "topology_manager_policy topology_manager_scope"
    ),
    "LabelRule": "name values",
    "ListDevicesResponse": "next_page_token",
    "ListExecutorsResponse": "next_page_token",
    "ListGroupsResponse": "service_measure",
    "UserStatus": "user",
    "ListJobsResponse": "next_page_token",
    "ListProvidersResponse": "unplanned",
    "ListRequestsResponse": "next_page_token",
    "ListSlotsResponse": "next_page_token",
    "LostCpus": "allocation_id cpus",
    "NumaNode": "cpus",
    "PoolStatus": "best_effort_cpus shared_cpus",
    "PreviewActionResponse": "summary",
    "PreviewedSetting": "after before name",
    "PreviewedShare": "below_minimum exceeded",
    "PreviewedSlot": "executor_id other_executor_id",
    "ProvidedExecutor": "cause executor_id handle message planned shape",
    "RequestStatus": "reason",
    "Reservation": "allocation_id gang_id job_id summary",
    "ReservedExecutor": "executor_id",
    "ResizeExplanation": "summary",
    "ResourceProfile": "require_isolation",
    "SlotDeviceUsage": "allocation_id",
    "SlotResize": "message",
    "SlotUsage": "allocation_id",
    "SlotStatus": "allocation_id cpus executor_address executor_id job_id",
    "Temperature": "sensor",
    "VirtualFunction": "bus_id labels",
}
"""All users see these fields. They contain ids, names of resources, texts of administrators, and
sentences and codes of the manager and of the executors.
"""

MARK = "127.0.0.1:45671"
OWNER, OTHERS, OPERATOR = "user/alice", ("user/bob", "viewer/vera"), "operator/root"
SHOWING = {"ListRequests", "Explain"}
REQUESTS: dict[str, Any] = {
    "Explain": rm_pb2.ExplainRequest(allocation_id="waits"),
    "GetExecutor": cluster_pb2.GetExecutorRequest(executor_id="host-a"),
    "GetTopology": cluster_pb2.GetTopologyRequest(executor_id="host-a"),
    "GetUsage": cluster_pb2.GetUsageRequest(executor_id="host-a"),
    "GetHostPolicy": cluster_pb2.GetHostPolicyRequest(executor_id="host-a"),
    "PreviewAction": cluster_pb2.PreviewActionRequest(
        action=cluster_pb2.PREVIEWED_ACTION_END_JOB, job_id="job"
    ),
    "AdviseThreads": cluster_pb2.AdviseThreadsRequest(job_id="job"),
}
READING: list[Method] = [
    method
    for module, table in SERVICES
    for method in methods_of(module, table)
    if Role.VIEWER in method.roles
]


def name_of(method: Method) -> str:
    return method.path.rpartition("/")[2]


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    """A cluster in which alice's job has a slot and a request that waits, with an address each."""
    async with running_rm(tmp_path) as running, ScriptedExecutor(running) as executor:
        await running.rm.RegisterJob(
            rm_pb2.RegisterJobRequest(job_id="job", request_id="r" * 16, name="training")
        )
        more: dict[str, Any] = {"target_address": MARK, "allow_pending": True}
        await running.rm.RequestResource(
            rm_pb2.RequestResourceRequest(
                job_id="job",
                requests=[
                    slot_request("runs", **more),
                    slot_request("waits", cpu_milli=64_000, **more),
                ],
            )
        )
        await eventually(lambda: "runs" in executor.slots)
        yield running


async def answer(rm: RunningRm, who: str, method: Method) -> bytes:
    request = REQUESTS.get(name_of(method))
    data = request.SerializeToString() if request is not None else b""
    call: Any = rm.channel(who).unary_unary(method.path)
    return bytes(await call(data, timeout=20))


async def test_others_get_every_list_without_what_is_private(rm: RunningRm) -> None:
    mark = MARK.encode()
    for method in READING:
        shows = name_of(method) in SHOWING
        for who in (OWNER, OPERATOR):
            assert (mark in await answer(rm, who, method)) is shows, (who, method.path)
        for who in OTHERS:
            assert mark not in await answer(rm, who, method), (who, method.path)


async def test_others_see_the_job_and_all_its_requests(rm: RunningRm) -> None:
    for who in OTHERS:
        cluster = rm.cluster_as(who)
        (job,) = (await cluster.ListJobs(cluster_pb2.ListJobsRequest())).jobs
        assert (job.name, job.owner) == ("training", OWNER)
        found = (await cluster.ListRequests(cluster_pb2.ListRequestsRequest())).requests
        assert [each.request.allocation_id for each in found] == ["runs", "waits"]
        assert [each.profile.cpu_milli for each in found] == [500, 64_000]


async def test_a_user_sees_the_private_fields_of_its_own_jobs_among_others(rm: RunningRm) -> None:
    bob = rm.rm_as("user/bob")
    await bob.RegisterJob(rm_pb2.RegisterJobRequest(job_id="b", request_id="s" * 16, name="b"))
    mine = slot_request("of-bob", target_address="127.0.0.1:45672")
    await bob.RequestResource(rm_pb2.RequestResourceRequest(job_id="b", requests=[mine]))
    listing = cluster_pb2.ListRequestsRequest()
    found = (await rm.cluster_as("user/bob").ListRequests(listing)).requests
    assert {each.allocation_id: each.request.target_address for each in found} == {
        "runs": "",
        "waits": "",
        "of-bob": "127.0.0.1:45672",
    }


def test_a_new_field_with_text_needs_a_decision_who_sees_it() -> None:
    found = texts_of(
        messages_within(
            each for module, table in SERVICES for each in answers_to_readers(module, table)
        ).values()
    )
    decided: dict[str, set[str]] = {}
    for table in (PRIVATE, CHOSEN_BY_USERS, OF_THE_CLUSTER):
        for message, names in listed(table).items():
            assert not decided.get(message, set()) & names, f"{message} is listed twice"
            decided.setdefault(message, set()).update(names)
    assert found == decided


def test_the_manager_neither_receives_nor_sends_what_tasks_run_and_write() -> None:
    services = [s for module, _ in SERVICES for s in module.DESCRIPTOR.services_by_name.values()]
    methods = [method for service in services for method in service.methods]
    all_messages = messages_within(
        each for method in methods for each in (method.input_type, method.output_type)
    )
    assert all(name in task_executor_pb2.DESCRIPTOR.message_types_by_name for name in OF_TASKS)
    assert not set(OF_TASKS) & set(all_messages)


def test_every_role_that_reads_is_tried_here() -> None:
    assert {Role(who.partition("/")[0]) for who in (OWNER, *OTHERS, OPERATOR)} == READERS
    assert {name_of(method) for method in READING} >= SHOWING | set(REQUESTS)
