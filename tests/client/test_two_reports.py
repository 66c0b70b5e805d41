"""Two sources report one fact: an answer or a task's stream, and the job's watch stream. The
outcome is the same whichever report comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason
from finegrain_client.graph_run.values import GraphState
from finegrain_client.job import job as job_module
from finegrain_client.job import watch
from finegrain_client.slot import at_executor
from tests.client.scripted import (
    GRANTED,
    JOB_ENDED,
    LOST,
    RELEASED,
    Program,
    Scripted,
    eventually,
)

ORDERS = pytest.mark.parametrize("first", ["task", "slot"])
Report = Callable[[], Awaitable[Any]]

FREEING = FailedPrecondition(
    "it does not accept tasks", reason=Reason.SLOT_NOT_READY, details={"state": "FREEING"}
)


async def job_ends(servant: Scripted) -> None:
    servant.failures["WatchJob"].append(JOB_ENDED)
    await servant.wake()


async def killed(servant: Scripted, slot: fg.Slot, first: str, end: Report) -> fg.Task:
    """Runs a task that the end of its slot ends, and reports both ends in the given order."""
    servant.programs["sleep"] = Program(ends=False)
    task = await slot.run(["sleep"])
    await eventually(lambda: servant.live["WatchTask"] == 1)
    if first == "task":
        await servant.end_program("sleep", cancelled=True)
        await eventually(lambda: task.state.has_ended)
        await end()
    else:
        await end()
        await eventually(lambda: slot.has_ended)
        await servant.end_program("sleep", cancelled=True)
    return task


@ORDERS
async def test_a_task_whose_slot_is_lost_has_no_result(
    servant: Scripted, slot: fg.Slot, first: str
) -> None:
    async def end() -> None:
        await servant.tell(slot.allocation_id, LOST, reason="REVOKED")

    task = await killed(servant, slot, first, end)
    with pytest.raises(fg.SlotLost) as caught:
        await task.wait(timeout_s=10)
    assert caught.value.reason is Reason.REVOKED


@ORDERS
async def test_a_task_whose_job_ends_has_no_result(
    servant: Scripted, slot: fg.Slot, first: str
) -> None:
    task = await killed(servant, slot, first, lambda: job_ends(servant))
    with pytest.raises(fg.JobEnded, match="the lease is over"):
        await task.wait(timeout_s=10)


@ORDERS
async def test_a_task_whose_slot_is_released_was_cancelled(
    servant: Scripted, slot: fg.Slot, first: str
) -> None:
    async def end() -> None:
        await servant.tell(slot.allocation_id, RELEASED, reason="TERMINATED")

    task = await killed(servant, slot, first, end)
    assert (await task.wait(timeout_s=10)).cancelled
    assert slot.error is not None
    assert slot.error.reason is Reason.TERMINATED


async def test_a_result_does_not_wait_forever_for_the_end_of_its_slot(
    servant: Scripted, slot: fg.Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client has cancelled the task, or the resource manager is down."""
    monkeypatch.setattr(at_executor, "END_REPORT_S", 0.05)
    servant.programs["sleep"] = Program(cancelled=True)
    task = await slot.run(["sleep"])
    assert (await task.wait(timeout_s=10)).cancelled
    assert not slot.has_ended


@pytest.mark.parametrize(
    "refusal",
    [
        FREEING,
        FailedPrecondition("an old slot", reason=Reason.STALE_GENERATION),
        NotFound("no such slot", reason=Reason.ALLOCATION_UNKNOWN),
    ],
    ids=lambda each: str(each.reason),
)
@pytest.mark.parametrize("first", ["refusal", "slot"])
async def test_a_command_for_a_slot_that_ends_is_told_why(
    servant: Scripted, slot: fg.Slot, refusal: FinegrainError, first: str
) -> None:
    async def end() -> None:
        await servant.tell(slot.allocation_id, LOST, reason="DEVICE_LOST")

    servant.failures["SubmitTask"].append(refusal)
    if first == "slot":
        await end()
        await eventually(lambda: slot.has_ended)
    running = asyncio.create_task(slot.run(["true"]))
    if first == "refusal":
        await eventually(lambda: not servant.failures["SubmitTask"])
        await end()
    with pytest.raises(fg.SlotLost) as caught:
        await asyncio.wait_for(running, 20)
    assert caught.value.reason is Reason.DEVICE_LOST


