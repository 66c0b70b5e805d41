"""Tests of slots with dedicated cpus over real gRPC, including a restart."""

from __future__ import annotations

from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import cpus_pb2 as pb
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    refusal,
    running_rm,
    slot_request,
)

GRANTED, REJECTED = slots_pb2.REQUEST_STATE_GRANTED, slots_pb2.REQUEST_STATE_REJECTED
LSE = pb.CpuPolicy(qos=pb.QOS_CLASS_LSE)
LSR = pb.CpuPolicy(qos=pb.QOS_CLASS_LSR, bind=pb.BIND_POLICY_FULL_PCPUS)


class PinningExecutor(ScriptedExecutor):
    """An executor that announces four cpus for pinned slots."""

    def registration(self) -> rm_pb2.RegisterExecutorRequest:
        message = super().registration()
        message.host_cpus.slot_cpus = "0-3"
        return message


def pinned(allocation_id: str, cpus: int, policy: pb.CpuPolicy = LSR) -> slots_pb2.SlotRequest:
    return slot_request(allocation_id, cpu_milli=1000 * cpus, cpu_policy=policy)


async def test_a_pinned_slot_is_ordered_and_told_with_its_cpus(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, PinningExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(pinned("wide", 2), pinned("narrow", 1, LSE))
        events = await next_events(stream, 2)
        stream.cancel()

        ordered = [one.slot for each in executor.commands for one in each.allocations]
        told = {each.slot.allocation_id: each.slot for each in events}
        listed = (await rm.cluster.ListSlots(cluster_pb2.ListSlotsRequest())).slots
        for slot in ordered:
            assert slot.cpus == slot.assignment.cpus
            assert told[slot.allocation_id].assignment == slot.assignment
        assert {each.allocation_id: each.cpus for each in listed} == {
            "wide": "0-1",
            "narrow": "2",
        }
        assert told["narrow"].assignment.qos == pb.QOS_CLASS_LSE


async def test_requests_show_what_they_want_of_cpus(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        await job.request(pinned("a", 2), slot_request("b"))
        answer = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
        asked = {each.allocation_id: each.request for each in answer.requests}
        assert asked["a"].cpu_policy.bind_strength == pb.STRENGTH_PREFERRED
        assert not asked["b"].HasField("cpu_policy")


async def test_cpus_are_nobody_elses_after_a_restart(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, PinningExecutor(rm) as executor:
        job = await ScriptedJob(rm).register(detached=True)
        stream = job.watch()
        await job.request(pinned("first", 2))
        await next_events(stream, 1)
        stream.cancel()
        slots, instance_id = executor.slots, executor.instance_id
    async with running_rm(tmp_path) as rm:
        after = PinningExecutor(rm, instance_id=instance_id, slots=slots)
        async with after:
            job.rm = rm
            stream = job.watch(2)
            await job.request(pinned("second", 2))
            (event,) = await next_events(stream, 1)
            stream.cancel()
            assert (event.state, event.slot.cpus) == (GRANTED, "2-3")
            listed = (await rm.cluster.ListSlots(cluster_pb2.ListSlotsRequest())).slots
            assert [each.assignment.cpus for each in listed] == ["0-1", "2-3"]
            assert [each.assignment.qos for each in listed] == [pb.QOS_CLASS_LSR] * 2


async def test_members_of_a_range_each_have_cpus_of_their_own(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, PinningExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        asked = pinned("", 1, LSE)
        asked.allocation_id = ""
        many = slots_pb2.RequestRange(range_id="many", count=4, request=asked)
        await rm.rm.RequestResource(rm_pb2.RequestResourceRequest(job_id=job.job_id, ranges=[many]))
        await next_events(stream, 4)
        stream.cancel()
        assert sorted(each.cpus for each in executor.slots.values()) == ["0", "1", "2", "3"]


async def test_what_does_not_go_together_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        part = slot_request("part", cpu_milli=1500, cpu_policy=LSR)
        error = await refusal(job.request(pinned("sound", 1), part))
        assert isinstance(error, InvalidArgument)
        assert error.details["field"] == "requests[1].profile.cpu_milli"
        answer = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest())
        assert not answer.requests


async def test_an_executor_without_cpus_for_slots_is_passed_by(tmp_path: Path) -> None:
    """An executor that announces no cpus has an older version, which could not execute such
    commands.
    """
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("shared"))
        await next_events(stream, 1)
        results = await job.request(pinned("own", 1))
        stream.cancel()
        assert list(executor.slots) == ["shared"]
        assert results[0].error.reason == "INFEASIBLE_NEVER"
