"""Tests of reuse, and of explained reservations and order of service, over real gRPC."""

from __future__ import annotations

from pathlib import Path

from finegrain.errors import InvalidArgument, Reason
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.model.settings import Fairness
from tests.support.rm_service import (
    USER,
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

RELEASED = slots_pb2.REQUEST_STATE_RELEASED
GRANTED = slots_pb2.REQUEST_STATE_GRANTED


def threads(*names: str) -> list[slots_pb2.SlotRequest]:
    return [slot_request(name, cpu_milli=1_000) for name in names]


async def explained(rm: RunningRm, allocation_id: str) -> rm_pb2.ExplainResponse:
    answer: rm_pb2.ExplainResponse
    answer = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id=allocation_id))
    return answer


async def test_a_slot_goes_on_with_the_next_thread_unless_somebody_else_comes_first(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(*threads("t0", "t1", "t2", "t3", "t4", "t5", "t6"))
        await next_events(stream, 4)
        (agreed,) = await job.reuse(("t0", 1, "t4"))
        assert (agreed.id, agreed.HasField("error")) == ("t0", False)
        (told,) = await next_events(stream, 1)
        assert (told.allocation_id, told.state, told.reason) == ("t4", RELEASED, Reason.REUSED)
        newcomer = await ScriptedJob(rm).register()
        theirs = newcomer.watch()
        await newcomer.request(*threads("n0"))
        (refused,) = await job.reuse(("t1", 1, "t5"))
        assert refused.error.reason == Reason.FAIR_SHARE
        (given_back,) = await next_events(stream, 1)
        assert (given_back.allocation_id, given_back.reason) == ("t1", Reason.FAIR_SHARE)
        (served,) = await next_events(theirs, 1)
        assert (served.allocation_id, served.state) == ("n0", GRANTED)
        assert set(executor.slots) == {"t0", "t2", "t3", "n0"}
        stream.cancel()
        theirs.cancel()
    # A new leader gives the same answers.
    async with running_rm(tmp_path) as rm:
        job.rm = rm
        assert await job.reuse(("t0", 1, "t4")) == [agreed]
        assert await job.reuse(("t1", 1, "t5")) == [refused]


async def test_members_of_ranges_are_reused_and_reused_for(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        asked = slots_pb2.SlotRequest(profile=profile(1_000))
        threads = slots_pb2.RequestRange(range_id="r", count=1_000, request=asked)
        await rm.rm.RequestResource(
            rm_pb2.RequestResourceRequest(job_id=job.job_id, ranges=[threads]),
        )
        await next_events(stream, 4)
        for number in range(4, 40):
            (agreed,) = await job.reuse(("r.0", 1, f"r.{number}"))
            assert not agreed.HasField("error")
        assert [await job.reuse(("r.0", 1, "r.4"))] == [[agreed]]
        assert set(executor.slots) == {"r.0", "r.1", "r.2", "r.3"}
        assert (await explained(rm, "r.20")).request.reason == Reason.REUSED
        stream.cancel()
    async with running_rm(tmp_path) as rm:
        job.rm = rm
        assert await job.reuse(("r.0", 1, "r.30")) == [agreed]
        (still_waits,) = (await explained(rm, "r.40")).steps[-1:]
        assert still_waits.flow.waiting == 960


async def test_a_slot_is_reused_for_a_range_of_the_same_call(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(*threads("t0"))
        await next_events(stream, 1)
        asked = slots_pb2.SlotRequest(profile=profile(1_000))
        new = slots_pb2.RequestRange(range_id="r", first_index=7, count=2, request=asked)
        accepted, agreed = await job.reuse(("t0", 1, "r.7"), ranges=[new])
        assert (accepted.id, agreed.id) == ("r", "t0")
        assert not accepted.HasField("error")
        assert not agreed.HasField("error")
        (told, granted) = await next_events(stream, 2)
        assert (told.allocation_id, told.reason) == ("r.7", Reason.REUSED)
        assert (granted.allocation_id, granted.state) == ("r.8", GRANTED)
        assert set(executor.slots) == {"t0", "r.8"}
        many = [(f"t{n}", 1, f"r.{n}") for n in range(501)]
        error = await refusal(job.reuse(*many, ranges=[new]))
        assert isinstance(error, InvalidArgument)
        assert error.field == "slots"
        stream.cancel()


async def test_calls_that_make_no_sense_are_refused_as_a_whole(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        job = await ScriptedJob(rm).register()
        for wishes, field in (
            ([], "slots"),
            ([("a", 0, "b")], "slots[0].generation"),
            ([("a", 1, "")], "slots[0].for_allocation_id"),
            ([("a", 1, "b"), ("a", 1, "c")], "slots[1].allocation_id"),
            ([("a", 1, "b"), ("c", 1, "b")], "slots[1].for_allocation_id"),
            ([("a", 1, "a")], "slots[0].for_allocation_id"),
        ):
            error = await refusal(job.reuse(*wishes))
            assert isinstance(error, InvalidArgument)
            assert error.field == field


async def test_both_steps_of_the_choice_are_explained(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        allowed = cluster_pb2.ChangeGroupUsersRequest(name="medium", allow=[USER])
        await rm.cluster.ChangeGroupUsers(allowed)
        small = await ScriptedJob(rm).register(name="nightly")
        urgent = await ScriptedJob(rm).register(name="urgent", group="medium")
        await small.request(*threads("a", "b", "c"))
        await urgent.request(*threads("u", "v"))
        await eventually(lambda: explained(rm, "a"))
        await small.request(*threads("d"))
        found = await explained(rm, "d")
        assert [(each.group, each.flow.name, each.flow.is_job) for each in found.steps] == [
            ("", "default", False),
            ("default", small.job_id, True),
        ]
        first, second = found.steps
        assert (first.position, first.backlogged) == (2, 2)
        assert [each.name for each in first.ahead] == ["medium"]
        assert first.summary.startswith(
            "group default is served after group medium: its virtual time is "
        )
        assert second.flow.job_name == "nightly"
        assert second.summary.startswith(
            f"job nightly ({small.job_id}) is the only one of group default with queued requests:"
            " its virtual time is "
        )


async def test_what_is_held_for_a_request_is_shown(tmp_path: Path) -> None:
    fairness = Fairness(starvation_placements=1)
    async with running_rm(tmp_path, fairness=fairness) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        await job.request(*threads("a", "b", "c", "d"))
        large = await ScriptedJob(rm).register()
        await large.request(slot_request("big", cpu_milli=4_000))
        await job.request(*threads("e"))
        await job.release("a")
        found = await eventually(lambda: held(rm, "big"))
        (where,) = found.reservation.executors
        assert (where.executor_id, where.held.cpu_milli) == ("host-a", 4_000)
        assert where.missing.cpu_milli == 4_000
        assert found.reservation.job_id == large.job_id
        assert found.reservation.since_time.seconds > 0
        listed = await rm.cluster.ListGroups(cluster_pb2.ListGroupsRequest())
        assert [each.allocation_id for each in listed.reservations] == ["big"]
        await job.request(*threads("f"))
        await job.release("b")
        blocked = await eventually(lambda: kept_from(rm, "f"))
        assert blocked.primary_reason == Reason.WAITING_RESERVATION
        assert [each.allocation_id for each in blocked.held_for_others] == ["big"]


async def held(rm: RunningRm, allocation_id: str) -> rm_pb2.ExplainResponse | None:
    found = await explained(rm, allocation_id)
    return found if found.HasField("reservation") else None


async def kept_from(rm: RunningRm, allocation_id: str) -> rm_pb2.ExplainResponse | None:
    found = await explained(rm, allocation_id)
    return found if found.held_for_others else None
