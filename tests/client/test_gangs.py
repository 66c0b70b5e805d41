"""Tests of gangs: requested, granted and given up as a whole."""

import asyncio

import pytest

import finegrain_client as fg
from finegrain.errors import Reason
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain_client.job.submission import batches, pieces
from tests.client.scripted import GRANTED, LOST, PENDING, RELEASED, Scripted, eventually

REJECTED = slots_pb2.REQUEST_STATE_REJECTED
CANCELLED = slots_pb2.REQUEST_STATE_CANCELLED


async def asked_ids(servant: Scripted) -> list[str]:
    """Returns the members once they have been requested."""
    await eventually(lambda: servant.calls["RequestResource"])
    return [each.allocation_id for each in servant.calls["RequestResource"][-1].requests]


async def test_all_slots_of_a_gang_come_together(servant: Scripted, job: fg.Job) -> None:
    slots = await job.request_gang(
        fg.SlotSpec(cpu_milli=500, count=3), placement="same-executor", timeout_s=60
    )
    assert len({each.allocation_id for each in slots}) == 3
    (sent,) = servant.calls["RequestResource"]
    (gang,) = sent.gangs
    assert gang.placement == slots_pb2.GANG_PLACEMENT_SAME_EXECUTOR
    assert gang.timeout.seconds == 60
    assert [each.gang_id for each in sent.requests] == [gang.gang_id] * 3
    assert [each.allocation_id for each in sent.requests] == [each.allocation_id for each in slots]


async def test_the_members_of_a_gang_can_be_held_while_they_wait(
    servant: Scripted, job: fg.Job
) -> None:
    servant.auto_grant = False
    master, *workers, other = await job.request_slots(
        [
            fg.GangSpec(
                [fg.SlotSpec(cpu_milli=2000), fg.SlotSpec(cpu_milli=500, count=2)],
                placement=fg.GangPlacement.SAME_LABEL,
                label="rack",
                gang_id="gang-1",
            ),
            fg.SlotSpec(cpu_milli=100),
        ]
    )
    assert master.gang is not None
    assert (master.gang.gang_id, master.gang.label) == ("gang-1", "rack")
    assert master.gang.placement is fg.GangPlacement.SAME_LABEL
    assert master.gang.timeout_s is None
    assert [each.gang for each in workers] == [master.gang] * 2
    assert other.gang is None
    (sent,) = servant.calls["RequestResource"]
    assert [each.profile.cpu_milli for each in sent.requests] == [2000, 500, 500, 100]
    assert [each.gang_id for each in sent.requests] == ["gang-1"] * 3 + [""]


