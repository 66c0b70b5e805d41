"""Tests that a job master that floods the RM blocks no other, and must itself retry later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from finegrain.errors import InvalidArgument, Reason, ResourceExhausted
from finegrain.ids import new_id
from finegrain.resources import MIB
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import cluster_pb2, slots_pb2
from resource_manager.service.admission import JobAdmission, JobLimits, Kind
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    next_events,
    profile,
    refusal,
    running_rm,
    slot_request,
)

CALL_ITEMS = 2_500  # three parts
FLOOD_ITEMS = 1_100  # two parts


def too_large(count: int) -> list[slots_pb2.SlotRequest]:
    """Returns requests that fit nowhere and wait."""
    return [
        slots_pb2.SlotRequest(
            allocation_id=new_id(), profile=profile(10**8, 64 * MIB), allow_pending=True
        )
        for _ in range(count)
    ]


class Flood:
    """Sends large calls in parallel until it ends, and never reads its stream."""

    def __init__(self, job: ScriptedJob, *, calls: int) -> None:
        self._job = job
        self._calls = calls
        self.accepted = 0
        self.told_to_wait = 0
        self.at_work = asyncio.Event()  # set when much was accepted, and some calls had to wait

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Flood]:
        stream = self._job.watch()
        tasks = [asyncio.create_task(self._send()) for _ in range(self._calls)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            stream.cancel()

    async def _send(self) -> None:
        requests = too_large(FLOOD_ITEMS)
        while True:
            if self.accepted >= 2 * FLOOD_ITEMS and self.told_to_wait:
                self.at_work.set()
            try:
                results = await self._job.request(*requests)
            except grpc.RpcError as failure:
                error = error_from_rpc(failure)
                assert isinstance(error, ResourceExhausted), error
                assert error.retry_after_s is not None
                self.told_to_wait += 1
                await asyncio.sleep(error.retry_after_s)
            else:
                assert not any(each.HasField("error") for each in results)
                self.accepted += len(results)
                requests = too_large(FLOOD_ITEMS)


@pytest.mark.full
async def test_another_jobs_slots_come_and_go_during_a_flood(tmp_path: Path) -> None:
    async with (
        running_rm(tmp_path, job_calls_max=3, job_requests_max=20_000) as rm,
        ScriptedExecutor(rm) as executor,
        Flood(await ScriptedJob(rm).register(), calls=5).running() as flood,
    ):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        async with asyncio.timeout(4 * PATIENCE_S):
            await flood.at_work.wait()
            for _ in range(3):
                (result,) = await job.request(request := slot_request())
                assert not result.HasField("error")
                (granted,) = await next_events(stream, 1)
                assert granted.allocation_id == request.allocation_id
                assert not (await executor.send_report()).register_again
                await job.release(request.allocation_id)
                await next_events(stream, 1)
        stream.cancel()


async def test_a_call_in_parts_is_answered_in_order_and_refused_as_a_whole(tmp_path: Path) -> None:
    async with running_rm(tmp_path, job_requests_max=CALL_ITEMS + 1) as rm:
        job = await ScriptedJob(rm).register()
        requests = too_large(CALL_ITEMS)
        requests[1_700].allocation_id = requests[3].allocation_id  # across a boundary between parts
        results = await job.request(*requests)
        assert [each.id for each in results] == [each.allocation_id for each in requests]
        assert [at for at, each in enumerate(results) if each.HasField("error")] == [1_700]
        again = await job.request(*requests)
        assert [each.HasField("error") for each in again] == [
            each.HasField("error") for each in results
        ]

        another = await ScriptedJob(rm).register()
        error = await refusal(another.request(*too_large(CALL_ITEMS + 2)))
        assert isinstance(error, ResourceExhausted)
        assert error.details["asked"] == str(CALL_ITEMS + 2)
        mixed = too_large(CALL_ITEMS)
        mixed[-1].ClearField("profile")
        error = await refusal(another.request(*mixed))
        assert isinstance(error, InvalidArgument)
        assert error.reason is Reason.MIXED_KNOWN_AND_UNKNOWN
        assert await _live(rm, another) == 0  # none of its parts was accepted

        ids = [each.allocation_id for each in requests if each is not requests[1_700]]
        released = await job.release(*ids)
        assert [each.id for each in released] == ids
        assert await _live(rm, job) == 0


async def test_a_job_may_wait_with_so_many_different_profiles_and_no_more(tmp_path: Path) -> None:
    async with (
        running_rm(tmp_path, job_scheduling_classes_max=CALL_ITEMS - 100) as rm,
        ScriptedExecutor(rm),
    ):
        job = await ScriptedJob(rm).register()
        requests = too_large(CALL_ITEMS)
        for number, request in enumerate(requests):
            request.profile.CopyFrom(profile(10**8 - number, 64 * MIB))
        error = await refusal(job.request(*requests))
        assert isinstance(error, ResourceExhausted)
        assert error.details["asked"] == str(CALL_ITEMS)
        assert error.retry_after_s is not None
        assert await _live(rm, job) == 0
        await job.request(*requests[100:])
        another = await ScriptedJob(rm).register()
        stream = another.watch()
        await another.request(request := slot_request())
        (granted,) = await next_events(stream, 1)
        assert granted.allocation_id == request.allocation_id
        stream.cancel()


async def _live(rm: RunningRm, job: ScriptedJob) -> int:
    jobs = (await rm.cluster.ListJobs(cluster_pb2.ListJobsRequest())).jobs
    (pending,) = [each.pending_requests for each in jobs if each.job_id == job.job_id]
    return int(pending)


async def test_all_jobs_together_may_have_so_many_requests(tmp_path: Path) -> None:
    async with running_rm(tmp_path, requests_max=5) as rm:
        one, other = await ScriptedJob(rm).register(), await ScriptedJob(rm).register()
        mine = too_large(3)
        await one.request(*mine)
        error = await refusal(other.request(*too_large(3)))
        assert isinstance(error, ResourceExhausted)
        assert (error.details["live"], error.details["requests_max"]) == ("3", "5")
        assert error.retry_after_s is not None
        await one.release(mine[0].allocation_id)
        assert not (await other.request(*too_large(3)))[0].HasField("error")


async def test_a_job_has_so_many_streams_open(tmp_path: Path) -> None:
    async with running_rm(tmp_path, job_streams_max=2) as rm, asyncio.timeout(PATIENCE_S):
        job, other = await ScriptedJob(rm).register(), await ScriptedJob(rm).register()
        streams = [job.watch(), job.watch()]
        for stream in streams:
            await stream.read()
        error = await refusal(job.watch().read())
        assert isinstance(error, ResourceExhausted)
        assert error.retry_after_s is not None
        assert "2 watch streams in progress" in error.message
        await other.watch().read()
        streams[0].cancel()
        await eventually(lambda: _opens(job))


async def _opens(job: ScriptedJob) -> bool:
    try:
        await job.watch().read()
    except grpc.RpcError as error:
        return error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
    return True


def test_calls_and_signs_of_life_are_counted_apart_and_by_job() -> None:
    admission = JobAdmission(JobLimits(calls=2, keep_alives=1, retry_s=0.7))
    with admission.entered(Kind.CALL, "job-1"), admission.entered(Kind.CALL, "job-1"):
        with (
            pytest.raises(ResourceExhausted, match="2 calls in progress") as caught,
            admission.entered(Kind.CALL, "job-1"),
        ):
            pytest.fail("was let in")
        assert caught.value.retry_after_s == 0.7
        with (
            admission.entered(Kind.CALL, "job-2"),
            admission.entered(Kind.KEEP_ALIVE, "job-1"),
            pytest.raises(ResourceExhausted, match="1 keep-alives in progress"),
            admission.entered(Kind.KEEP_ALIVE, "job-1"),
        ):
            pytest.fail("was let in")
    for _ in range(3):
        with admission.entered(Kind.CALL, "job-1"):
            pass


async def test_one_large_call_of_a_job_is_prepared_at_a_time() -> None:
    """This is so even if a call arrives exactly when another call has ended and a third one is
    about to continue.
    """
    admission = JobAdmission()
    inside: list[int] = []
    most = 0

    async def prepare(number: int) -> None:
        nonlocal most
        async with admission.preparing("job"):
            inside.append(number)
            most = max(most, len(inside))
            await asyncio.sleep(0)
            inside.remove(number)
        if number:
            await prepare(number - 1)  # at once, before any waiter is woken

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(prepare(5) for _ in range(3)))
    assert most == 1
    assert not admission._preparing
