"""Tests of resizes: partial sizes, complete requests, and events by any path."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.devices.names import device_requests
from finegrain.errors import Reason
from finegrain.resources import ResourceProfile
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain_client.admin import resizing as admin_resizing
from finegrain_client.slot import resizing
from finegrain_client.slot.resizing import SizeChange, profile_message
from tests.client.scripted import GRANTED, LOST, PENDING, RELEASED, Scripted, eventually


@pytest.fixture
async def slot(servant: Scripted, job: fg.Job) -> fg.Slot:
    (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500, restart_on_loss=True))
    return await request.granted(timeout_s=10)


async def under_way(servant: Scripted, slot: fg.Slot, number: int) -> None:
    """Waits until the resource manager has accepted the resize."""
    theirs = servant.sized[slot.allocation_id]
    await eventually(lambda: [each.resize_number for each in theirs.resizes] == [number])


async def test_what_is_not_named_stays_as_it_is(servant: Scripted, slot: fg.Slot) -> None:
    status = await slot.resize(cpu_milli=1500)
    assert status == slot.status
    assert (slot.profile.cpu_milli, slot.status.cpu_limit_milli) == (1500, 1500)
    assert slot.profile.task_heap_memory_bytes == 256 * fg.MIB
    await slot.resize(memory_bytes=fg.GIB, extended={"license": 2}, cpu_limit_milli=2000)
    assert slot.profile.extended == (("license", 2),)
    assert slot.profile.cpu_milli == 1500
    first, second = servant.calls["ResizeSlot"]
    assert (first.resize_number, second.resize_number) == (1, 2)
    assert (first.cpu_limit_milli, second.cpu_limit_milli) == (0, 2000)
    assert first.generation == 1


def test_a_resize_names_the_devices_of_the_slot() -> None:
    gpus = replace(device_requests({"gpu": 50})[0], model="H100")
    profile = ResourceProfile(500, 64 * fg.MIB, devices=(gpus,))
    for change in (SizeChange(cpu_milli=700), SizeChange(cpu_milli=700, devices={"gpu": 50})):
        size, _ = change.applied_to(profile, 500)
        assert size == replace(profile, cpu_milli=700)
        message = profile_message(size)
        assert dict(message.devices) == {"gpu-core": 50, "gpu-memory-ratio": 50}
        assert [each.model for each in message.device_hints] == ["H100"]
    other, _ = SizeChange(devices={"gpu": 100}).applied_to(profile, 500)
    assert dict(profile_message(other).devices) == {"gpu-core": 100, "gpu-memory-ratio": 100}
    with pytest.raises(fg.InvalidArgument, match="devices"):
        SizeChange(devices={"gpu": 150}).applied_to(profile, 500)


async def test_it_stays_the_same_slot_and_its_tasks_go_on(
    servant: Scripted, job: fg.Job, slot: fg.Slot
) -> None:
    events = job.events()
    await slot.resize(cpu_milli=100)
    event = await anext(events)
    assert (event.state, event.reason) == (fg.RequestState.GRANTED, "RESIZED")
    (request,) = job.requests
    assert request.slot is slot
    assert await request.granted(timeout_s=10) is slot
    assert not slot.is_lost


async def test_growth_that_waits_is_waited_for(servant: Scripted, slot: fg.Slot) -> None:
    servant.auto_resize = False
    growing = asyncio.create_task(slot.resize(cpu_milli=4000))
    await eventually(lambda: slot.status.resizes)
    assert slot.status.resizes[0].state is fg.ResizeState.WAITING
    assert slot.profile.cpu_milli == 500
    await servant.carry_out(slot.allocation_id)
    assert (await asyncio.wait_for(growing, 10)).profile.cpu_milli == 4000
    assert slot.status.resizes == ()


async def test_a_refusal_says_why(servant: Scripted, slot: fg.Slot) -> None:
    servant.auto_resize = False
    shrinking = asyncio.create_task(slot.resize(memory_bytes=fg.MIB))
    await under_way(servant, slot, 1)
    await servant.refuse(slot.allocation_id)
    with pytest.raises(fg.ResizeRefused, match="it uses more") as caught:
        await asyncio.wait_for(shrinking, 10)
    assert caught.value.reason is Reason.RESIZE_REFUSED
    assert caught.value.status.profile.task_heap_memory_bytes == 256 * fg.MIB
    assert slot.profile.task_heap_memory_bytes == 256 * fg.MIB


async def test_a_timeout_keeps_the_change_in_line(servant: Scripted, slot: fg.Slot) -> None:
    servant.auto_resize = False
    with pytest.raises(fg.StillResizing, match="no room") as caught:
        await slot.resize(cpu_milli=4000, timeout_s=0.2)
    assert isinstance(caught.value, TimeoutError)
    assert [each.resize_number for each in slot.status.resizes] == [1]
    await slot.withdraw_resize()
    assert slot.status.resizes == ()
    withdrawn = servant.calls["ResizeSlot"][-1]
    assert (withdrawn.resize_number, withdrawn.profile.cpu_milli) == (2, 500)


async def test_a_second_wish_takes_the_place_of_the_first_and_contains_it(
    servant: Scripted, slot: fg.Slot
) -> None:
    servant.auto_resize = False
    first = asyncio.create_task(slot.resize(cpu_milli=4000))
    await eventually(lambda: slot.status.resizes)
    second = asyncio.create_task(slot.resize(memory_bytes=fg.GIB))
    await under_way(servant, slot, 2)
    asked = servant.calls["ResizeSlot"][-1].profile
    assert (asked.cpu_milli, asked.task_heap_memory_bytes) == (4000, fg.GIB)
    with pytest.raises(fg.ResizeRefused, match="another resize replaced it"):
        await asyncio.wait_for(first, 10)
    await servant.carry_out(slot.allocation_id)
    assert (await asyncio.wait_for(second, 10)).profile.cpu_milli == 4000


async def test_somebody_else_was_faster(servant: Scripted, slot: fg.Slot) -> None:
    theirs = servant.sized[slot.allocation_id]
    theirs.resize_number = 7
    theirs.profile.cpu_milli = theirs.cpu_limit_milli = 2000
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    await slot.resize(memory_bytes=fg.GIB)
    assert [each.resize_number for each in servant.calls["ResizeSlot"]] == [1, 8]
    assert (slot.profile.cpu_milli, slot.profile.task_heap_memory_bytes) == (2000, fg.GIB)


async def test_what_somebody_else_wants_can_be_taken_back_without_having_heard_of_it(
    servant: Scripted, slot: fg.Slot
) -> None:
    theirs = servant.sized[slot.allocation_id]
    theirs.resize_number = 7
    theirs.resizes.add(resize_number=7, state=slots_pb2.SLOT_RESIZE_STATE_WAITING)
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    status = await slot.withdraw_resize()
    assert (status.resize_number, status.resizes) == (8, ())
    assert slot.profile.cpu_milli == 500


async def test_books_that_were_restored_know_of_fewer_changes(
    servant: Scripted, slot: fg.Slot
) -> None:
    await slot.resize(cpu_milli=1000)
    await slot.resize(cpu_milli=2000)
    theirs = servant.sized[slot.allocation_id]
    theirs.resize_number = 0
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    await slot.resize(cpu_milli=3000)
    assert [each.resize_number for each in servant.calls["ResizeSlot"]] == [1, 2, 3, 1]
    assert slot.profile.cpu_milli == 3000


async def test_a_wish_that_fails_is_not_waited_for(servant: Scripted, slot: fg.Slot) -> None:
    servant.failures["ResizeSlot"].append(
        fg.FailedPrecondition("4001 of 4000", reason=Reason.INFEASIBLE_NEVER)
    )
    with pytest.raises(fg.FailedPrecondition, match="4001"):
        await slot.resize(cpu_milli=4001)
    assert await slot.resize(cpu_milli=4000)


@pytest.mark.parametrize("state", [LOST, RELEASED, PENDING], ids=["lost", "released", "requeued"])
async def test_a_slot_that_ends_is_not_waited_for(
    servant: Scripted, slot: fg.Slot, state: slots_pb2.RequestState.ValueType
) -> None:
    servant.auto_resize = False
    growing = asyncio.create_task(slot.resize(cpu_milli=4000))
    await under_way(servant, slot, 1)
    await servant.tell(slot.allocation_id, state, reason="EXECUTOR_LOST")
    with pytest.raises(fg.SlotLost):
        await asyncio.wait_for(growing, 10)
    with pytest.raises(fg.SlotLost):
        await slot.resize(cpu_milli=100)


async def test_the_end_of_the_job_ends_the_wait(servant: Scripted, cluster: fg.Cluster) -> None:
    servant.auto_resize = False
    async with cluster.job("short") as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        slot = await request.granted(timeout_s=10)
        growing = asyncio.create_task(slot.resize(cpu_milli=4000))
        await under_way(servant, slot, 1)
    with pytest.raises(fg.JobEnded):
        await asyncio.wait_for(growing, 10)


async def test_a_snapshot_tells_of_the_new_size_too(servant: Scripted, cluster: fg.Cluster) -> None:
    servant.auto_resize = False
    servant.break_watch_after.append(1)
    async with cluster.job("late") as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        slot = await request.granted(timeout_s=10)
        events = job.events()
        growing = asyncio.create_task(slot.resize(cpu_milli=4000))
        await under_way(servant, slot, 1)
        servant.first_kept = 1000
        wish = servant.sized[slot.allocation_id].resizes.pop()
        servant.sized[slot.allocation_id].profile.CopyFrom(wish.profile)
        servant.sized[slot.allocation_id].cpu_limit_milli = wish.cpu_limit_milli
        servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
        await servant.tell("another", PENDING)  # breaks the stream
        assert (await asyncio.wait_for(growing, 10)).profile.cpu_milli == 4000
        assert request.slot is slot
        event = await anext(events)
        assert (event.reason, event.from_snapshot) == ("RESIZED", True)


@pytest.mark.parametrize("size", [500, 750], ids=["the size that was known", "another size"])
async def test_a_change_that_restored_books_know_nothing_of_is_not_waited_for(
    servant: Scripted, cluster: fg.Cluster, size: int
) -> None:
    servant.break_watch_after.append(1)
    async with cluster.job("restored") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
        slot = await request.granted(timeout_s=10)
        servant.auto_resize = False
        growing = asyncio.create_task(slot.resize(cpu_milli=4000))
        await eventually(lambda: slot.status.resizes)
        theirs = servant.sized[slot.allocation_id]
        theirs.resize_number, theirs.profile.cpu_milli, theirs.cpu_limit_milli = 0, size, size
        del theirs.resizes[:]
        servant.first_kept = 1000
        servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
        await servant.tell("another", PENDING)  # breaks the stream
        with pytest.raises(fg.ResizeRefused, match="restored"):
            await asyncio.wait_for(growing, 10)
        assert (slot.status.resizes, slot.profile.cpu_milli) == ((), size)


async def test_an_old_snapshot_does_not_end_the_wait(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.auto_resize = False
    servant.break_watch_after.append(1)
    async with cluster.job("old news") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
        slot = await request.granted(timeout_s=10)
        before = slot.status
        growing = asyncio.create_task(slot.resize(cpu_milli=4000))
        await eventually(lambda: slot.status.resizes)
        servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
        slot.size.reset(before)
        await eventually(lambda: slot.status.resizes)
        await servant.carry_out(slot.allocation_id)
        assert (await asyncio.wait_for(growing, 10)).profile.cpu_milli == 4000


async def test_operators_wait_for_the_outcome_as_well(
    servant: Scripted, cluster: fg.Cluster, slot: fg.Slot
) -> None:
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    grown = await cluster.resize(slot.allocation_id, cpu_milli=1000)
    assert (grown.profile.cpu_milli, grown.resize_number) == (1000, 1)
    await eventually(lambda: slot.profile.cpu_milli == 1000)  # its job master learns it
    servant.auto_resize = False
    waits = await cluster.resize(slot.allocation_id, cpu_milli=4000, wait=False)
    assert [each.resize_number for each in waits.resizes] == [2]
    taken_back = await cluster.withdraw_resize(slot.allocation_id)
    assert (taken_back.resizes, taken_back.resize_number) == ((), 3)


async def test_operators_hear_of_the_outcome_by_the_events_of_the_cluster(
    servant: Scripted, cluster: fg.Cluster, slot: fg.Slot
) -> None:
    servant.auto_resize = False
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    growing = asyncio.create_task(cluster.resize(slot.allocation_id, cpu_milli=4000))
    await under_way(servant, slot, 1)
    await servant.carry_out(slot.allocation_id)
    assert (await asyncio.wait_for(growing, 10)).profile.cpu_milli == 4000
    shrinking = asyncio.create_task(cluster.resize(slot.allocation_id, memory_bytes=fg.MIB))
    await under_way(servant, slot, 2)
    servant.cluster_events.append(("slot_resize_refused", "it uses more"))
    await servant.refuse(slot.allocation_id)
    with pytest.raises(fg.ResizeRefused, match="it uses more"):
        await asyncio.wait_for(shrinking, 10)
    with pytest.raises(fg.StillResizing, match="no room"):
        await cluster.resize(slot.allocation_id, cpu_milli=100, timeout_s=0.2)


async def test_a_refusal_that_comes_between_two_reads_says_why_too(
    servant: Scripted, cluster: fg.Cluster, slot: fg.Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot shows the refusal before the client has read the event with the reason."""
    servant.auto_resize = False
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    shrinking = asyncio.create_task(cluster.resize(slot.allocation_id, memory_bytes=fg.MIB))
    await under_way(servant, slot, 1)
    real = resizing.request_of

    async def refused_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(admin_resizing, "request_of", real)
        servant.cluster_events.append(("slot_resize_refused", "it uses more"))
        await servant.refuse(slot.allocation_id)
        return await real(*args)

    monkeypatch.setattr(admin_resizing, "request_of", refused_meanwhile)
    servant.cluster_events.append(("slot_resize_ordered", ""))
    await servant.wake()
    with pytest.raises(fg.ResizeRefused, match="it uses more"):
        await asyncio.wait_for(shrinking, 10)