async def test_a_parked_slot_has_not_ended(servant: Scripted, slot: fg.Slot) -> None:
    servant.failures["SubmitTask"].append(
        FailedPrecondition(
            "it is parked", reason=Reason.SLOT_NOT_READY, details={"state": "PARKED"}
        )
    )
    with pytest.raises(fg.FailedPrecondition, match="it is parked"):
        await slot.run(["true"])


@pytest.mark.parametrize("first", ["refusal", "slot"])
async def test_a_resize_of_a_slot_that_ends_is_told_why(
    servant: Scripted, slot: fg.Slot, first: str
) -> None:
    servant.failures["ResizeSlot"].append(
        FailedPrecondition("not granted", reason=Reason.SLOT_NOT_READY, details={"state": "LOST"})
    )
    if first == "slot":
        await servant.tell(slot.allocation_id, LOST, reason="DEVICE_LOST")
        await eventually(lambda: slot.has_ended)
    resizing = asyncio.create_task(slot.resize(cpu_milli=700))
    if first == "refusal":
        await eventually(lambda: not servant.failures["ResizeSlot"])
        await servant.tell(slot.allocation_id, LOST, reason="DEVICE_LOST")
    with pytest.raises(fg.SlotLost) as caught:
        await asyncio.wait_for(resizing, 20)
    assert caught.value.reason is Reason.DEVICE_LOST


@pytest.mark.parametrize("first", ["call", "stream"])
async def test_a_slot_is_released_although_its_job_has_ended(
    servant: Scripted, slot: fg.Slot, first: str
) -> None:
    if first == "stream":
        await job_ends(servant)
        await eventually(lambda: slot.has_ended)
    else:
        servant.failures["ReleaseSlots"].append(JOB_ENDED)
    await slot.release()


@pytest.mark.parametrize("first", ["call", "stream"])
async def test_a_job_that_the_manager_does_not_know_has_ended(
    servant: Scripted, job: fg.Job, first: str
) -> None:
    """For example, the resource manager was restored from an older backup."""
    unknown = NotFound("it is not known", reason=Reason.JOB_UNKNOWN, details={"job_id": job.job_id})
    if first == "stream":
        servant.failures["WatchJob"].append(unknown)
        await servant.wake()
        events = job.events()
        with pytest.raises(fg.JobEnded):
            await anext(events)
    else:
        servant.failures["RequestResource"].append(unknown)
    with pytest.raises(fg.JobEnded, match="it is not known"):
        await job.request_slots(fg.SlotSpec())


