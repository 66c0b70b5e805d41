"""Tests a whole conversation over real gRPC: register, request, carve, offer, release."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.protobuf.duration_pb2 import Duration

from finegrain.errors import Reason
from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from resource_manager.engine.model.entities import ClusterEvent
from resource_manager.service.cluster_service import ClusterServicer
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    next_events,
    refusal,
    running_rm,
    sequences,
    slot_request,
)

_Answer = TypeVar("_Answer", te_pb2.AllocateSlotsResponse, te_pb2.FreeSlotsResponse)


class ShortExecutor(ScriptedExecutor):
    """Answers as an executor does that the resource manager knows well; see `as_ordered`."""

    with_results = False

    def _shortened(self, request: Any, answer: _Answer) -> _Answer:
        assert request.known_report_number == self.report_number - 1
        report = answer.report
        report.as_ordered, report.base_report_number = True, request.known_report_number
        report.ClearField("slots")
        if not self.with_results:
            answer.ClearField("results")
        return answer

    async def AllocateSlots(self, request: Any, context: Any) -> te_pb2.AllocateSlotsResponse:
        answer = self._shortened(request, await super().AllocateSlots(request, context))
        answer.report.slot_isolation.cpu = "quota"
        return answer

    async def FreeSlots(self, request: Any, context: Any) -> te_pb2.FreeSlotsResponse:
        return self._shortened(request, await super().FreeSlots(request, context))


GRANTED = slots_pb2.REQUEST_STATE_GRANTED
RELEASED = slots_pb2.REQUEST_STATE_RELEASED


async def test_a_slot_is_asked_for_carved_offered_and_given_back(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        snapshot = await stream.read()
        assert list(snapshot.snapshot.requests) == []
        (result,) = await job.request(slot_request("slot-1", cpu_milli=1500))
        assert not result.HasField("error")
        (offer,) = await next_events(stream, 1)
        assert (offer.sequence, offer.allocation_id, offer.state) == (1, "slot-1", GRANTED)
        assert offer.slot.executor_address == executor.address
        assert offer.slot.profile.cpu_milli == 1500
        (order,) = executor.commands[0].allocations
        assert (order.slot.generation, executor.commands[0].command_number) == (1, 1)
        await job.release("slot-1")
        (released,) = await next_events(stream, 1)
        assert released.state == RELEASED
        # This event only names the slot, because the grant has described it.
        assert released.slot == slots_pb2.SlotStatus(
            allocation_id="slot-1",
            generation=1,
            job_id=job.job_id,
            executor_id=offer.slot.executor_id,
            executor_address=executor.address,
        )
        await eventually(lambda: not executor.slots)

        async def free() -> bool:
            cluster = await rm.cluster.GetCluster(cluster_pb2.GetClusterRequest())
            return bool(cluster.available.cpu_milli == 4000 and cluster.slots == 0)

        await eventually(free)
        stream.cancel()


async def test_what_does_not_fit_waits_and_is_served_when_capacity_returns(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("first", cpu_milli=3000))
        await next_events(stream, 1)
        await job.request(slot_request("second", cpu_milli=3000))
        explained = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="second"))
        assert explained.primary_reason == Reason.WAITING_CAPACITY
        assert [slot.allocation_id for slot in explained.blocked_by] == ["first"]
        await job.release("first")
        events = await next_events(stream, 2)
        assert (events[-1].allocation_id, events[-1].state) == ("second", GRANTED)
        stream.cancel()


async def test_a_refused_item_goes_back_in_line_and_is_granted_elsewhere(tmp_path: Path) -> None:
    def refuse(_slot: slots_pb2.SlotStatus) -> str:
        return Reason.INSUFFICIENT_RESOURCES

    async with (
        running_rm(tmp_path) as rm,
        ScriptedExecutor(rm, "host-a", refuse=refuse) as refusing,
    ):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await eventually(lambda: refusing.commands)
        async with ScriptedExecutor(rm, "host-b"):
            (offer,) = await next_events(stream, 1)
        assert (offer.slot.executor_id, offer.slot.generation) == ("host-b", 2)
        stream.cancel()


async def test_an_answer_that_got_lost_is_asked_for_again_with_the_same_number(
    tmp_path: Path,
) -> None:
    lost: list[int] = []

    def lose_the_first(request: object) -> None:
        if not lost:
            lost.append(request.command_number)  # type: ignore[attr-defined]
            raise RuntimeError("the answer is lost")

    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        executor.on_command = lose_the_first
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        (offer,) = await next_events(stream, 1)
        assert offer.slot.generation == 1
        assert [each.command_number for each in executor.commands] == [1, 1]
        stream.cancel()


async def test_an_executor_answers_in_short(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ShortExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        for name in "slot-1", "slot-2":
            await job.request(slot_request(name))
            (offer,) = await next_events(stream, 1)
            assert (offer.allocation_id, offer.slot.isolation.cpu) == (name, "quota")
        await job.release("slot-1", "slot-2")

        async def free() -> bool:
            cluster = await rm.cluster.GetCluster(cluster_pb2.GetClusterRequest())
            return bool(cluster.available.cpu_milli == 4000 and cluster.slots == 0)

        await eventually(free)
        stream.cancel()


async def test_an_answer_in_short_with_results_is_refused(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        executor = ShortExecutor(rm)
        executor.with_results = True
        await executor.open_port()
        await executor.register()
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))

        async def distrusted() -> bool:
            return (await executor.send_report()).register_again

        await eventually(distrusted)
        await executor.register()
        (offer,) = await next_events(stream, 1)
        assert (offer.allocation_id, offer.state) == ("slot-1", GRANTED)
        stream.cancel()
        await executor.close_port()


async def test_unknown_requests_get_the_default_slot_of_their_executor(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slots_pb2.SlotRequest(allocation_id="slot-1"))
        (offer,) = await next_events(stream, 1)
        assert (offer.slot.profile.cpu_milli, offer.slot.memory_bytes) == (1000, GIB)
        stream.cancel()


async def test_a_repeated_registration_changes_nothing(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        await ScriptedJob(rm, job.job_id, job.request_id).register()
        jobs = (await rm.cluster.ListJobs(cluster_pb2.ListJobsRequest())).jobs
        assert [(each.job_id, each.owner) for each in jobs] == [(job.job_id, "user/alice")]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("finegrain.db*"))
    assert job.request_id.encode() not in stored


async def test_operators_drain_terminate_and_see_what_happened(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await next_events(stream, 1)
        drained = await rm.cluster.DrainExecutor(
            cluster_pb2.DrainExecutorRequest(executor_id="host-a", reason="new disk")
        )
        assert (drained.executor.draining, drained.executor.drain_reason) == (True, "new disk")
        shown = await rm.cluster.GetExecutor(cluster_pb2.GetExecutorRequest(executor_id="host-a"))
        assert [slot.allocation_id for slot in shown.slots] == ["slot-1"]
        assert shown.executor.topology.online_cpus == "0-3"
        await rm.cluster.TerminateJob(cluster_pb2.TerminateJobRequest(job_id=job.job_id))
        await eventually(lambda: not executor.slots)
        events = await rm.cluster_as_user.ListEvents(cluster_pb2.ListEventsRequest())
        kinds = [event.kind for event in events.events]
        assert kinds[0] == "executor_registered"
        assert "executor_drained" in kinds
        assert [event.sequence for event in events.events] == list(range(1, len(kinds) + 1))
        jobs = await rm.cluster.ListJobs(cluster_pb2.ListJobsRequest(include_ended=True))
        assert [(each.ended, each.end_reason) for each in jobs.jobs] == [(True, "TERMINATED")]
        stream.cancel()


async def test_whoever_waits_for_events_is_woken_by_the_next_one(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        ask = cluster_pb2.ListEventsRequest(from_sequence=1)
        ask.wait.seconds = 30
        waiting = asyncio.ensure_future(rm.cluster.ListEvents(ask))
        await ScriptedJob(rm).register()
        async with asyncio.timeout(PATIENCE_S):
            answer = await waiting
        assert [event.kind for event in answer.events] == ["job_registered"]
        assert answer.next_sequence == 2


async def test_an_event_that_comes_while_the_log_is_read_wakes_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_rm(tmp_path) as rm:
        read, reads = ClusterServicer._events, 0

        async def overtaken(servicer: ClusterServicer, *what: Any) -> list[ClusterEvent]:
            nonlocal reads
            reads += 1
            found = await read(servicer, *what)
            if reads == 1:
                await ScriptedJob(rm).register()
            return found

        monkeypatch.setattr(ClusterServicer, "_events", overtaken)
        ask = cluster_pb2.ListEventsRequest(from_sequence=1)
        ask.wait.seconds = 30
        async with asyncio.timeout(PATIENCE_S):
            answer = await rm.cluster.ListEvents(ask)
        assert [event.kind for event in answer.events] == ["job_registered"]


async def test_an_executor_says_as_what_it_was_started(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        executor = ScriptedExecutor(rm, address="127.0.0.1:1")
        announced = executor.registration()
        announced.provided_as = "small"
        await executor.stub.RegisterExecutor(announced)
        listed = await rm.cluster.ListExecutors(cluster_pb2.ListExecutorsRequest())
        assert [each.provided_as for each in listed.executors] == ["small"]


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        await job.request(*(slot_request(f"slot-{n}") for n in range(5)))
        found: list[str] = []
        token = ""
        while True:
            page = await rm.cluster.ListRequests(
                cluster_pb2.ListRequestsRequest(page_size=2, page_token=token)
            )
            found += [each.allocation_id for each in page.requests]
            token = page.next_page_token
            if not token:
                break
        assert found == [f"slot-{n}" for n in range(5)]
        by_prefix = await rm.cluster.ListRequests(
            cluster_pb2.ListRequestsRequest(allocation_ids=["slot-3", "slot-4"])
        )
        assert [each.allocation_id for each in by_prefix.requests] == ["slot-3", "slot-4"]
        await job.request(slot_request("a"))
        by_id = await rm.cluster.ListRequests(cluster_pb2.ListRequestsRequest(allocation_ids=["a"]))
        assert [each.allocation_id for each in by_id.requests] == ["a"]


async def test_an_open_watch_stream_keeps_the_lease_and_silence_ends_the_job(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path) as rm:
        job = ScriptedJob(rm)
        await job.register(lease=Duration(seconds=1))
        stream = job.watch()
        signs = 0
        async with asyncio.timeout(PATIENCE_S):
            while signs < 8:  # more than two leases long
                signs += not (await stream.read()).HasField("snapshot")
        await job.request(slot_request("slot-1"))
        stream.cancel()

        async def ended() -> bool:
            jobs = await rm.cluster.ListJobs(cluster_pb2.ListJobsRequest(include_ended=True))
            return [each.end_reason for each in jobs.jobs] == ["LEASE_EXPIRED"]

        await eventually(ended)


async def test_a_stream_of_an_ended_job_says_everything_and_then_that_it_is_over(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        await job.request(slot_request("slot-1"))
        stream = job.watch()
        assert len((await stream.read()).snapshot.requests) == 1
        await rm.rm.EndJob(rm_pb2.EndJobRequest(job_id=job.job_id))
        (event,) = await next_events(stream, 1)
        assert (sequences([event]), event.state) == ([1], slots_pb2.REQUEST_STATE_CANCELLED)
        async with asyncio.timeout(PATIENCE_S):
            error = await refusal(stream.read())
        assert error.reason is Reason.JOB_ENDED