async def test_operators_do_not_wait_for_what_restored_books_know_nothing_of(
    servant: Scripted, cluster: fg.Cluster, slot: fg.Slot
) -> None:
    servant.auto_resize = False
    servant.snapshot = [servant.snapshot_of(slot.allocation_id, GRANTED)]
    growing = asyncio.create_task(cluster.resize(slot.allocation_id, cpu_milli=4000))
    await under_way(servant, slot, 1)
    theirs = servant.sized[slot.allocation_id]
    theirs.resize_number = 0
    del theirs.resizes[:]
    servant.cluster_events.append(("executor_registered", ""))
    await servant.wake()
    with pytest.raises(fg.ResizeRefused, match="restored"):
        await asyncio.wait_for(growing, 10)


async def test_operators_are_told_what_cannot_be_resized(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    with pytest.raises(fg.NotFound, match="not known, or has ended"):
        await cluster.resize("nothing", cpu_milli=100)
    servant.snapshot = [servant.snapshot_of("waits", PENDING)]
    with pytest.raises(fg.FailedPrecondition, match="has no slot yet") as caught:
        await cluster.resize("waits", cpu_milli=100)
    assert caught.value.reason is Reason.SLOT_NOT_READY


async def test_a_change_that_waits_is_explained(servant: Scripted, slot: fg.Slot) -> None:
    explained = rm.ExplainResponse()
    explained.request.state = GRANTED
    why = explained.resizes.add(summary="cpu_milli grows by 500 and 100 are free")
    why.resize.resize_number = 1
    why.resize.state = slots_pb2.SLOT_RESIZE_STATE_WAITING
    why.dimensions.add(dimension="cpu_milli", asked=500, free=100, total=4000)
    servant.explained = explained
    (found,) = (await slot_explanation(servant, slot)).resizes
    assert found.resize.state is fg.ResizeState.WAITING
    assert (found.dimensions[0].asked, found.dimensions[0].free) == (500, 100)


async def slot_explanation(servant: Scripted, slot: fg.Slot) -> fg.Explanation:
    async with fg.connect(servant.address) as cluster:
        return await cluster.explain(slot.allocation_id)


def test_a_cap_above_what_is_booked_stays_while_it_is_above() -> None:
    before = fg.ResourceProfile(cpu_milli=500, task_heap_memory_bytes=fg.MIB)
    for change, had, has in [
        (SizeChange(cpu_milli=1000), 500, 1000),
        (SizeChange(cpu_milli=1000), 2000, 2000),
        (SizeChange(cpu_milli=3000), 2000, 3000),
        (SizeChange(cpu_milli=1000, cpu_limit_milli=0), 2000, 1000),
        (SizeChange(cpu_limit_milli=4000), 500, 4000),
    ]:
        assert change.applied_to(before, had)[1] == has, change


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({}, "resize"),
        ({"cpu_milli": 0.5}, "cpu_milli"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"extended": {"license": -1}}, "extended['license']"),
        ({"cpu_limit_milli": 2**60}, "cpu_limit_milli"),
    ],
    ids=str,
)
async def test_bad_sizes_are_named(slot: fg.Slot, wish: dict[str, object], field: str) -> None:
    with pytest.raises(fg.InvalidArgument) as caught:
        await slot.resize(**wish)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("has", "named", "expected"),
    [
        ({"gpu": 50}, {"gpu": 30}, {"gpu-core": 30, "gpu-memory-ratio": 30}),
        ({"gpu": 50}, {"gpu-core": 30}, {"gpu-core": 30, "gpu-memory-ratio": 50}),
        ({"gpu": 50}, {"gpu-memory": 4 * fg.GIB}, {"gpu-core": 50, "gpu-memory": 4 * fg.GIB}),
        (
            {"gpu-core": 50, "gpu-memory": fg.GIB},
            {"gpu-memory-ratio": 20},
            {"gpu-core": 50, "gpu-memory-ratio": 20},
        ),
        (
            {"gpu.shared": 2, "gpu-memory-ratio": 100},
            {"gpu-memory-ratio": 60},
            {"gpu.shared": 2, "gpu-memory-ratio": 60},
        ),
        (
            {"gpu": 50, "rdma": 10},
            {"gpu": 20},
            {"gpu-core": 20, "gpu-memory-ratio": 20, "rdma": 10},
        ),
        (
            {"gpu": 50, "rdma": 10},
            {"rdma": 30},
            {"gpu-core": 50, "gpu-memory-ratio": 50, "rdma": 30},
        ),
    ],
)
def test_amounts_of_devices_that_are_not_named_stay(
    has: dict[str, int], named: dict[str, int], expected: dict[str, int]
) -> None:
    hinted = tuple(replace(each, model="H100") for each in device_requests(has))
    profile = ResourceProfile(500, 64 * fg.MIB, devices=hinted)
    size, _ = SizeChange(devices=named).applied_to(profile, 500)
    assert dict(profile_message(size).devices) == expected
    assert {each.model for each in size.devices} == {"H100"}
