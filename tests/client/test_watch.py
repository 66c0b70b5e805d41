"""Tests of the watch stream: it has no gap and no repeated event, even if connections break."""

import asyncio

import pytest

import finegrain_client as fg
from finegrain_client.retry import RetryPolicy
from tests.client.scripted import (
    CANCELLED,
    GRANTED,
    LOST,
    PENDING,
    RELEASED,
    Scripted,
    eventually,
    serving,
)


async def test_a_broken_stream_goes_on_after_the_last_event(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.auto_grant = False
    servant.break_watch_after.extend([2, 1, 3])
    async with cluster.job("breaks") as job:
        events = job.events()
        requests = await job.request_slots(fg.SlotSpec(count=8))
        for request in requests:
            await servant.tell(request.allocation_id, PENDING, reason="WAITING_CAPACITY")
        heard = [await anext(events) for _ in requests]
    assert [each.sequence for each in heard] == list(range(1, 9))
    asked = [each.from_sequence for each in servant.calls["WatchJob"]]
    assert asked == [1, 3, 4, 7]


async def test_a_restarted_server_is_found_again(servant: Scripted) -> None:
    restarted = Scripted()
    async with fg.connect(servant.address) as cluster, cluster.job("restart") as job:
        (request,) = await job.request_slots(fg.SlotSpec(restart_on_loss=True))
        first = await request.granted(timeout_s=10)
        restarted.events = list(servant.events)
        address = servant.address
        await servant.stop()
        async with serving(restarted, address):
            await restarted.tell(request.allocation_id, PENDING, reason="EXECUTOR_LOST")
            await restarted.tell(request.allocation_id, GRANTED, generation=2)
            await asyncio.wait_for(first.lost.wait(), 20)
            assert (await request.granted(timeout_s=10)).generation == 2
            assert restarted.calls["WatchJob"][0].from_sequence == 2
            await job.end()


async def test_a_lost_beginning_is_replaced_by_a_snapshot(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.auto_grant = False
    servant.break_watch_after.append(0)
    async with cluster.job("late") as job:
        kept, ended, unknown, other = await job.request_slots(fg.SlotSpec(count=4))
        events = job.events()
        servant.snapshot = [  # it is sent in two parts
            servant.snapshot_of(kept.allocation_id, GRANTED),
            servant.snapshot_of(other.allocation_id, GRANTED),
        ]
        servant.ended = [servant.snapshot_of(ended.allocation_id, LOST, "EXECUTOR_LOST")]
        servant.first_kept = 1000
        await servant.tell("another", PENDING)
        assert (await kept.granted(timeout_s=10)).generation == 1
        with pytest.raises(fg.RequestEnded, match="LOST"):
            await ended.granted(timeout_s=10)
        with pytest.raises(fg.RequestEnded, match="no longer knows it"):
            await unknown.granted(timeout_s=10)
        assert (await other.granted(timeout_s=10)).generation == 1
        heard = [await anext(events) for _ in range(4)]
        assert all(each.from_snapshot for each in heard)
        assert sorted(each.state for each in heard) == ["CANCELLED", "GRANTED", "GRANTED", "LOST"]
        await servant.tell(kept.allocation_id, RELEASED)
        assert (await anext(events)).sequence == 2


async def test_a_missing_event_is_noticed_and_made_good_by_a_snapshot(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.auto_grant = False
    async with cluster.job("gap") as job:
        events = job.events()
        missed, seen = await job.request_slots(fg.SlotSpec(count=2))
        servant.withheld.add(2)
        await servant.tell(seen.allocation_id, PENDING, reason="WAITING_CAPACITY")
        await servant.tell(missed.allocation_id, GRANTED)
        servant.snapshot = [
            servant.snapshot_of(missed.allocation_id, GRANTED),
            servant.snapshot_of(seen.allocation_id, GRANTED),
        ]
        await servant.tell(seen.allocation_id, GRANTED)
        assert (await missed.granted(timeout_s=10)).generation == 1
        assert (await seen.granted(timeout_s=10)).generation == 1
        asked = [each.from_sequence for each in servant.calls["WatchJob"]]
        assert asked == [1, 0]
        await servant.tell(seen.allocation_id, RELEASED)
        heard = [await anext(events) for _ in range(4)]
    assert [each.from_snapshot for each in heard] == [False, True, True, False]
    assert (heard[0].sequence, heard[3].sequence) == (1, 4)


async def test_a_snapshot_that_an_overloaded_server_does_not_explain_is_taken_in_later(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.auto_grant = False
    servant.break_watch_after.append(0)
    async with cluster.job("late") as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        cluster._connection.policy = RetryPolicy(budget_s=0.2)
        busy = fg.ResourceExhausted("too many calls", retry_after_s=0.3)
        servant.failures["ListRequests"].append(busy)
        servant.ended = [servant.snapshot_of(request.allocation_id, LOST, "EXECUTOR_LOST")]
        servant.first_kept = 1000
        await servant.tell("another", PENDING)
        with pytest.raises(fg.RequestEnded, match="LOST"):
            await request.granted(timeout_s=10)
        assert len(servant.calls["ListRequests"]) == 2


async def test_a_second_address_takes_over(servant: Scripted) -> None:
    silent = Scripted()
    async with serving(silent):
        silent.failures["RegisterJob"].extend([fg.Unavailable("not the leader")] * 100)
        async with (
            fg.connect([silent.address, servant.address]) as cluster,
            cluster.job("standby") as job,
        ):
            (request,) = await job.request_slots(fg.SlotSpec())
            await request.granted(timeout_s=10)
            assert cluster.address == servant.address
    assert servant.calls["RegisterJob"]


async def test_a_request_cancelled_elsewhere_ends_the_wait(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    (request,) = await job.request_slots(fg.SlotSpec())
    waiting = asyncio.create_task(request.granted(timeout_s=10))
    await servant.tell(request.allocation_id, CANCELLED, reason="TERMINATED")
    with pytest.raises(fg.RequestEnded, match="TERMINATED"):
        await waiting


async def test_listeners_hear_the_end(job: fg.Job) -> None:
    events = job.events()
    reading = asyncio.create_task(_collect(events))
    await job.request_slots(fg.SlotSpec())
    await eventually(lambda: job.requests and job.requests[0].slot)
    await job.end()
    assert [each.state for each in await reading] == [fg.RequestState.GRANTED]


async def _collect(events: fg.JobEvents) -> list[fg.JobEvent]:
    return [each async for each in events]
