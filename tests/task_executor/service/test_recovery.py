"""A restart combines the checkpoint with the helper's state before anything is reported."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessages

from finegrain.errors import AlreadyExists
from finegrain.v1 import task_executor_pb2 as te
from task_executor.host.helper_messages import TaskSpec
from task_executor.service import checkpoint, host_sync, task_runner
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_requests import Submission, submission_of
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

BASELINE = Path(__file__).parents[3] / "protos/baseline.binpb"  # the protocol of version 0.2


async def again(rm: ScriptedRM, executor: Executor) -> JobMaster:
    """Starts the executor again after a crash of its front."""
    before = len(rm.registrations)
    await executor.start()
    await eventually(lambda: len(rm.registrations) > before, "it registers")
    await eventually(lambda: executor.front.agent.state.registered, "it knows its registration")
    return executor.job_master


def keeper(executor: Executor) -> SlotKeeper:
    return executor.front.keeper


async def test_tasks_are_taken_back_with_their_order_owner_and_command(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    for number in (2, 1, 3):
        await executor.job_master.submit("sleep", str(number), task_id=f"t{number}")
    executor.helper.end("t2", 5)
    await executor.crash()
    executor.helper.end("t1", 6)
    job_master = await again(rm, executor)
    tasks = await job_master.tasks()
    assert [(t.task_id, list(t.argv), t.exit.exit_code) for t in tasks] == [
        ("t2", ["sleep", "2"], 5),
        ("t1", ["sleep", "1"], 6),
        ("t3", ["sleep", "3"], 0),
    ]
    assert tasks[2].state == te.TASK_STATE_RUNNING
    await job_master.submit("true", task_id="t4")
    assert [t.task_id for t in await job_master.tasks()][-1] == "t4"


async def test_a_task_that_was_recorded_but_never_started_can_be_submitted_again(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    await executor.crash()
    executor.helper.specs.clear()
    job_master = await again(rm, executor)
    assert await job_master.tasks() == []
    assert (await job_master.submit("true")).state == te.TASK_STATE_RUNNING


def submission_of_version_0_2(request: te.SubmitTaskRequest) -> Submission:
    """Decodes a submission in an executor whose protocol has no field `wait`."""
    files = FileDescriptorSet.FromString(BASELINE.read_bytes())
    kind = GetMessages(files.file)["finegrain.v1.SubmitTaskRequest"]
    assert "wait" not in kind.DESCRIPTOR.fields_by_name
    content = kind.FromString(request.SerializeToString()).SerializeToString(deterministic=True)
    return replace(submission_of(request), digest=sha256(content).hexdigest())


async def test_a_submission_that_waits_is_the_same_after_an_upgrade_of_the_executor(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rm.allocate(allocation())
    with monkeypatch.context() as earlier:
        earlier.setattr(task_runner, "submission_of", submission_of_version_0_2)
        await executor.job_master.submit("true", wait_ms=1)
    await executor.crash()
    job_master = await again(rm, executor)
    assert (await job_master.submit("true", wait_ms=1)).task_id == "task"
    assert executor.helper.said("start") == ["start task"]
    with pytest.raises(AlreadyExists):
        await job_master.submit("false", wait_ms=1)


async def test_a_task_that_nobody_recorded_is_ended_and_forgotten(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.crash()
    await executor.helper.start_task(TaskSpec("stray", "slot", 1, ["sleep", "1000"]))
    await again(rm, executor)
    assert executor.helper.said("kill stray")
    assert not executor.helper.specs


async def test_tasks_of_slots_that_are_gone_are_told_for_a_while(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    await rm.free(free())
    await executor.crash()
    job_master = await again(rm, executor)
    end = (await job_master.watch()).exit
    assert (end.signal, end.cancelled) == (9, True)
    (task,) = keeper(executor).tasks
    assert task.slot_removed_at is not None


async def test_a_task_that_ended_before_its_slot_did_was_not_cancelled(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    executor.helper.end("task", 5)
    await rm.free(free())
    await executor.crash()
    job_master = await again(rm, executor)
    end = (await job_master.watch()).exit
    assert (end.exit_code, end.cancelled) == (5, False)


async def test_ends_that_the_rm_has_not_heard_of_are_told_after_a_restart(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    rm.acknowledge = False
    executor.helper.slots.clear()
    await executor.front.sync.compare()
    await eventually(lambda: rm.ended() == {"slot": "SLOT_BROKEN"}, "it is told")
    await executor.crash()
    rm.states.clear()
    rm.acknowledge = True
    await again(rm, executor)
    assert [(e.allocation_id, e.reason) for e in rm.registered.report.ended] == [
        ("slot", "SLOT_BROKEN")
    ]
    await eventually(lambda: not rm.states[-1].ended, "it is acknowledged")
    content = checkpoint.read_document(executor.folder / "state" / "state.json")
    assert content is not None
    assert content["ended"] == []


async def test_slots_that_went_with_a_reboot_did_not_break(
    rm: ScriptedRM, executor: Executor
) -> None:
    """If a slot breaks on a host, the resource manager avoids this host for a while, and other
    requests could overtake.
    """
    await rm.allocate(allocation())
    await executor.crash()
    executor.helper.slots.clear()
    executor.helper.boot_id = "next boot"
    await again(rm, executor)
    assert rm.registered.boot_id == "next boot"
    assert [(e.allocation_id, e.reason) for e in rm.registered.report.ended] == [
        ("slot", "SLOT_MISSING")
    ]


async def test_what_cannot_be_read_of_the_checkpoint_is_destroyed_on_the_host(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("good"), allocation("bad"))
    await executor.job_master.submit("true", allocation_id="good")
    await executor.crash()
    path = executor.folder / "state" / "state.json"
    content = checkpoint.read_document(path)
    assert content is not None
    del next(s for s in content["slots"] if s["spec"]["allocation_id"] == "bad")["spec"]["job_id"]
    checkpoint.write_document(path, content)
    checkpoint.write_document(executor.folder / "state" / "tasks" / "odd.json", {"task_id": "odd"})
    await again(rm, executor)
    assert [slot.allocation_id for slot in rm.registered.report.slots] == ["good"]
    assert list(executor.helper.slots) == [("good", 1)]


async def test_an_unknown_slot_that_does_not_go_does_not_keep_the_executor_from_serving(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_sync, "DESTROY_S_MAX", 0.05)
    await rm.allocate(allocation())
    await executor.crash()
    limits = executor.helper.slots["slot", 1]
    await executor.helper.create_slot(replace(limits, allocation_id="stuck"))

    executor.helper.destroy_gate.clear()
    await again(rm, executor)
    assert [slot.allocation_id for slot in rm.registered.report.slots] == ["slot"]
    executor.helper.destroy_gate.set()
    await eventually(lambda: list(executor.helper.slots) == [("slot", 1)], "it goes in the end")


async def test_a_shrunken_host_keeps_what_it_has_and_offers_no_more(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation(cpu_milli=4000))
    await executor.crash()
    await executor.start(slots_max=1)
    await eventually(lambda: len(rm.registrations) == 2, "it registers")
    await eventually(lambda: executor.front.agent.state.registered, "it is registered")
    answer = await rm.allocate(allocation("more"))
    assert answer.results[0].error.reason == "SLOT_LIMIT"


async def test_a_stop_that_is_to_leave_nothing_behind_frees_forgets_and_tells(
    rm: ScriptedRM, executor: Executor
) -> None:
    await executor.crash()
    await executor.start(stop_tasks_on_exit=True)
    await eventually(lambda: executor.front.agent.state.registered, "it is registered")
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    executor.running.cancel()
    await executor.front.stop()
    assert rm.ended() == {"slot": "TERMINATED"}
    assert (executor.helper.slots, executor.helper.specs) == ({}, {})
    assert executor.helper.stopped
    executor.directory.close()
    assert not executor.saved_tasks()
    await executor.start()


async def test_what_unknown_slots_hold_is_nobodys_until_they_are_gone(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_sync, "DESTROY_S_MAX", 0.05)
    total = keeper(executor).table.share.total
    await rm.allocate(allocation("old", cpu_milli=total["cpu_milli"]))
    await executor.crash()
    (executor.folder / "state" / "state.json").unlink()
    executor.helper.destroy_gate.clear()
    await again(rm, executor)
    said = rm.registered.report
    assert not said.slots
    assert not said.available.cpu_milli
    answer = await rm.allocate(allocation("new", cpu_milli=100))
    assert answer.results[0].error.reason == "INSUFFICIENT_RESOURCES"
    assert [name for name, _generation in executor.helper.slots] == ["old"]
    executor.helper.destroy_gate.set()
    await eventually(lambda: keeper(executor).table.available() == dict(total), "all is free again")
    answer = await rm.allocate(allocation("new", cpu_milli=total["cpu_milli"]))
    assert not answer.results[0].HasField("error")