async def test_half_a_gang_is_not_handed_out(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    asking = asyncio.create_task(job.request_gang(fg.SlotSpec(restart_on_loss=True, count=2)))
    first, second = await asked_ids(servant)
    await servant.tell(first, GRANTED)
    await eventually(
        lambda: all(each.acknowledged for each in job.requests) and job.requests[0].slot
    )
    assert not asking.done()
    await servant.tell(first, PENDING, reason="GANG_BROKEN")
    await servant.tell(second, GRANTED)
    await eventually(lambda: job.requests[1].slot)
    assert not asking.done()
    await servant.tell(first, GRANTED, generation=2)
    slots = await asyncio.wait_for(asking, 10)
    assert [each.generation for each in slots] == [2, 1]


async def test_a_gang_that_waits_too_long_is_given_up(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    asking = asyncio.create_task(job.request_gang(fg.SlotSpec(count=2), timeout_s=1))
    for each in await asked_ids(servant):
        await servant.tell(each, REJECTED, reason="GANG_TIMEOUT")
    with pytest.raises(fg.GangTimeout, match="not placed as a whole") as caught:
        await asyncio.wait_for(asking, 10)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, fg.RequestRejected)
    assert caught.value.reason is Reason.GANG_TIMEOUT


async def test_whoever_gives_up_takes_the_whole_gang_back(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    asking = asyncio.create_task(job.request_gang(fg.SlotSpec(count=2)))
    ids = await asked_ids(servant)
    await eventually(lambda: all(each.acknowledged for each in job.requests))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: servant.calls["CancelRequests"])
    assert list(servant.calls["CancelRequests"][0].allocation_ids) == ids
    assert job.requests == []


async def test_a_lost_member_gives_the_others_back(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    asking = asyncio.create_task(job.request_gang(fg.SlotSpec(count=2)))
    first, second = await asked_ids(servant)
    await eventually(lambda: all(each.acknowledged for each in job.requests))
    await servant.tell(first, GRANTED)
    await servant.tell(first, LOST, reason="EXECUTOR_LOST")
    await servant.tell(second, GRANTED)
    with pytest.raises((fg.SlotLost, fg.RequestEnded)) as caught:
        await asyncio.wait_for(asking, 10)
    assert caught.value.reason is Reason.EXECUTOR_LOST
    await eventually(lambda: servant.calls["CancelRequests"])
    assert list(servant.calls["CancelRequests"][0].allocation_ids) == [second]


async def test_a_gang_that_can_never_be_names_who_is_to_blame(
    servant: Scripted, job: fg.Job
) -> None:
    never = fg.FinegrainError("no executor is so large", reason=Reason.INFEASIBLE_NEVER)
    refused = fg.FinegrainError("because of another", reason=Reason.GANG_REFUSED)
    servant.rejections = {"large": never, "small": refused}
    members = [
        fg.SlotSpec(labels={"name": "small"}),
        fg.SlotSpec(labels={"name": "large"}),
    ]
    with pytest.raises(fg.RequestRejected, match="no executor is so large") as caught:
        await job.request_gang(members)
    assert caught.value.reason is Reason.INFEASIBLE_NEVER
    assert len(caught.value.rejections) == 2
    assert servant.calls["CancelRequests"] == []


async def test_a_member_that_was_given_back_is_not_taken_for_all(
    servant: Scripted, job: fg.Job
) -> None:
    slots = await job.request_gang(fg.SlotSpec(count=2))
    await slots[0].release()
    assert slots[0].has_ended
    assert not slots[1].has_ended
    await servant.tell(slots[1].allocation_id, RELEASED)
    await eventually(lambda: slots[1].has_ended)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"placement": "somewhere"}, "placement"),
        ({"placement": "SAME_LABEL"}, "label"),
        ({"label": "rack"}, "label"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1.0}, "timeout_s"),
        ({"gang_id": "no spaces"}, "gang_id"),
        ({"members": []}, "members"),
        ({"members": fg.SlotSpec(count=1001)}, "members"),
        (
            {"members": [fg.SlotSpec(), fg.SlotSpec(restart_on_loss=True)]},
            "restart_on_loss",
        ),
        ({"members": fg.SlotSpec(target_address="127.0.0.1:1")}, "target_address"),
    ],
    ids=str,
)
def test_bad_gangs_are_named(wish: dict[str, object], field: str) -> None:
    with pytest.raises(fg.InvalidArgument) as caught:
        fg.GangSpec(**{"members": fg.SlotSpec(), **wish})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_gang_is_never_cut() -> None:
    gang = fg.GangSpec(fg.SlotSpec(count=4))
    many = list(pieces([fg.SlotSpec(count=3), gang, fg.SlotSpec(), gang]))
    by_items = list(batches(many, items_max=5))
    assert [len(each.requests) for each in by_items] == [3, 5, 4]
    assert [len(each.gangs) for each in by_items] == [0, 1, 1]
    by_bytes = list(batches(many, bytes_max=1))
    assert [len(each.requests) for each in by_bytes] == [1, 1, 1, 4, 1, 4]
    ids = {each.gang_id for batch in by_items for each in batch.gangs}
    assert len(ids) == 2


async def test_a_gang_of_a_job_that_is_opened_again(servant: Scripted, cluster: fg.Cluster) -> None:
    async with cluster.job("service", detached=True) as job:
        slots = await job.request_gang(fg.SlotSpec(), gang_id="gang-1")
    status = servant.snapshot_of(slots[0].allocation_id, GRANTED)
    status.request.gang_id = "gang-1"
    status.gang.gang_id = "gang-1"
    status.gang.placement = slots_pb2.GANG_PLACEMENT_SPREAD
    status.gang.timeout.FromSeconds(5)
    servant.snapshot = [status]
    async with cluster.attach_job(job.job_id) as again:
        (found,) = again.requests
        assert found.gang == fg.Gang("gang-1", fg.GangPlacement.SPREAD, "", 5.0)
        await again.end()


async def test_a_gang_that_waits_is_explained(servant: Scripted, job: fg.Job) -> None:
    explained = rm.ExplainResponse(primary_reason="WAITING_GANG", planned_on="small-1-1")
    explained.request.state = PENDING
    explained.gang.gang.gang_id = "gang-1"
    explained.gang.gang.placement = slots_pb2.GANG_PLACEMENT_SAME_LABEL
    explained.gang.gang.label = "rack"
    explained.gang.members, explained.gang.placeable = 4, 3
    explained.gang.spots.add(name="r1", placeable=3)
    explained.gang.deadline_time.FromJsonString("2026-01-02T03:04:05Z")
    servant.explained = explained
    servant.auto_grant = False
    (request,) = await job.request_slots(fg.GangSpec(fg.SlotSpec()))
    found = await request.explain()
    assert found.planned_on == "small-1-1"
    assert found.gang is not None
    assert (found.gang.members, found.gang.placeable) == (4, 3)
    assert found.gang.spots == (fg.GangSpot("r1", 3),)
    assert found.to_dict()["gang"]["deadline_time"] == "2026-01-02T03:04:05Z"
