"""Tests bad input over the wire: one error that names the field; nothing is half done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from finegrain.errors import InvalidArgument, Reason
from finegrain.software_version import software_version
from finegrain.v1 import cluster_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.bounds import AMOUNT_MAX, CPU_MILLI_MAX
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    refusal,
    running_rm,
    slot_request,
)

Profile = resources_pb2.ResourceProfile


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path) as running:
        yield running


def request(**parts: Any) -> slots_pb2.SlotRequest:
    whole = slot_request("slot-1")
    if "profile" in parts:
        whole.ClearField("profile")
    whole.MergeFrom(slots_pb2.SlotRequest(**parts))
    return whole


REQUESTS = [
    ("negative cpu", request(profile=Profile(cpu_milli=-1)), "requests[0].profile.cpu_milli"),
    (
        "negative memory",
        request(profile=Profile(cpu_milli=100, managed_memory_bytes=-5)),
        "requests[0].profile.managed_memory_bytes",
    ),
    (
        "more than any host could have",
        request(profile=Profile(cpu_milli=2**62)),
        "requests[0].profile.cpu_milli",
    ),
    (
        "a sum that overflows",
        request(
            profile=Profile(
                cpu_milli=100,
                task_heap_memory_bytes=AMOUNT_MAX,
                network_memory_bytes=AMOUNT_MAX,
            )
        ),
        "requests[0].profile.*_memory_bytes",
    ),
    (
        "a negative countable resource",
        request(profile=Profile(cpu_milli=100, extended={"license-x": -1})),
        "requests[0].profile.extended[license-x]",
    ),
    (
        "a countable resource with a strange name",
        request(profile=Profile(cpu_milli=100, extended={"License X": 1})),
        "requests[0].profile.extended key",
    ),
    (
        "more cpu than an executor can limit",
        request(profile=Profile(cpu_milli=CPU_MILLI_MAX + 1)),
        "requests[0].profile.cpu_milli",
    ),
    (
        "a cap above what an executor can limit",
        request(cpu_limit_milli=CPU_MILLI_MAX + 1),
        "requests[0].cpu_limit_milli",
    ),
    ("a cap below what is booked", request(cpu_limit_milli=10), "requests[0].cpu_limit_milli"),
    (
        "a cap without a profile",
        slots_pb2.SlotRequest(allocation_id="slot-1", cpu_limit_milli=1000),
        "requests[0].cpu_limit_milli",
    ),
    ("negative pids", request(pids_max=-1), "requests[0].pids_max"),
    ("no id", slots_pb2.SlotRequest(), "requests[0].allocation_id"),
    (
        "an id with a control character",
        slots_pb2.SlotRequest(allocation_id="slot\n1"),
        "requests[0].allocation_id",
    ),
    (
        "an id that is too long",
        slots_pb2.SlotRequest(allocation_id="x" * 129),
        "requests[0].allocation_id",
    ),
    (
        "a label with a control character",
        request(required_labels={"zone": "a\x00b"}),
        "requests[0].required_labels[zone]",
    ),
    (
        "a label without a name",
        request(required_labels={"": "a"}),
        "requests[0].required_labels key",
    ),
    ("no port to offer at", request(target_address="host-a"), "requests[0].target_address"),
    ("every interface", request(target_address="0.0.0.0:1"), "requests[0].target_address"),
]


@pytest.mark.parametrize(
    ("wrong", "field"), [pytest.param(w, f, id=name) for name, w, f in REQUESTS]
)
async def test_a_malformed_request_refuses_its_call(
    rm: RunningRm, wrong: slots_pb2.SlotRequest, field: str
) -> None:
    job = await ScriptedJob(rm).register()
    error = await refusal(job.request(wrong, slot_request("slot-2")))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    listed = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
    assert not listed.requests


ITEMS = [
    ("too little cpu", request(profile=Profile(cpu_milli=9, task_heap_memory_bytes=2**23))),
    ("too little memory", request(profile=Profile(cpu_milli=100, task_heap_memory_bytes=1))),
    ("nothing at all, but specified", request(profile=Profile())),
]


@pytest.mark.parametrize("wrong", [pytest.param(w, id=name) for name, w in ITEMS])
async def test_an_item_below_the_minimum_is_refused_alone(
    rm: RunningRm, wrong: slots_pb2.SlotRequest
) -> None:
    job = await ScriptedJob(rm).register()
    bad, good = await job.request(wrong, slot_request("slot-2"))
    assert (bad.id, bad.error.reason) == ("slot-1", Reason.INVALID_ARGUMENT)
    assert not good.HasField("error")


async def test_an_id_twice_in_one_batch_is_refused_the_second_time(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    results = await job.request(
        slot_request("slot-1"), slot_request("slot-2"), slot_request("slot-1", cpu_milli=700)
    )
    assert [each.HasField("error") for each in results] == [False, False, True]
    assert "requests[2].allocation_id" in results[2].error.message
    assert "requests[0].allocation_id" in results[2].error.message


async def test_an_id_with_other_content_or_of_another_job_exists_already(rm: RunningRm) -> None:
    job, stranger = await ScriptedJob(rm).register(), await ScriptedJob(rm).register()
    await job.request(slot_request("slot-1"))
    (same,) = await job.request(slot_request("slot-1"))
    (other,) = await job.request(slot_request("slot-1", cpu_milli=600))
    (foreign,) = await stranger.request(slot_request("slot-1"))
    assert not same.HasField("error")
    assert other.error.reason == foreign.error.reason == Reason.ALREADY_EXISTS
    assert job.job_id not in foreign.error.message


async def test_specified_and_unknown_do_not_mix_in_one_job(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    await job.request(slot_request("slot-1"))
    error = await refusal(
        rm.rm.RequestResource(
            rm_pb2.RequestResourceRequest(
                job_id=job.job_id, requests=[slots_pb2.SlotRequest(allocation_id="slot-2")]
            ),
        )
    )
    assert error.reason is Reason.MIXED_KNOWN_AND_UNKNOWN
    assert "slot-1" in error.message
    assert "slot-2" in error.message


def job_request(**parts: Any) -> rm_pb2.RegisterJobRequest:
    return rm_pb2.RegisterJobRequest(
        **{"job_id": "job-1", "request_id": "r" * 16, "name": "a job", **parts}
    )


CALLS: list[tuple[str, Callable[[RunningRm], Any], str]] = [
    ("a job without id", lambda rm: rm.rm.RegisterJob(job_request(job_id="")), "job_id"),
    (
        "a job without name",
        lambda rm: rm.rm.RegisterJob(job_request(name="")),
        "name",
    ),
    (
        "a job name with an escape sequence",
        lambda rm: rm.rm.RegisterJob(job_request(name="\x1b[31mred")),
        "name",
    ),
    (
        "a request id that can be guessed",
        lambda rm: rm.rm.RegisterJob(job_request(request_id="short")),
        "request_id",
    ),
    (
        "a lease that is too short",
        lambda rm: rm.rm.RegisterJob(job_request(lease=Duration(nanos=1000))),
        "lease",
    ),
    (
        "a lease that is too long",
        lambda rm: rm.rm.RegisterJob(job_request(lease=Duration(seconds=100_000))),
        "lease",
    ),
    (
        "a negative lease",
        lambda rm: rm.rm.RegisterJob(job_request(lease=Duration(seconds=-1))),
        "lease",
    ),
    (
        "a lease of a detached job",
        lambda rm: rm.rm.RegisterJob(job_request(lease=Duration(seconds=9), detached=True)),
        "lease",
    ),
    (
        "an empty batch",
        lambda rm: rm.rm.RequestResource(rm_pb2.RequestResourceRequest(job_id="job-1")),
        "requests",
    ),
    (
        "a batch that is too large",
        lambda rm: rm.rm.CancelRequests(
            rm_pb2.CancelRequestsRequest(job_id="job-1", allocation_ids=["x"] * 10_001)
        ),
        "allocation_ids",
    ),
    (
        "a negative generation",
        lambda rm: rm.rm.ReleaseSlots(
            rm_pb2.ReleaseSlotsRequest(
                job_id="job-1", slots=[rm_pb2.SlotRelease(allocation_id="a", generation=-1)]
            )
        ),
        "slots[0].generation",
    ),
    (
        "a negative grace",
        lambda rm: rm.rm.EndJob(rm_pb2.EndJobRequest(job_id="job-1", grace=Duration(seconds=-1))),
        "grace",
    ),
    (
        "a negative position",
        lambda rm: rm.rm.WatchJob(rm_pb2.WatchJobRequest(job_id="job-1", from_sequence=-1)).read(),
        "from_sequence",
    ),
    (
        "a negative acknowledgement",
        lambda rm: rm.rm.KeepAlive(
            rm_pb2.KeepAliveRequest(job_id="job-1", acknowledged_sequence=-1)
        ),
        "acknowledged_sequence",
    ),
    (
        "too many executors to explain",
        lambda rm: rm.rm.Explain(
            rm_pb2.ExplainRequest(allocation_id="slot-1", max_executors=1_001)
        ),
        "max_executors",
    ),
    (
        "a negative page size",
        lambda rm: rm.cluster.ListJobs(cluster_pb2.ListJobsRequest(page_size=-1)),
        "page_size",
    ),
    (
        "a page token of another list",
        lambda rm: rm.cluster.ListJobs(cluster_pb2.ListJobsRequest(page_token="WyJhIl0=")),
        "page_token",
    ),
    (
        "a page token that is noise",
        lambda rm: rm.cluster.ListSlots(cluster_pb2.ListSlotsRequest(page_token="%%%")),
        "page_token",
    ),
    (
        "a state that nobody knows",
        lambda rm: rm.cluster.ListRequests(
            cluster_pb2.ListRequestsRequest(states=[99])  # type: ignore[list-item]
        ),
        "states[0]",
    ),
    (
        "a beginning of an id that is too short",
        lambda rm: rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest(allocation_ids=["abc"])),
        "allocation_ids[0]",
    ),
    (
        "a wait that is too long",
        lambda rm: rm.cluster.ListEvents(cluster_pb2.ListEventsRequest(wait=Duration(seconds=31))),
        "wait",
    ),
    (
        "a drain reason with a line break",
        lambda rm: rm.cluster.DrainExecutor(
            cluster_pb2.DrainExecutorRequest(executor_id="host-a", reason="a\nb")
        ),
        "reason",
    ),
]


@pytest.mark.parametrize(
    ("call", "field"), [pytest.param(call, field, id=name) for name, call, field in CALLS]
)
async def test_a_malformed_call_names_its_field(
    rm: RunningRm, call: Callable[[RunningRm], Any], field: str
) -> None:
    error = await refusal(call(rm))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


def registration(**parts: Any) -> Callable[[rm_pb2.RegisterExecutorRequest], None]:
    def change(message: rm_pb2.RegisterExecutorRequest) -> None:
        for name, value in parts.items():
            if isinstance(value, (str, int)):
                setattr(message, name, value)
            else:
                message.ClearField(name)  # type: ignore[arg-type]
                getattr(message, name).MergeFrom(value)

    return change


def reported(**parts: Any) -> Callable[[rm_pb2.RegisterExecutorRequest], None]:
    slot = slots_pb2.SlotStatus(
        **{
            "allocation_id": "slot-1",
            "generation": 1,
            "job_id": "job-1",
            "state": slots_pb2.SLOT_STATE_ALLOCATED,
            **parts,
        }
    )
    return registration(report=slots_pb2.SlotReport(report_number=1, slots=[slot]))


EXECUTORS = [
    ("no name", registration(executor_id=""), "executor_id"),
    ("no instance", registration(instance_id=""), "instance_id"),
    ("no address", registration(address=""), "address"),
    ("port 0", registration(address="127.0.0.1:0"), "address"),
    ("nothing to give", registration(total=resources_pb2.ResourceAmounts()), "total"),
    (
        "a negative total",
        registration(total=resources_pb2.ResourceAmounts(cpu_milli=-4)),
        "total.cpu_milli",
    ),
    ("a negative limit", registration(slots_max=-1), "slots_max"),
    ("a malformed cpu list", registration(shared_cpus="0-"), "shared_cpus"),
    (
        "a malformed topology",
        registration(topology=resources_pb2.HostTopology(online_cpus="many")),
        "topology.online_cpus",
    ),
    (
        "more cores than any host has",
        registration(topology=resources_pb2.HostTopology(cores=[resources_pb2.Core()] * 16_385)),
        "topology.cores",
    ),
    (
        "a core with more cpus than any has",
        registration(
            topology=resources_pb2.HostTopology(cores=[resources_pb2.Core(cpus="0," * 90 + "1")])
        ),
        "topology.cores[0].cpus",
    ),
    (
        "more NUMA nodes than the kernel knows",
        registration(
            topology=resources_pb2.HostTopology(numa_nodes=[resources_pb2.NumaNode()] * 1_025)
        ),
        "topology.numa_nodes",
    ),
    ("a malformed shape", registration(provided_as="a shape"), "provided_as"),
    ("a malformed version", registration(protocol_version="one"), "protocol_version"),
    (
        "a report without number",
        registration(report=slots_pb2.SlotReport()),
        "report.report_number",
    ),
    (
        "an epoch that no manager can have had",
        registration(report=slots_pb2.SlotReport(report_number=1, rm_epoch=2**62)),
        "report.rm_epoch",
    ),
    (
        "more cpu than a host can have",
        registration(total=resources_pb2.ResourceAmounts(cpu_milli=CPU_MILLI_MAX + 1)),
        "total.cpu_milli",
    ),
    ("a slot without id", reported(allocation_id=""), "report.slots[0].allocation_id"),
    ("a slot without generation", reported(generation=0), "report.slots[0].generation"),
    ("a negative change", reported(resize_number=-1), "report.slots[0].resize_number"),
    ("a slot that is pending", reported(state=1), "report.slots[0].state"),
    ("a slot in an unknown state", reported(state=77), "report.slots[0].state"),
]


@pytest.mark.parametrize(
    ("change", "field"), [pytest.param(change, field, id=name) for name, change, field in EXECUTORS]
)
async def test_a_malformed_executor_is_not_taken_in(
    rm: RunningRm, change: Callable[[rm_pb2.RegisterExecutorRequest], None], field: str
) -> None:
    message = ScriptedExecutor(rm, address="127.0.0.1:1").registration()
    change(message)
    error = await refusal(rm.rm_as("executor/host-a").RegisterExecutor(message))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    listed = await rm.cluster.ListExecutors(cluster_pb2.ListExecutorsRequest())
    assert not listed.executors


async def test_versions_interoperate_within_one_minor(rm: RunningRm) -> None:
    message = ScriptedExecutor(rm, address="127.0.0.1:1").registration()
    message.software_version = "9.9.9"
    for near in ("1.0", "1.2"):
        message.protocol_version = near
        message.report.report_number += 1
        await rm.rm_as("executor/host-a").RegisterExecutor(message)
    for far in ("1.3", "2.0", "0.9"):
        message.protocol_version = far
        error = await refusal(rm.rm_as("executor/host-a").RegisterExecutor(message))
        assert error.reason is Reason.VERSION_MISMATCH
        newest = "9.9.9" if far in ("1.3", "2.0") else software_version()
        assert "the executor runs finegrain 9.9.9 with protocol" in error.message
        assert f"install finegrain {newest} on the" in error.message


async def test_another_instance_under_the_same_name_is_refused(rm: RunningRm) -> None:
    await rm.rm_as("executor/host-a").RegisterExecutor(
        ScriptedExecutor(rm, address="127.0.0.1:1").registration()
    )
    error = await refusal(
        rm.rm_as("executor/host-a").RegisterExecutor(
            ScriptedExecutor(rm, address="127.0.0.1:2").registration()
        )
    )
    assert error.reason is Reason.INSTANCE_CONFLICT


UNKNOWN: list[tuple[str, Callable[[RunningRm, ScriptedJob], Any], Reason]] = [
    (
        "a job",
        lambda rm, job: rm.rm.KeepAlive(rm_pb2.KeepAliveRequest(job_id="nobody")),
        Reason.JOB_UNKNOWN,
    ),
    (
        "a request to explain",
        lambda rm, job: rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="nothing")),
        Reason.ALLOCATION_UNKNOWN,
    ),
    (
        "an executor",
        lambda rm, job: rm.cluster.GetExecutor(
            cluster_pb2.GetExecutorRequest(executor_id="nowhere")
        ),
        Reason.EXECUTOR_UNKNOWN,
    ),
    (
        "an executor to drain",
        lambda rm, job: rm.cluster.DrainExecutor(
            cluster_pb2.DrainExecutorRequest(executor_id="nowhere")
        ),
        Reason.EXECUTOR_UNKNOWN,
    ),
]


@pytest.mark.parametrize(
    ("call", "reason"), [pytest.param(call, reason, id=name) for name, call, reason in UNKNOWN]
)
async def test_what_is_unknown_is_not_found(
    rm: RunningRm, call: Callable[[RunningRm, ScriptedJob], Any], reason: Reason
) -> None:
    error = await refusal(call(rm, await ScriptedJob(rm).register()))
    assert error.reason is reason


async def test_an_unknown_slot_in_a_batch_is_refused_alone(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    await job.request(slot_request("slot-1"))
    known, unknown = await job.release("slot-1", "slot-9")
    assert not known.HasField("error")
    assert unknown.error.reason == Reason.ALLOCATION_UNKNOWN


async def test_a_job_is_its_owners(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    stranger = rm.rm_as("user/bob")
    error = await refusal(stranger.EndJob(rm_pb2.EndJobRequest(job_id=job.job_id)))
    assert error.reason is Reason.NOT_OWNER
    assert "choose the credentials of the owner" in error.message
    watched = await refusal(stranger.WatchJob(rm_pb2.WatchJobRequest(job_id=job.job_id)).read())
    assert watched.reason is Reason.NOT_OWNER


async def test_a_registration_of_a_known_id_with_another_request_or_content_learns_nothing(
    rm: RunningRm,
) -> None:
    job = await ScriptedJob(rm).register()
    for other in (
        job_request(job_id=job.job_id, request_id="s" * 16),
        job_request(job_id=job.job_id, request_id=job.request_id, name="another"),
    ):
        error = await refusal(rm.rm.RegisterJob(other))
        assert error.reason is Reason.ALREADY_EXISTS
        assert job.request_id not in error.message


@pytest.mark.full
async def test_a_batch_of_the_largest_size_is_served(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    results = await job.request(*(slot_request(f"slot-{n}") for n in range(10_000)))
    assert len(results) == 10_000
    assert not any(each.HasField("error") for each in results)


async def test_a_message_above_the_limit_is_refused_with_the_limit(rm: RunningRm) -> None:
    error = await refusal(rm.rm.EndJob(rm_pb2.EndJobRequest(job_id="x" * 70_000)))
    assert (error.reason, error.details["limit_bytes"]) == (Reason.MESSAGE_TOO_LARGE, "65536")
