"""Tests of a job: registered, kept alive, served, and everything released at its end."""

import asyncio

import pytest

import finegrain_client as fg
from finegrain.errors import FailedPrecondition, Reason
from finegrain.v1 import slots_pb2
from finegrain_client.job import job as job_module
from tests.client.scripted import GRANTED, JOB_ENDED, LOST, PENDING, Program, Scripted, eventually

REJECTED = slots_pb2.REQUEST_STATE_REJECTED
NAMED_LIMIT = fg.FailedPrecondition("no host is that large", reason=Reason.INFEASIBLE_NEVER)


async def test_a_job_is_registered_and_ended(servant: Scripted, cluster: fg.Cluster) -> None:
    async with cluster.job("wordcount", group="batch", lease_s=12) as job:
        registered = servant.calls["RegisterJob"][0]
        assert (registered.job_id, registered.name) == (job.job_id, "wordcount")
        assert (registered.group, registered.lease.seconds) == ("batch", 12)
        assert len(registered.request_id) >= 16
        await eventually(lambda: servant.live["WatchJob"] == 1)
    assert [each.job_id for each in servant.calls["EndJob"]] == [job.job_id]
    await eventually(lambda: servant.live["WatchJob"] == 0)


async def test_calls_carry_the_identity(servant: Scripted, job: fg.Job) -> None:
    servant.programs["echo"] = Program()
    (request,) = await job.request_slots(fg.SlotSpec())
    await (await request.granted(timeout_s=10)).run(["echo"])
    assert servant.callers["RequestResource"] == ["spiffe://test/user/alice"]
    assert servant.callers["SubmitTask"] == ["spiffe://test/user/alice"]


