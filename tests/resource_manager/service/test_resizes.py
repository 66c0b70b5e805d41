"""Tests of resizes over real gRPC: requested, ordered, executed, published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from finegrain.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from finegrain.resources import GIB, MIB
from finegrain.v1 import cluster_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
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


class Granted(NamedTuple):
    """The participants; the watch stream is positioned after the grants."""

    rm: RunningRm
    executor: ScriptedExecutor
    job: ScriptedJob
    stream: Any


GRANTED = slots_pb2.REQUEST_STATE_GRANTED
WAITING = slots_pb2.SLOT_RESIZE_STATE_WAITING
ORDERED = slots_pb2.SLOT_RESIZE_STATE_ORDERED


@asynccontextmanager
async def granted(state_dir: Path, *requests: slots_pb2.SlotRequest) -> AsyncIterator[Granted]:
    """Runs a job that has these slots on one executor of 4 cpus."""
    async with running_rm(state_dir) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(*requests)
        await next_events(stream, len(requests))
        yield Granted(rm, executor, job, stream)
        stream.cancel()


async def test_a_slot_grows_and_shrinks_as_its_job_master_wishes(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1")) as (rm, executor, job, stream):
        asked = await job.resize("slot-1", profile=profile(1500, GIB), cpu_limit_milli=2000)
        assert (asked.profile.cpu_milli, asked.resize_number) == (500, 1)
        assert [(each.resize_number, each.state) for each in asked.resizes] == [(1, ORDERED)]
        assert asked.resizes[0].memory_bytes == GIB
        assert asked.executor_address == executor.address
        (grown,) = await next_events(stream, 1)
        assert (grown.state, grown.reason) == (GRANTED, Reason.RESIZED)
        assert (grown.slot.generation, grown.slot.resize_number) == (1, 1)
        assert (grown.slot.profile.cpu_milli, grown.slot.memory_bytes) == (1500, GIB)
        assert grown.slot.cpu_limit_milli == 2000
        assert not grown.slot.resizes
        command = executor.commands[-1]
        assert (command.resize_number, command.generation) == (1, 1)
        assert (command.memory_bytes, command.cpu_limit_milli) == (GIB, 2000)
        await job.resize("slot-1", profile=profile(100), resize_number=2)
        (shrunk,) = await next_events(stream, 1)
        assert shrunk.slot.profile.cpu_milli == 100
        sums = await rm.cluster.GetCluster(cluster_pb2.GetClusterRequest())
        assert sums.allocated.cpu_milli == 100
        listed = await rm.cluster.ListSlots(cluster_pb2.ListSlotsRequest())
        assert [each.resize_number for each in listed.slots] == [2]


async def test_growth_without_room_waits_and_is_explained(tmp_path: Path) -> None:
    both = slot_request("slot-1", cpu_milli=1000), slot_request("slot-2", cpu_milli=3000)
    async with granted(tmp_path, *both) as (rm, _executor, job, stream):
        asked = await job.resize("slot-1", profile=profile(2500))
        assert [(each.resize_number, each.state) for each in asked.resizes] == [(1, WAITING)]
        explained = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="slot-1"))
        (why,) = explained.resizes
        assert (why.resize.resize_number, why.resize.state) == (1, WAITING)
        assert [(each.dimension, each.asked, each.free) for each in why.dimensions] == [
            ("cpu_milli", 1500, 0)
        ]
        assert "slot-2" in why.summary
        listed = await rm.cluster.ListSlots(cluster_pb2.ListSlotsRequest())
        (one,) = [each for each in listed.slots if each.allocation_id == "slot-1"]
        assert one.resizes[0].message == why.summary
        begun = job.watch()
        shown = (await begun.read()).snapshot.requests
        begun.cancel()
        assert {each.allocation_id: len(each.slot.resizes) for each in shown} == {
            "slot-1": 1,
            "slot-2": 0,
        }
        await job.release("slot-2")
        _, grown = await next_events(stream, 2)
        assert (grown.allocation_id, grown.reason) == ("slot-1", Reason.RESIZED)
        assert grown.slot.profile.cpu_milli == 2500


async def test_a_size_below_what_is_in_use_is_refused_and_the_job_is_told(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1")) as (rm, executor, job, stream):
        executor.refuse_resize = lambda _request: Reason.BELOW_USE
        await job.resize("slot-1", profile=profile(500, 8 * MIB))
        (told,) = await next_events(stream, 1)
        assert (told.state, told.reason) == (GRANTED, Reason.RESIZE_REFUSED)
        assert "refused by the script" in told.message
        assert (told.slot.memory_bytes, told.slot.resize_number) == (64 * MIB, 1)
        assert not told.slot.resizes
        events = await rm.cluster.ListEvents(
            cluster_pb2.ListEventsRequest(subject_id="slot-1", from_sequence=1)
        )
        kinds = [each.kind for each in events.events]
        assert kinds[-2:] == ["slot_resize_asked", "slot_resize_refused"]


async def test_who_waits_for_less_use_is_tried_again(tmp_path: Path) -> None:
    refused: list[int] = []

    def refuse_once(request: Any) -> str:
        refused.append(request.resize_number)
        return Reason.BELOW_USE if len(refused) == 1 else ""

    async with granted(tmp_path, slot_request("slot-1")) as (_rm, executor, job, stream):
        executor.refuse_resize = refuse_once
        wait = rm_pb2.WHEN_IN_USE_WAIT
        await job.resize("slot-1", profile=profile(500, 8 * MIB), when_in_use=wait)
        (told,) = await next_events(stream, 1)
        assert (told.reason, told.slot.memory_bytes) == (Reason.RESIZED, 8 * MIB)
        assert refused == [1, 1]


async def test_an_answer_that_got_lost_is_asked_for_again(tmp_path: Path) -> None:
    lost: list[int] = []

    def lose_the_first_resize(request: Any) -> None:
        if hasattr(request, "resize_number") and not lost:
            lost.append(request.command_number)
            raise RuntimeError("the answer is lost")

    async with granted(tmp_path, slot_request("slot-1")) as (_rm, executor, job, stream):
        executor.on_command = lose_the_first_resize
        await job.resize("slot-1", profile=profile(1000))
        (told,) = await next_events(stream, 1)
        assert told.reason == Reason.RESIZED
        assert [each.command_number for each in executor.commands] == [1, 2, 2]


async def test_the_same_call_again_is_the_same_change(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1")) as (_rm, executor, job, stream):
        same = {"profile": profile(1000), "resize_number": 1}
        first, again = await asyncio.gather(
            job.resize("slot-1", **same), job.resize("slot-1", **same)
        )
        assert first.resize_number == again.resize_number == 1
        await next_events(stream, 1)
        error = await refusal(job.resize("slot-1", profile=profile(700), resize_number=1))
        assert error.reason is Reason.STALE_RESIZE
        assert error.details["resize_number"] == "1"
        assert len(executor.commands) == 2


async def test_operators_resize_anybodys_slot(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1")) as (rm, _executor, _job, stream):
        call = cluster_pb2.ClusterServiceResizeSlotRequest(
            allocation_id="slot-1", profile=profile(1000)
        )
        denied = await refusal(rm.cluster_as_user.ResizeSlot(call))
        assert denied.reason is Reason.ROLE_MISSING
        answer = await rm.cluster.ResizeSlot(call)
        assert answer.slot.resize_number == 1
        (told,) = await next_events(stream, 1)
        assert (told.reason, told.slot.profile.cpu_milli) == (Reason.RESIZED, 1000)


async def test_whoever_waits_for_a_change_hears_that_another_took_its_place(tmp_path: Path) -> None:
    both = slot_request("slot-1", cpu_milli=1000), slot_request("slot-2", cpu_milli=3000)
    async with granted(tmp_path, *both) as (rm, _executor, job, stream):
        await job.resize("slot-1", profile=profile(2500))
        answer = await rm.cluster.ResizeSlot(
            cluster_pb2.ClusterServiceResizeSlotRequest(
                allocation_id="slot-1", profile=profile(1000)
            )
        )
        assert (answer.slot.resize_number, len(answer.slot.resizes)) == (2, 0)
        (told,) = await next_events(stream, 1)
        assert (told.reason, told.slot.resize_number) == (Reason.RESIZE_REFUSED, 2)
        assert "withdrawn by an administrator" in told.message
        assert not told.slot.resizes
        await job.resize("slot-1", profile=profile(2500))
        await job.resize("slot-1", profile=profile(2600))
        (told,) = await next_events(stream, 1)
        assert told.reason == Reason.RESIZE_REFUSED
        assert "requested resize 4 instead" in told.message
        assert [each.resize_number for each in told.slot.resizes] == [4]


async def test_a_refusal_is_told_also_if_another_wish_stands_behind(
    tmp_path: Path,
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hold(request: Any) -> None:
        if hasattr(request, "resize_number"):
            asked.set()
            await go_on.wait()

    async with granted(tmp_path, slot_request("slot-1")) as (_rm, executor, job, stream):
        executor.refuse_resize = lambda _request: Reason.BELOW_USE
        executor.on_command = hold
        await job.resize("slot-1", profile=profile(500, 8 * MIB))
        await asked.wait()
        behind = await job.resize("slot-1", profile=profile(500, 64 * MIB))
        assert [each.state for each in behind.resizes] == [ORDERED, WAITING]
        go_on.set()
        refused, done = await next_events(stream, 2)
        assert (refused.reason, done.reason) == (Reason.RESIZE_REFUSED, Reason.RESIZED)
        assert "resize 1" in refused.message
        assert [each.resize_number for each in refused.slot.resizes] == [2]
        assert (done.slot.memory_bytes, len(done.slot.resizes)) == (64 * MIB, 0)


class OlderExecutor(ScriptedExecutor):
    """An executor that does not know resizes, and checks the numbers of commands."""

    async def ResizeSlot(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")

    async def _taken(self, request: Any) -> None:
        if request.command_number != self.command_number + 1:
            raise FailedPrecondition("not the next", reason=Reason.COMMAND_OUT_OF_ORDER)
        await super()._taken(request)


async def test_an_executor_that_cannot_change_sizes_goes_on_with_all_else(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, OlderExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await next_events(stream, 1)
        await job.resize("slot-1", profile=profile(1000))
        (told,) = await next_events(stream, 1)
        assert told.reason == Reason.RESIZE_REFUSED
        assert "does not support resizing" in told.message
        assert not told.slot.resizes
        await job.request(slot_request("slot-2"))
        await eventually(executor.register_if_asked)
        (granted,) = await next_events(stream, 1)
        assert (granted.allocation_id, granted.state) == ("slot-2", GRANTED)
        assert set(executor.slots) == {"slot-1", "slot-2"}
        stream.cancel()


Profile = resources_pb2.ResourceProfile
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no id", {"allocation_id": "", "profile": profile()}, "allocation_id"),
    ("a negative generation", {"generation": -1, "profile": profile()}, "generation"),
    ("a negative number", {"resize_number": -1, "profile": profile()}, "resize_number"),
    ("no profile", {}, "profile"),
    ("a negative amount", {"profile": Profile(cpu_milli=-5)}, "profile.cpu_milli"),
    ("a cap below", {"profile": profile(500), "cpu_limit_milli": 400}, "cpu_limit_milli"),
    ("a negative cap", {"profile": profile(500), "cpu_limit_milli": -1}, "cpu_limit_milli"),
    ("an unknown wish", {"profile": profile(), "when_in_use": 9}, "when_in_use"),
    ("too little cpu", {"profile": profile(1)}, "profile.cpu_milli"),
    ("too little memory", {"profile": profile(100, 1)}, "profile.memory_bytes"),
]


async def test_a_malformed_wish_names_its_field(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1")) as (rm, executor, job, _stream):
        for name, parts, field in WRONG:
            wish: dict[str, Any] = {"allocation_id": "slot-1", **parts}
            for call in (
                job.resize(**wish),
                rm.cluster.ResizeSlot(cluster_pb2.ClusterServiceResizeSlotRequest(**wish)),
            ):
                error = await refusal(call)
                assert isinstance(error, InvalidArgument), name
                assert error.field == field, name
                assert error.details["expected"], name
        assert len(executor.commands) == 1


async def test_what_cannot_be_resized_says_why(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1", cpu_milli=3000)) as (
        rm,
        _executor,
        job,
        _stream,
    ):
        await job.request(slot_request("waits", cpu_milli=2000))
        unknown = await refusal(job.resize("nothing", profile=profile()))
        assert isinstance(unknown, NotFound)
        assert unknown.reason is Reason.ALLOCATION_UNKNOWN
        stranger = await ScriptedJob(rm).register()
        foreign = await refusal(stranger.resize("slot-1", profile=profile()))
        assert foreign.reason is Reason.ALLOCATION_UNKNOWN
        assert job.job_id not in foreign.message
        early = await refusal(job.resize("waits", profile=profile()))
        assert early.reason is Reason.SLOT_NOT_READY
        stale = await refusal(job.resize("slot-1", profile=profile(), generation=2))
        assert stale.reason is Reason.STALE_GENERATION
        large = await refusal(job.resize("slot-1", profile=profile(4001)))
        assert isinstance(large, FailedPrecondition)
        assert large.reason is Reason.INFEASIBLE_NEVER
        assert (large.details["cpu_milli_asked"], large.details["cpu_milli_total"]) == (
            "4001",
            "4000",
        )


async def test_a_confirmed_size_outlives_the_resource_manager(tmp_path: Path) -> None:
    async with granted(tmp_path, slot_request("slot-1")) as (_rm, _executor, job, stream):
        await job.resize("slot-1", profile=profile(1000))
        await next_events(stream, 1)
    async with running_rm(tmp_path) as again:
        begun = job.watch(rm=again)
        (shown,) = (await begun.read()).snapshot.requests
        begun.cancel()
        assert (shown.slot.profile.cpu_milli, shown.slot.resize_number) == (1000, 1)
        assert shown.request.profile.cpu_milli == 500
