"""Tests of ranges: many equal requests. Only members with slots are separate requests."""

import asyncio

import pytest

import finegrain_client as fg
from tests.client.scripted import (
    CANCELLED,
    GRANTED,
    LOST,
    PENDING,
    RELEASED,
    Scripted,
    eventually,
)

SMALL = fg.SlotSpec(cpu_milli=500, restart_on_loss=True, count=1_000)
TOO_BIG = fg.FailedPrecondition("no executor has that much", reason=fg.Reason.INFEASIBLE_NEVER)


async def test_a_range_is_one_call_with_one_item(servant: Scripted, job: fg.Job) -> None:
    asked = await job.request_range(SMALL, range_id="r", first_index=5)
    (call,) = servant.calls["RequestResource"]
    assert not call.requests
    (sent,) = call.ranges
    assert (sent.range_id, sent.first_index, sent.count) == ("r", 5, 1_000)
    assert (sent.request.allocation_id, sent.request.profile.cpu_milli) == ("", 500)
    assert sent.request.restart_on_loss
    assert (len(asked), asked.waiting, asked.waiting_members()) == (1_000, 1_000, [(5, 1_005)])
    assert job.ranges == [asked]
    assert job.requests == []


async def test_slots_come_one_by_one_as_they_are_granted(servant: Scripted, job: fg.Job) -> None:
    asked = await job.request_range(SMALL, range_id="r")
    await servant.tell("r.7", GRANTED)
    slots = asked.slots()
    await servant.tell("r.0", GRANTED)
    first, second = [await anext(slots) for _ in range(2)]
    assert (first.allocation_id, second.allocation_id) == ("r.7", "r.0")
    assert asked.waiting == 998
    assert sorted(asked.requests) == [0, 7]
    assert [each.allocation_id for each in job.requests] == ["r.7", "r.0"]
    assert asked.requests[7].slot is first


async def test_a_member_that_lost_its_slot_comes_again(servant: Scripted, job: fg.Job) -> None:
    asked = await job.request_range(SMALL, range_id="r")
    slots = asked.slots()
    await servant.tell("r.3", GRANTED)
    first = await anext(slots)
    await servant.tell("r.3", PENDING, reason="EXECUTOR_LOST")
    await servant.tell("r.3", GRANTED, generation=2)
    second = await anext(slots)
    assert (second.allocation_id, second.generation) == ("r.3", 2)
    assert first.is_lost
    assert asked.waiting == 999


async def test_one_event_may_be_the_end_of_many(servant: Scripted, job: fg.Job) -> None:
    asked = await job.request_range(SMALL, range_id="r")
    events, slots = job.events(), asked.slots()
    await servant.tell("r.0", GRANTED)
    await anext(slots)
    await servant.tell("r.1", CANCELLED, count=499)
    await servant.tell("r.500", CANCELLED, count=500)
    await servant.tell("r.0", RELEASED)
    with pytest.raises(StopAsyncIteration):
        await anext(slots)
    assert asked.has_ended
    assert asked.ended == {fg.RequestState.CANCELLED: 999, fg.RequestState.RELEASED: 1}
    assert job.ranges == []
    heard = [await anext(events) for _ in range(4)]
    assert [each.count for each in heard] == [1, 499, 500, 1]


async def test_members_are_taken_back_and_given_back_by_their_indexes(
    servant: Scripted, job: fg.Job
) -> None:
    asked = await job.request_range(SMALL, range_id="r")
    assert (await asked.cancel(500)).ok
    assert (await asked.release(10, 5, grace_s=2.0)).ok
    ((cancelled,), (released,)) = (
        servant.calls["CancelRequests"][0].ranges,
        servant.calls["ReleaseSlots"][0].ranges,
    )
    assert (cancelled.range_id, cancelled.first_index) == ("r", 500)
    assert cancelled.first_index + cancelled.count == 10**12
    assert (released.first_index, released.count) == (10, 5)
    with pytest.raises(fg.InvalidArgument, match="first_index"):
        await asked.cancel(-1)
    with pytest.raises(fg.InvalidArgument, match="count"):
        await asked.cancel(0, 0)


async def test_what_no_range_can_be_is_refused_before_it_is_sent(
    servant: Scripted, job: fg.Job
) -> None:
    for spec, range_id, first, field in (
        (SMALL, "a b", 0, "range_id"),
        (SMALL, "r" * 101, 0, "range_id"),
        (SMALL, "r", -1, "first_index"),
        (SMALL, "r", 10**12 - 999, "first_index"),
        (fg.SlotSpec(target_address="127.0.0.1:1"), "r", 0, "target_address"),
        (fg.SlotSpec(allocation_id="own"), "r", 0, "allocation_id"),
    ):
        with pytest.raises(fg.InvalidArgument, match=field):
            await job.request_range(spec, range_id=range_id, first_index=first)
    assert not servant.calls["RequestResource"]


async def test_a_refused_range_says_why_and_is_not_held(servant: Scripted, job: fg.Job) -> None:
    servant.rejections["big"] = TOO_BIG
    big = fg.SlotSpec(labels={"name": "big"}, count=10)
    with pytest.raises(fg.RequestRejected, match="no executor has that much"):
        await job.request_range(big, range_id="r")
    assert job.ranges == []
    refused = await job.request_range(big, range_id="r", raise_on_reject=False)
    assert refused.rejection is not None
    assert refused.rejection.reason == "INFEASIBLE_NEVER"
    assert refused.has_ended


