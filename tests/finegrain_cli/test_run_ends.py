"""`run` ends in the same way whether its task or its slot reports the end first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import FailedPrecondition, NotFound, Reason
from finegrain_cli.run import gangs, running, waiting
from finegrain_cli.run.options import GangOptions, RunOptions
from finegrain_cli.run.signals import Signals
from finegrain_cli.run.streams import OutputTarget
from tests.client.scripted import (
    CANCELLED,
    GRANTED,
    JOB_ENDED,
    LOST,
    PENDING,
    RELEASED,
    Program,
    Scripted,
    eventually,
    serving,
)
from tests.support.identities import credentials_file

ORDERS = pytest.mark.parametrize("first", ["task", "slot"])


@pytest.fixture
async def servant() -> AsyncIterator[Scripted]:
    servant = Scripted()
    async with serving(servant):
        yield servant


@pytest.fixture
async def job(servant: Scripted, tmp_path: Path) -> AsyncIterator[fg.Job]:
    file = credentials_file(tmp_path, "user/alice", servant.address)
    async with (
        fg.connect(servant.address, credentials=file, budget_s=10) as cluster,
        cluster.job("test") as job,
    ):
        yield job


def options(*, restart: bool = False, gang: GangOptions | None = None) -> RunOptions:
    return RunOptions(
        argv=("sleep", "9"),
        slot=fg.SlotSpec(restart_on_device_loss=restart),
        env=(),
        cwd="",
        user="",
        name="sleep",
        group="",
        priority=0,
        timeout_s=None,
        wait_timeout_s=None,
        grace_s=1.0,
        stats=False,
        gang=gang,
    )


async def begun(servant: Scripted, job: fg.Job, wanted: RunOptions) -> asyncio.Task[int]:
    """Starts `run`, and returns when its commands run."""
    servant.programs["sleep"] = Program(ends=False)
    target, signals = OutputTarget(), Signals(1.0)

    async def work() -> int:
        with closing(target):
            if wanted.gang is not None:
                return await gangs.run_gang(job, target, wanted, wanted.gang, {}, signals)
            return await running._run_one(job, target, wanted, {}, signals)

    members = wanted.gang.members if wanted.gang is not None else 1
    task = asyncio.create_task(work())
    await eventually(lambda: servant.live["WatchTask"] == members)
    return task


async def end(servant: Scripted, name: str, state: Any, reason: str, first: str) -> None:
    """Ends a slot together with its task."""
    if first == "slot":
        await servant.tell(name, state, reason=reason)
        await asyncio.sleep(0.05)
    await servant.end_program("sleep", cancelled=True, exit_code=7)
    if first == "task":
        await eventually(lambda: servant.live["WatchTask"] == 0)
        await servant.tell(name, state, reason=reason)


@ORDERS
async def test_a_revoked_run_says_so(servant: Scripted, job: fg.Job, first: str) -> None:
    run = await begun(servant, job, options())
    await end(servant, job.requests[0].allocation_id, LOST, "REVOKED", first)
    with pytest.raises(fg.SlotLost) as caught:
        await asyncio.wait_for(run, 20)
    assert caught.value.reason is Reason.REVOKED


@ORDERS
async def test_a_run_whose_job_is_ended_says_so(servant: Scripted, job: fg.Job, first: str) -> None:
    run = await begun(servant, job, options())
    if first == "task":
        await servant.end_program("sleep", cancelled=True, exit_code=7)
        await eventually(lambda: servant.live["WatchTask"] == 0)
    servant.failures["WatchJob"].append(JOB_ENDED)
    await servant.wake()
    with pytest.raises(fg.JobEnded):
        await asyncio.wait_for(run, 20)


@ORDERS
async def test_a_run_whose_slot_is_released_has_the_exit_code_of_its_command(
    servant: Scripted, job: fg.Job, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await begun(servant, job, options())
    await end(servant, job.requests[0].allocation_id, RELEASED, "TERMINATED", first)
    assert await asyncio.wait_for(run, 20) == 7
    assert "[TERMINATED]" in capsys.readouterr().err


@ORDERS
async def test_a_run_starts_again_whose_device_failed(
    servant: Scripted, job: fg.Job, first: str
) -> None:
    run = await begun(servant, job, options(restart=True))
    name = job.requests[0].allocation_id
    await end(servant, name, PENDING, "DEVICE_LOST", first)
    await servant.tell(name, GRANTED, generation=2)
    servant.programs["sleep"] = Program()
    assert await asyncio.wait_for(run, 20) == 0
    assert [each.generation for each in servant.tasks.values()] == [1, 2]


async def test_a_run_starts_again_whose_device_failed_before_the_command_started(
    servant: Scripted, job: fg.Job
) -> None:
    servant.programs["sleep"] = Program()
    freeing = {"state": "FREEING"}
    servant.failures["SubmitTask"].append(
        FailedPrecondition("it is freed", reason=Reason.SLOT_NOT_READY, details=freeing)
    )
    with closing(OutputTarget()) as target:
        work = running._run_one(job, target, options(restart=True), {}, Signals(1.0))
        run = asyncio.create_task(work)
        await eventually(lambda: servant.calls["SubmitTask"])
        name = job.requests[0].allocation_id
        await servant.tell(name, PENDING, reason="DEVICE_LOST")
        await servant.tell(name, GRANTED, generation=2)
        assert await asyncio.wait_for(run, 20) == 0


@ORDERS
async def test_a_gang_that_loses_a_member_says_so(
    servant: Scripted, job: fg.Job, first: str
) -> None:
    run = await begun(servant, job, options(gang=GangOptions(2, "ANYWHERE", "", None)))
    other, lost = (each.allocation_id for each in job.requests)
    await end(servant, lost, LOST, "DEVICE_LOST", first)
    await servant.tell(other, LOST, reason="GANG_BROKEN")
    with pytest.raises(fg.SlotLost) as caught:
        await asyncio.wait_for(run, 20)
    assert caught.value.details["allocation_id"] == lost


async def test_a_request_that_ends_while_its_wait_is_explained(
    servant: Scripted, job: fg.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the explanation would hide the reason of the end."""
    monkeypatch.setattr(waiting, "QUIET_S", 0.05)
    servant.auto_grant = False
    servant.failures["Explain"].append(NotFound("it has ended", reason=Reason.ALLOCATION_UNKNOWN))
    (request,) = await job.request_slots(fg.SlotSpec())
    waits = asyncio.create_task(waiting.granted(request, None))
    await eventually(lambda: servant.calls["Explain"])
    await servant.tell(request.allocation_id, CANCELLED, reason="TERMINATED")
    with pytest.raises(fg.RequestEnded) as caught:
        await asyncio.wait_for(waits, 20)
    assert caught.value.reason is Reason.TERMINATED