async def test_a_granted_slot_says_what_it_is(servant: Scripted, job: fg.Job) -> None:
    (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
    slot = await request.granted(timeout_s=10)
    assert slot.allocation_id == request.allocation_id
    assert (slot.executor_id, slot.generation, slot.cpus) == ("host-a", 1, "0-1")
    assert slot.profile.cpu_milli == 500
    assert slot.isolation is not None
    assert slot.isolation.cpu == "quota"
    await slot.release(grace_s=1.5)
    await slot.release()
    (released,) = servant.calls["ReleaseSlots"]
    assert released.grace.ToMilliseconds() == 1500
    assert released.slots[0].generation == 1
    assert slot.has_ended
    await eventually(lambda: request.state is fg.RequestState.RELEASED)
    assert job.requests == []


async def test_slots_come_in_the_order_in_which_they_are_granted(
    servant: Scripted, job: fg.Job
) -> None:
    servant.auto_grant = False
    requests = await job.request_slots(fg.SlotSpec(count=3))
    ids = [each.allocation_id for each in requests]
    slots = fg.as_granted(requests)
    await servant.tell(ids[2], GRANTED)
    assert (await anext(slots)).allocation_id == ids[2]
    await servant.tell(ids[0], LOST, reason="EXECUTOR_LOST")
    await servant.tell(ids[1], GRANTED)
    with pytest.raises(fg.RequestEnded):
        await anext(slots)
    assert [slot.allocation_id async for slot in slots] == [ids[1]]


async def test_rejected_requests_are_all_named_and_the_others_taken_back(
    servant: Scripted, job: fg.Job
) -> None:
    servant.rejections["big"] = NAMED_LIMIT
    specs = [fg.SlotSpec(cpu_milli=10, labels={"name": name}) for name in ("big", "small", "big")]
    with pytest.raises(fg.RequestRejected, match="no host is that large") as caught:
        await job.request_slots(specs)
    assert caught.value.reason is Reason.INFEASIBLE_NEVER
    asked = [each.allocation_id for each in servant.calls["RequestResource"][0].requests]
    assert [each.allocation_id for each in caught.value.rejections] == [asked[0], asked[2]]
    await eventually(lambda: servant.calls["CancelRequests"])
    assert list(servant.calls["CancelRequests"][0].allocation_ids) == [asked[1]]


async def test_rejected_requests_are_returned_on_demand(servant: Scripted, job: fg.Job) -> None:
    servant.rejections["big"] = NAMED_LIMIT
    specs = [fg.SlotSpec(labels={"name": name}) for name in ("small", "big")]
    small, big = await job.request_slots(specs, raise_on_reject=False)
    assert big.rejection is not None
    assert big.rejection.reason == "INFEASIBLE_NEVER"
    with pytest.raises(fg.RequestRejected):
        await big.granted()
    assert (await small.granted(timeout_s=10)).generation == 1


async def test_a_request_that_is_rejected_while_it_waits_fails_like_one_that_is_refused_at_once(
    servant: Scripted, job: fg.Job
) -> None:
    servant.rejections["big"] = NAMED_LIMIT
    (at_once,) = await job.request_slots(fg.SlotSpec(labels={"name": "big"}), raise_on_reject=False)
    servant.auto_grant = False
    (later,) = await job.request_slots(fg.SlotSpec())
    waiting = asyncio.create_task(later.granted(timeout_s=10))
    reason = str(NAMED_LIMIT.reason)
    await servant.tell(later.allocation_id, REJECTED, reason=reason, message=NAMED_LIMIT.message)

    with pytest.raises(fg.RequestRejected) as first:
        await at_once.granted()
    with pytest.raises(fg.RequestRejected) as second:
        await waiting
    assert first.value.message.replace(at_once.allocation_id, later.allocation_id) == (
        second.value.message
    )
    assert first.value.reason is second.value.reason is Reason.INFEASIBLE_NEVER


async def test_waiting_in_vain_keeps_the_request(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    (request,) = await job.request_slots(fg.SlotSpec())
    with pytest.raises(TimeoutError, match="WAITING_CAPACITY"):  # as Explain says
        await request.granted(timeout_s=0.05)
    waiting = asyncio.create_task(request.granted())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert servant.calls["CancelRequests"] == []
    await servant.tell(request.allocation_id, GRANTED)
    assert (await request.granted(timeout_s=10)).executor_id == "host-a"


async def test_a_cancelled_request_is_taken_back(servant: Scripted, job: fg.Job) -> None:
    servant.blocked["RequestResource"] = asyncio.Event()
    asking = asyncio.create_task(job.request_slots(fg.SlotSpec(count=2)))
    await eventually(lambda: servant.live["RequestResource"] == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: servant.live["RequestResource"] == 0)
    await eventually(lambda: servant.calls["CancelRequests"])
    asked = servant.calls["RequestResource"][0].requests
    taken_back = servant.calls["CancelRequests"][0].allocation_ids
    assert list(taken_back) == [each.allocation_id for each in asked]
    assert job.requests == []


async def test_what_a_failed_call_may_have_begun_is_taken_back(
    servant: Scripted, job: fg.Job
) -> None:
    servant.failures["RequestResource"].append(fg.FinegrainError("a bug"))
    with pytest.raises(fg.FinegrainError, match="a bug"):
        await job.request_slots(fg.SlotSpec())
    await eventually(lambda: servant.calls["CancelRequests"])
    servant.failures["RequestResource"].append(fg.InvalidArgument("labels", "x", "less"))
    with pytest.raises(fg.InvalidArgument):
        await job.request_slots(fg.SlotSpec())
    assert len(servant.calls["CancelRequests"]) == 1
    assert job.requests == []


async def test_large_batches_are_cut(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    requests = await job.request_slots(fg.SlotSpec(count=10_001))
    assert [len(each.requests) for each in servant.calls["RequestResource"]] == [10_000, 1]
    assert len({each.allocation_id for each in requests}) == 10_001
    wide = fg.SlotSpec(labels={f"key-{n}": "v" * 60 for n in range(20)}, count=4000)
    await job.request_slots(wide)
    sent = servant.calls["RequestResource"][2:]
    assert len(sent) == 2
    assert all(each.ByteSize() < 4 * 1024 * 1024 for each in sent)
    outcomes = await job.cancel(requests)
    assert [len(each.allocation_ids) for each in servant.calls["CancelRequests"]] == [10_000, 1]
    assert len(outcomes) == 10_001


async def test_a_slot_that_comes_again_after_a_loss(servant: Scripted, job: fg.Job) -> None:
    (request,) = await job.request_slots(fg.SlotSpec(restart_on_loss=True))
    first = await request.granted(timeout_s=10)
    await servant.tell(request.allocation_id, PENDING, reason="EXECUTOR_LOST")
    await asyncio.wait_for(first.lost.wait(), 10)
    assert isinstance(first.error, fg.SlotLost)
    assert first.error.reason is Reason.EXECUTOR_LOST
    await servant.tell(request.allocation_id, GRANTED, generation=2)
    second = await request.granted(timeout_s=10)
    assert (second.generation, second.is_lost) == (2, False)


async def test_a_slot_whose_lost_host_comes_back_with_it(servant: Scripted, job: fg.Job) -> None:
    (request,) = await job.request_slots(fg.SlotSpec(restart_on_loss=True))
    first = await request.granted(timeout_s=10)
    await servant.tell(request.allocation_id, PENDING, reason="EXECUTOR_LOST")
    await asyncio.wait_for(first.lost.wait(), 10)
    await servant.tell(request.allocation_id, GRANTED, generation=1)
    again = await request.granted(timeout_s=10)
    assert (again.generation, again.has_ended) == (1, False)
    assert first.is_lost


async def test_a_lease_that_is_over_is_heard_by_everybody(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    (request,) = await job.request_slots(fg.SlotSpec())
    events = job.events()
    servant.failures["WatchJob"].append(JOB_ENDED)
    await servant.wake()
    with pytest.raises(fg.JobEnded, match="the lease is over"):
        await request.granted(timeout_s=10)
    with pytest.raises(fg.JobEnded):
        await job.request_slots(fg.SlotSpec())
    with pytest.raises(fg.JobEnded):
        await anext(events)


async def test_a_call_that_is_refused_before_the_watch_stream_ends_says_that_the_job_has_ended(
    servant: Scripted, job: fg.Job
) -> None:
    servant.failures["RequestResource"].append(JOB_ENDED)
    with pytest.raises(fg.JobEnded, match="the lease is over"):
        await job.request_slots(fg.SlotSpec())


async def test_events_are_kept_alive_and_acknowledged(
    servant: Scripted, cluster: fg.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "KEEP_ALIVE_LONGEST_S", 0.05)
    async with cluster.job("alive") as job:
        requests = await job.request_slots(fg.SlotSpec(count=3))
        for request in requests:
            await request.granted(timeout_s=10)
        await eventually(
            lambda: any(each.acknowledged_sequence == 3 for each in servant.calls["KeepAlive"])
        )


async def test_an_attached_job_is_kept_alive_within_its_own_lease(
    servant: Scripted, cluster: fg.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "KEEP_ALIVE_LONGEST_S", 3_600)
    async with cluster.attach_job("job-1", lease_s=0.15):
        await eventually(lambda: bool(servant.calls["KeepAlive"]))


async def test_a_detached_job_outlives_its_context_and_can_be_opened_again(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    async with cluster.job("service", detached=True) as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        await request.granted(timeout_s=10)
    assert servant.calls["EndJob"] == []
    status = servant.snapshot_of(request.allocation_id, GRANTED)
    servant.snapshot = [status]
    async with cluster.attach_job(job.job_id) as again:
        (found,) = again.requests
        assert (await found.granted(timeout_s=10)).allocation_id == request.allocation_id
        await again.end()
        with pytest.raises(fg.JobEnded):
            await again.request_slots(fg.SlotSpec())
    assert len(servant.calls["EndJob"]) == 1


async def test_leaving_a_detached_job_takes_a_submission_back_that_was_cancelled(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.blocked["SubmitTask"] = asyncio.Event()
    async with cluster.job("service", detached=True) as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        slot = await request.granted(timeout_s=10)
        running = asyncio.create_task(slot.run(["true"], task_id="task-1"))
        await eventually(lambda: servant.live["SubmitTask"] == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [each.task_id for each in servant.calls["CancelTask"]] == ["task-1"]


async def test_a_job_is_open_again_once_its_whole_snapshot_was_heard(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    async with cluster.job("service", detached=True) as job:
        requests = await job.request_slots(fg.SlotSpec(count=3))
        for each in requests:
            await each.granted(timeout_s=10)
    servant.snapshot = [servant.snapshot_of(each.allocation_id, GRANTED) for each in requests]
    servant.break_snapshot_after.append(2)
    watched = len(servant.calls["WatchJob"])
    async with cluster.attach_job(job.job_id) as again:
        ids = [each.allocation_id for each in requests]
        assert [each.allocation_id for each in again.requests] == ids
        assert [each.from_sequence for each in servant.calls["WatchJob"][watched:]] == [0, 0]
        await again.end()


async def test_a_job_that_is_not_entered_says_so(cluster: fg.Cluster) -> None:
    with pytest.raises(FailedPrecondition, match="async with"):
        await cluster.job("early").request_slots(fg.SlotSpec())


async def test_explanations_come_as_values(job: fg.Job) -> None:
    (request,) = await job.request_slots(fg.SlotSpec())
    explanation = await request.explain()
    assert explanation.primary_reason == "WAITING_CAPACITY"
    assert explanation.executors[0].blockers == ("INSUFFICIENT_CPU_MILLI",)
    assert explanation.to_dict()["request"]["state"] == "PENDING"


async def test_leaving_while_the_resource_manager_is_gone_does_not_hang(
    servant: Scripted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "ENDING_BUDGET_S", 0.2)
    async with fg.connect(servant.address) as cluster:
        job = cluster.job("orphan")
        await job.__aenter__()
        servant.failures["EndJob"].extend([fg.Unavailable("starting")] * 100)
        await job.__aexit__(None, None, None)
    assert "it ends when its lease" in caplog.text


async def test_a_job_of_another_user_is_not_opened(servant: Scripted, cluster: fg.Cluster) -> None:
    servant.failures["WatchJob"].append(fg.PermissionDenied("not yours", reason=Reason.NOT_OWNER))
    with pytest.raises(fg.PermissionDenied, match="not yours"):
        async with cluster.attach_job("job-1"):
            pass


async def test_closing_the_client_too_early_is_said(servant: Scripted) -> None:
    cluster = fg.connect(servant.address)
    servant.auto_grant = False
    job = cluster.job("early")
    await job.__aenter__()
    (request,) = await job.request_slots(fg.SlotSpec())
    await eventually(lambda: servant.live["WatchJob"] == 1)
    waiting = asyncio.create_task(request.granted(timeout_s=10))
    await asyncio.sleep(0)
    await cluster.close()
    with pytest.raises(fg.FailedPrecondition, match="closed"):
        await waiting


async def test_cancelled_waits_leave_nothing_behind(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    (request,) = await job.request_slots(fg.SlotSpec())
    before = len(asyncio.all_tasks())
    waits = [asyncio.create_task(request.granted()) for _ in range(100)]
    await asyncio.sleep(0)
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert len(asyncio.all_tasks()) <= before
    assert not request._changes._waiters