async def test_the_last_events_of_a_job_count_although_its_lease_ended_first(
    servant: Scripted, cluster: fg.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that keeps the job alive gets the end of the job before the watch stream does."""
    monkeypatch.setattr(job_module, "KEEP_ALIVE_LONGEST_S", 0.05)
    async with cluster.job("short") as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        slot = await request.granted(timeout_s=10)
        servant.programs["sleep"] = Program(ends=False)
        task = await slot.run(["sleep"])
        servant.failures["KeepAlive"].append(JOB_ENDED)
        await eventually(lambda: not servant.failures["KeepAlive"])
        await servant.tell(slot.allocation_id, RELEASED, reason="JOB_OVER")
        await job_ends(servant)
        await servant.end_program("sleep", cancelled=True)
        assert (await task.wait(timeout_s=10)).cancelled
        assert slot.error is not None
        assert slot.error.reason is Reason.JOB_OVER


async def test_a_job_whose_watch_stream_is_stuck_ends_by_its_lease(
    servant: Scripted, cluster: fg.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "KEEP_ALIVE_LONGEST_S", 0.05)
    monkeypatch.setattr(watch, "END_REPORT_S", 0.05)
    servant.auto_grant = False
    async with cluster.job("short") as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        servant.failures["KeepAlive"].append(JOB_ENDED)
        with pytest.raises(fg.JobEnded):
            await request.granted(timeout_s=10)


@pytest.mark.parametrize("first", ["call", "stream"])
async def test_listeners_of_a_job_that_this_client_ends_get_no_error(
    servant: Scripted, cluster: fg.Cluster, first: str
) -> None:
    async with cluster.job("short") as job:
        events = job.events()
        ending = asyncio.Event()
        servant.blocked["EndJob"] = ending
        ended = asyncio.create_task(job.end())
        await eventually(lambda: servant.live["EndJob"] == 1)
        if first == "stream":
            await job_ends(servant)
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        ending.set()
        await ended
        with pytest.raises(StopAsyncIteration):
            await anext(events)


def graph_spec() -> fg.GraphRunSpec:
    """Returns a job of one task that is never restarted after a failure."""
    options = fg.JobOptions(program=["work"], restarts_max=0)
    graph = fg.JobGraph("one", "batch", options=options)
    graph.operator("only")
    return fg.GraphRunSpec(graph.compile())


async def begin(
    servant: Scripted, cluster: fg.Cluster, folder: Path
) -> tuple[asyncio.Task[fg.GraphOutcome], str]:
    """Starts the job, and returns the allocation id of its slot when its task runs."""
    servant.programs["work"] = Program(ends=False)
    job = fg.GraphJob(cluster, graph_spec(), state_file=folder / "state.job")
    running = asyncio.create_task(job.run())
    await eventually(lambda: servant.live["WatchTask"] == 1)
    servant.auto_grant = False
    return running, servant.calls["RequestResource"][0].requests[0].allocation_id


@ORDERS
async def test_a_graph_runs_a_task_again_whose_slot_was_released(
    servant: Scripted, cluster: fg.Cluster, tmp_path: Path, first: str
) -> None:
    running, name = await begin(servant, cluster, tmp_path)
    if first == "slot":
        await servant.tell(name, RELEASED, reason="TERMINATED")
        await asyncio.sleep(0.05)  # time for a wrong report of the loss
    await servant.end_program("work", cancelled=True)
    if first == "task":
        await eventually(lambda: servant.live["WatchTask"] == 0)
        await servant.tell(name, RELEASED, reason="TERMINATED")
    await eventually(lambda: len(servant.calls["RequestResource"]) == 2)
    servant.programs["work"] = Program()
    (again,) = servant.calls["RequestResource"][1].requests
    await servant.tell(again.allocation_id, GRANTED)
    outcome = await asyncio.wait_for(running, 20)
    assert (outcome.state, outcome.restarts) == (GraphState.FINISHED, 1)


@ORDERS
async def test_a_task_of_a_graph_that_reaches_the_time_limit_of_its_slot_has_failed(
    servant: Scripted, cluster: fg.Cluster, tmp_path: Path, first: str
) -> None:
    running, name = await begin(servant, cluster, tmp_path)
    end = {"cancelled": True, "end_reason": "TIME_LIMIT", "end_message": "its time was over"}
    if first == "slot":
        await servant.tell(name, RELEASED, reason="TIME_LIMIT")
        await asyncio.sleep(0.05)  # time for a wrong report of the loss
    await servant.end_program("work", **end)
    if first == "task":
        await eventually(lambda: servant.live["WatchTask"] == 0)
        await servant.tell(name, RELEASED, reason="TIME_LIMIT")
    outcome = await asyncio.wait_for(running, 20)
    assert outcome.state is GraphState.FAILED
    assert "its time was over" in outcome.message


async def test_a_thread_that_never_started_has_not_reached_the_time_limit_of_its_slot(
    servant: Scripted, cluster: fg.Cluster, tmp_path: Path
) -> None:
    servant.programs["work"] = Program()
    servant.failures["SubmitTask"].append(FREEING)
    spec = fg.BatchSpec(1, ["work"], retries=0)
    running = asyncio.create_task(fg.BatchJob(cluster, spec, state_file=tmp_path / "state").run())
    await eventually(lambda: servant.calls["SubmitTask"])
    await servant.tell(next(iter(servant.sized)), RELEASED, reason="TIME_LIMIT")
    assert (await asyncio.wait_for(running, 20)).done == 1