async def test_parts_of_one_range_are_held_as_one(servant: Scripted, job: fg.Job) -> None:
    first = await job.request_range(SMALL, range_id="r")
    second = await job.request_range(SMALL, range_id="r", first_index=1_000)
    again = await job.request_range(SMALL, range_id="r", first_index=1_000)
    assert first is second is again
    assert (len(first), first.waiting_members()) == (2_000, [(0, 2_000)])


async def test_a_call_that_failed_takes_back_what_may_have_been_taken_in(
    servant: Scripted, job: fg.Job
) -> None:
    await job.request_range(SMALL, range_id="r")
    servant.blocked["RequestResource"] = asyncio.Event()
    asking = asyncio.create_task(job.request_range(SMALL, range_id="r", first_index=1_000))
    await eventually(lambda: len(servant.calls["RequestResource"]) == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: servant.calls["CancelRequests"])
    (members,) = servant.calls["CancelRequests"][0].ranges
    assert (members.first_index, members.count) == (1_000, 1_000)
    assert [each.waiting_members() for each in job.ranges] == [[(0, 1_000)]]


async def test_a_range_that_was_known_is_not_taken_back_by_a_repetition_that_failed(
    servant: Scripted, job: fg.Job
) -> None:
    asked = await job.request_range(SMALL, range_id="r")
    servant.failures["RequestResource"].append(fg.InvalidArgument("x", 1, "2"))
    with pytest.raises(fg.InvalidArgument):
        await job.request_range(SMALL, range_id="r")
    assert asked.waiting == 1_000
    assert not servant.calls["CancelRequests"]


async def test_a_snapshot_tells_what_became_of_members_meanwhile(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.break_watch_after.append(0)
    async with cluster.job("late") as job:
        asked = await job.request_range(SMALL, range_id="r")
        slots, events = asked.slots(), job.events()
        servant.snapshot = [  # sent in two parts
            servant.snapshot_of("r.0", GRANTED),
            servant.snapshot_of("r.400", PENDING, count=600),
        ]
        servant.ended = [
            servant.snapshot_of("r.1", CANCELLED, "TERMINATED", count=98),
            servant.snapshot_of("r.99", LOST, "EXECUTOR_LOST", count=1),
        ]  # members 100 to 399 are no longer known
        servant.first_kept = 1000
        await servant.tell("another", PENDING)
        assert (await anext(slots)).allocation_id == "r.0"
        await eventually(lambda: asked.waiting == 600)
        assert asked.waiting_members() == [(400, 1_000)]
        assert asked.ended == {fg.RequestState.CANCELLED: 398, fg.RequestState.LOST: 1}
        heard = [await anext(events) for _ in range(4)]
        assert all(each.from_snapshot for each in heard)
        assert sorted((each.allocation_id, each.count, each.reason) for each in heard) == [
            ("r.0", 1, ""),
            ("r.1", 98, "TERMINATED"),
            ("r.100", 300, "ALLOCATION_UNKNOWN"),
            ("r.99", 1, "EXECUTOR_LOST"),
        ]


async def test_another_process_takes_a_range_up_where_it_stands(
    servant: Scripted, cluster: fg.Cluster, job: fg.Job
) -> None:
    servant.snapshot = [
        servant.snapshot_of("r.0", GRANTED, range_id="r"),
        servant.snapshot_of("r.4", PENDING, count=996, range_id="r"),
    ]
    async with cluster.attach_job(job.job_id) as again:
        (found,) = again.ranges
        assert found.waiting_members() == [(4, 1_000)]
        assert list(found.requests) == [0]
        slots = found.slots()
        assert (await anext(slots)).allocation_id == "r.0"
        await servant.tell("r.4", GRANTED)
        assert (await anext(slots)).allocation_id == "r.4"


async def test_another_process_finds_a_range_of_which_nobody_waits(
    servant: Scripted, cluster: fg.Cluster, job: fg.Job
) -> None:
    """Only the RM's answer shows which of these requests are members."""
    servant.snapshot = [
        servant.snapshot_of("r.0", GRANTED, range_id="r"),
        servant.snapshot_of("r.7", GRANTED, range_id="r"),
        servant.snapshot_of("r.9", GRANTED),
    ]
    async with cluster.attach_job(job.job_id) as again:
        (found,) = again.ranges
        assert (found.range_id, found.waiting, list(found.requests)) == ("r", 0, [0, 7])
        assert [each.allocation_id for each in again.requests] == ["r.0", "r.7", "r.9"]
        slots = found.slots()
        assert [(await anext(slots)).allocation_id for _ in range(2)] == ["r.0", "r.7"]
        for member in ("r.0", "r.7"):
            await servant.tell(member, RELEASED)
        with pytest.raises(StopAsyncIteration):
            await anext(slots)
        assert found.has_ended
        assert not again.ranges


async def test_another_process_takes_up_one_last_member_that_waits(
    servant: Scripted, cluster: fg.Cluster, job: fg.Job
) -> None:
    servant.snapshot = [servant.snapshot_of("r.4", PENDING, range_id="r")]
    async with cluster.attach_job(job.job_id) as again:
        (found,) = again.ranges
        assert found.waiting_members() == [(4, 5)]
        assert not again.requests


async def test_the_end_of_the_job_ends_the_waiting_for_slots(
    servant: Scripted, job: fg.Job
) -> None:
    asked = await job.request_range(SMALL, range_id="r")
    waiting = asyncio.create_task(anext(asked.slots()))
    await asyncio.sleep(0)
    await job.end()
    with pytest.raises(fg.JobEnded):
        await waiting
    assert asked.has_ended
