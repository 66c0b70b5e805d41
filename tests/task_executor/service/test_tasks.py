"""Tasks over real gRPC with a fake helper: who may submit, which calls count as the same task, and
what watchers see.
"""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import pytest

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from finegrain.rpc.wire import duration_ms_to_proto
from finegrain.v1 import task_executor_pb2 as te
from task_executor.host.helper_messages import Reconnected, TaskFault
from task_executor.service import task_runner, task_table, task_watch
from tests.support.disk_calls import DiskCalls
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import (
    OPERATOR,
    OTHER_OWNER,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

OUTPUT_LIMIT = 64 * 1024 * 1024  # the default of the options


@pytest.fixture
async def job_master(rm: ScriptedRM, executor: Executor) -> JobMaster:
    """Returns a job master that owns the slot `slot`."""
    await rm.allocate(allocation())
    return executor.job_master


async def test_the_same_submission_again_is_the_same_task(
    executor: Executor, job_master: JobMaster
) -> None:
    one, two = await asyncio.gather(job_master.submit("true"), job_master.submit("true"))
    assert one == two == await job_master.submit("true")
    assert executor.helper.said("start") == ["start task"]


async def test_the_same_id_with_other_content_or_another_owner_is_a_conflict(
    rm: ScriptedRM, executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    with pytest.raises(AlreadyExists):
        await job_master.submit("false")
    await rm.allocate(allocation("theirs", job_id="job-b", owner=OTHER_OWNER))
    with pytest.raises(AlreadyExists):
        await replace(job_master, who=OTHER_OWNER).submit("true", allocation_id="theirs")


@pytest.mark.parametrize("who", [OTHER_OWNER, OPERATOR])
async def test_a_task_needs_the_identity_of_its_owner(
    executor: Executor, job_master: JobMaster, who: str
) -> None:
    stranger = replace(job_master, who=who)
    with pytest.raises(PermissionDenied) as refused:
        await stranger.submit("true")
    assert refused.value.reason is Reason.NOT_OWNER
    assert who in refused.value.message
    assert not executor.helper.specs
    await job_master.submit("true")
    for call in (stranger.signal(9), stranger.write((0, b"", True))):
        with pytest.raises(PermissionDenied):
            await call


async def test_a_stranger_cannot_watch_list_or_cancel_but_an_operator_can(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    stranger = replace(job_master, who=OTHER_OWNER)
    for call in (stranger.watch(), stranger.tasks(), stranger.cancel()):
        with pytest.raises(PermissionDenied):
            await call
    operator = replace(job_master, who=OPERATOR)
    assert [task.task_id for task in await operator.tasks()] == ["task"]
    await operator.cancel()
    assert (await operator.watch()).exit.cancelled


async def test_only_the_owner_holds_the_output_and_only_one_reader_does(
    executor: Executor, job_master: JobMaster
) -> None:
    helper = executor.helper
    await job_master.submit("sleep")
    with pytest.raises(PermissionDenied):
        await replace(job_master, who=OPERATOR).watch(holder="second")
    assert helper.holder == ""
    await helper.hold_output("task", "first", 0, 0)
    with pytest.raises(AlreadyExists):
        await job_master.watch(holder="second")
    with pytest.raises(InvalidArgument):
        await job_master.watch(holder="not an id")
    await job_master.cancel()
    seen = await job_master.watch(holder="first", stdout_offset=3)
    assert seen.exit.cancelled


@pytest.mark.parametrize(
    ("generation", "reason"),
    [(1, Reason.STALE_GENERATION), (3, Reason.SLOT_NOT_READY)],
    ids=["a lower generation", "a higher generation"],
)
async def test_only_the_present_generation_takes_tasks(
    rm: ScriptedRM, executor: Executor, generation: int, reason: Reason
) -> None:
    await rm.allocate(allocation(generation=2))
    with pytest.raises(FailedPrecondition) as refused:
        await executor.job_master.submit("true", generation=generation)
    assert refused.value.reason is reason


async def test_a_slot_that_is_being_freed_takes_no_tasks(
    rm: ScriptedRM, executor: Executor, job_master: JobMaster
) -> None:
    executor.helper.destroy_gate.clear()
    await rm.free(free())
    with pytest.raises(FailedPrecondition) as refused:
        await job_master.submit("true")
    assert refused.value.reason is Reason.SLOT_NOT_READY
    executor.helper.destroy_gate.set()
    await eventually(lambda: not rm.slots(), "it is gone")
    with pytest.raises(NotFound):
        await job_master.submit("true")


BAD: dict[str, tuple[dict[str, object], str]] = {
    "no program": ({"argv": []}, "spec.argv"),
    "an empty program": ({"argv": ["", "x"]}, "spec.argv"),
    "NUL in an argument": ({"argv": ["echo", "a\0b"]}, "spec.argv[1]"),
    "arguments beyond the limit": ({"argv": ["echo", "x" * 131_072]}, "spec.argv"),
    "a name with a digit first": ({"env": {"1A": "x"}}, "spec.env key"),
    "a name with an equals sign": ({"env": {"A=B": "x"}}, "spec.env key"),
    "NUL in a value": ({"env": {"A": "x\0"}}, "spec.env[A]"),
    "a relative directory": ({"cwd": "here"}, "spec.cwd"),
    "a user with a slash": ({"user": "../root"}, "spec.user"),
    "a negative output limit": ({"output_limit_bytes": -1}, "spec.output_limit_bytes"),
    "a timeout of a century": ({"timeout_ms": 1 << 42}, "spec.timeout"),
    "an id with a slash": ({"task_id": "../x"}, "task_id"),
    "no allocation": ({"allocation_id": ""}, "allocation_id"),
    "a wait of a minute": ({"wait_ms": 60_000}, "wait"),
    "generation zero": ({"generation": 0}, "generation"),
}


@pytest.mark.parametrize(("bad", "field"), BAD.values(), ids=BAD)
async def test_bad_input_names_field_and_way_out(
    executor: Executor, job_master: JobMaster, bad: dict[str, object], field: str
) -> None:
    told = {"argv": ["true"]} | bad
    argv = told.pop("argv")
    with pytest.raises(InvalidArgument) as refused:
        await job_master.submit(*argv, **told)  # type: ignore[arg-type, misc]
    assert refused.value.details["field"] == field
    assert refused.value.details["expected"]
    assert not executor.helper.specs


@pytest.mark.parametrize(
    ("requested", "kept"), [(0, OUTPUT_LIMIT), (1_000, 1_000), (1 << 40, OUTPUT_LIMIT)]
)
async def test_the_limit_of_the_operator_holds_for_the_output_of_tasks(
    executor: Executor, job_master: JobMaster, requested: int, kept: int
) -> None:
    await job_master.submit("true", output_limit_bytes=requested)
    (spec,) = executor.helper.specs.values()
    assert spec.log_limit_bytes == kept


async def test_a_submission_above_its_size_is_refused(job_master: JobMaster) -> None:
    with pytest.raises(ResourceExhausted) as refused:
        await job_master.submit("true", env={"A": "x" * 300_000})
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE


async def test_a_task_that_cannot_be_recorded_is_not_started(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        request = te.SubmitTaskRequest(task_id="task", allocation_id="slot", generation=1)
        request.spec.argv.append("true")
        with pytest.raises(Unavailable) as refused:
            await job_master.call("SubmitTask", request)
    assert refused.value.reason is Reason.DISK_FULL
    assert not executor.helper.specs
    assert (await job_master.submit("true")).state == te.TASK_STATE_RUNNING


async def test_a_task_is_acknowledged_only_when_it_is_durable_and_starts_once(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    request = te.SubmitTaskRequest(task_id="task", allocation_id="slot", generation=1)
    request.spec.argv.append("true")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", broken)
        for _ in range(2):
            with pytest.raises(Unavailable, match="could not be recorded"):
                await job_master.call("SubmitTask", request)
    assert (await job_master.submit("true")).state == te.TASK_STATE_RUNNING
    assert executor.helper.said("start") == ["start task"]


async def test_tasks_that_start_together_share_a_sync(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, sync = DiskCalls(monkeypatch), os.fdatasync
    all_written = threading.Event()

    def slow_sync(fd: int) -> None:
        # The first sync takes until all tasks have arrived, so the other tasks share the next one.
        all_written.wait(PATIENCE_S)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    submitted = [
        asyncio.create_task(job_master.submit("true", task_id=f"t{each}")) for each in range(50)
    ]
    await eventually(lambda: len(executor.saved_tasks()) == 50, "all tasks are written")
    all_written.set()
    await asyncio.gather(*submitted)
    assert 0 < len(disk.calls) <= 10
    assert executor.saved_tasks().keys() == {f"t{each}" for each in range(50)}


async def test_a_start_that_the_helper_refuses_is_a_failed_task(
    executor: Executor, job_master: JobMaster
) -> None:
    executor.helper.refuse_start = FailedPrecondition("too small", reason=Reason.LIMIT_TOO_SMALL)
    status = await job_master.submit("true")
    assert (status.state, status.error.reason) == (te.TASK_STATE_FAILED, "LIMIT_TOO_SMALL")
    await executor.crash()
    await executor.start()
    again = JobMaster(executor.front.address)
    await eventually(lambda: executor.front.agent.state.registered, "it registers")
    assert (await again.submit("true")).error.reason == "LIMIT_TOO_SMALL"


async def test_while_the_helper_is_away_a_start_waits_for_it(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "HELPER_RETRY_S", 0.01)
    executor.helper.refuse_start = Unavailable("no helper answers")
    submitted = asyncio.create_task(job_master.submit("true"))
    await eventually(lambda: len(executor.helper.said("start")) > 2, "it tries again")
    executor.helper.refuse_start = None
    assert (await submitted).state == te.TASK_STATE_RUNNING


async def test_a_caller_who_gives_up_finds_the_task_started(
    executor: Executor, job_master: JobMaster
) -> None:
    executor.helper.start_gate.clear()
    given_up = asyncio.create_task(job_master.submit("true"))
    await eventually(lambda: executor.helper.said("start"), "it is being started")
    given_up.cancel()
    executor.helper.start_gate.set()
    assert (await job_master.submit("true")).state == te.TASK_STATE_RUNNING
    assert executor.helper.said("start") == ["start task"]


def waiting(wait_ms: int) -> te.SubmitTaskRequest:
    request = te.SubmitTaskRequest(task_id="task", allocation_id="slot", generation=1)
    request.spec.argv.append("true")
    request.wait.CopyFrom(duration_ms_to_proto(wait_ms))
    return request


async def test_a_submission_that_waits_gets_end_and_output_of_a_short_task(
    executor: Executor, job_master: JobMaster
) -> None:
    submitted = asyncio.create_task(job_master.call("SubmitTask", waiting(1_000)))
    await eventually(lambda: "task" in executor.helper.specs, "it is started")
    executor.helper.write("task", b"out")
    executor.helper.write("task", b"err", "stderr")
    executor.helper.end("task", 3)
    answer = await submitted
    assert (answer.task.state, answer.task.exit.exit_code) == (te.TASK_STATE_EXITED, 3)
    assert {each.stream: each.data for each in answer.output} == {1: b"out", 2: b"err"}
    assert answer.complete
    # A repeated submission with another wait counts as the same submission.
    assert await job_master.call("SubmitTask", waiting(7)) == answer
    assert not (await job_master.submit("true")).HasField("error")


async def test_a_submission_that_waits_in_vain_gets_the_running_task(
    executor: Executor, job_master: JobMaster
) -> None:
    answer = await job_master.call("SubmitTask", waiting(1))
    assert (answer.task.state, answer.complete) == (te.TASK_STATE_RUNNING, False)
    executor.helper.write("task", b"late")
    executor.helper.end("task")
    assert (await job_master.watch()).stdout == b"late"


@pytest.mark.parametrize(("size", "complete"), [(65_536, True), (65_537, False)])
async def test_more_output_than_fits_into_the_answer_comes_by_the_stream(
    executor: Executor, job_master: JobMaster, size: int, complete: bool
) -> None:
    await job_master.submit("true")
    executor.helper.write("task", b"x" * size)
    executor.helper.end("task")
    await eventually(lambda: not executor.front.keeper.tasks.running(), "it ends")
    answer = await job_master.call("SubmitTask", waiting(1_000))
    assert answer.task.state == te.TASK_STATE_EXITED
    assert answer.complete is complete
    assert sum(len(each.data) for each in answer.output) == (size if complete else 0)


async def test_everything_written_comes_before_the_end(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    watchers = [asyncio.create_task(job_master.watch()) for _ in range(5)]
    for number in range(50):
        executor.helper.write("task", b"%d\n" % number)
        await asyncio.sleep(0.002)
    executor.helper.write("task", b"e" * 200_000, "stderr")
    executor.helper.end("task", 3)
    for seen in await asyncio.gather(*watchers):
        assert seen.stdout == b"".join(b"%d\n" % number for number in range(50))
        assert (len(seen.stderr), seen.exit.exit_code) == (200_000, 3)
        assert seen.states[-1] == te.TASK_STATE_EXITED


async def test_a_watcher_without_output_gets_states_only(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    executor.helper.write("task", b"output")
    watcher = asyncio.create_task(job_master.watch(no_output=True))
    await asyncio.sleep(0.05)
    executor.helper.end("task")
    seen = await watcher
    assert (seen.stdout, seen.states) == (b"", [te.TASK_STATE_RUNNING, te.TASK_STATE_EXITED])


async def test_a_silent_task_gives_signs_of_life(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_watch, "KEEPALIVE_S", 0.05)
    await job_master.submit("true")
    task = executor.front.keeper.tasks.need("task")
    seen = []
    async for message in task_watch.watch_task(task, te.WatchTaskRequest(task_id="task")):
        seen.append(message)
        if len(seen) == 4:
            executor.helper.end("task")
    assert seen[1:4] == [te.WatchTaskResponse()] * 3
    assert not task.watchers


async def test_a_watcher_who_leaves_is_forgotten(executor: Executor, job_master: JobMaster) -> None:
    await job_master.submit("true")
    watcher = asyncio.create_task(job_master.watch())
    task = executor.front.keeper.tasks.need("task")
    await eventually(lambda: task.watchers == 1, "it watches")
    watcher.cancel()
    await eventually(lambda: task.watchers == 0, "it has left")


@pytest.mark.parametrize("field", ["stdout_offset", "stderr_offset"])
async def test_negative_offsets_are_refused(job_master: JobMaster, field: str) -> None:
    await job_master.submit("true")
    with pytest.raises(InvalidArgument, match=field):
        await job_master.watch(**{field: -1})  # type: ignore[arg-type]


async def test_a_slow_reader_of_input_is_fed_at_its_pace(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("cat", stdin=True)
    executor.helper.input_pipe_bytes = 10_000
    data = bytes(range(256)) * 200
    assert await job_master.write((0, data, False), (len(data), b"", True)) == len(data)
    assert bytes(executor.helper.input_bytes) == data
    assert executor.helper.calls[-1] == f"input {len(data)} 0 True"


async def test_input_sent_twice_is_taken_once(executor: Executor, job_master: JobMaster) -> None:
    await job_master.submit("cat", stdin=True)
    await job_master.write((0, b"hello", False))
    assert await job_master.write((0, b"hello", False), (3, b"lo!", False)) == 6
    assert bytes(executor.helper.input_bytes) == b"hello!"


@pytest.mark.parametrize(
    ("pieces", "field"),
    [
        pytest.param([(-1, b"x", False)], "offset", id="a negative offset"),
        pytest.param([(0, b"x" * 65_537, False)], "data", id="a piece beyond the limit"),
        pytest.param([], "task_id", id="no message at all"),
    ],
)
async def test_bad_input_streams_are_refused(
    job_master: JobMaster, pieces: list[tuple[int, bytes, bool]], field: str
) -> None:
    await job_master.submit("cat", stdin=True)
    with pytest.raises(InvalidArgument) as refused:
        await job_master.write(*pieces)
    assert refused.value.details["field"] == field


async def test_ended_tasks_take_signals_and_ends_but_no_input(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    executor.helper.end("task")
    await job_master.watch()
    await job_master.signal(15)
    await job_master.cancel()
    with pytest.raises(FailedPrecondition) as refused:
        await job_master.write((0, b"x", True))
    assert refused.value.reason is Reason.TASK_ENDED
    assert not (await job_master.watch()).exit.cancelled


@pytest.mark.parametrize("signum", [0, 65, -1])
async def test_signals_that_do_not_exist_are_refused(job_master: JobMaster, signum: int) -> None:
    await job_master.submit("true")
    with pytest.raises(InvalidArgument, match="1 to 64"):
        await job_master.signal(signum)


async def test_unknown_tasks_are_not_found(job_master: JobMaster) -> None:
    for call in (job_master.watch("no"), job_master.cancel("no"), job_master.signal(9, "no")):
        with pytest.raises(NotFound) as refused:
            await call
        assert refused.value.reason is Reason.TASK_UNKNOWN


async def test_tasks_outlive_their_slot_for_a_while_and_are_then_forgotten(
    rm: ScriptedRM, executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job_master.submit("true")
    await rm.free(free())
    assert (await job_master.watch()).exit.cancelled
    monkeypatch.setattr(task_runner, "LINGER_S", 0.0)
    await executor.front.runner.forget_overdue()
    assert executor.helper.said("forget") == ["forget task"]
    with pytest.raises(NotFound):
        await job_master.watch()
    assert not executor.saved_tasks()


async def test_of_very_many_ended_tasks_the_oldest_are_forgotten(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "ENDED_PER_SLOT_MAX", 2)
    monkeypatch.setattr(task_runner, "LINGER_S", 0.0)
    for number in range(4):
        await job_master.submit("true", task_id=f"t{number}")
        executor.helper.end(f"t{number}")
        await job_master.watch(f"t{number}")
        await executor.front.runner.forget_overdue()
    assert [task.task_id for task in await job_master.tasks()] == ["t2", "t3"]


async def test_an_executor_full_of_tasks_asks_to_wait(
    executor: Executor, job_master: JobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "TASKS_MAX", 0)
    with pytest.raises(ResourceExhausted) as refused:
        await job_master.submit("true")
    assert refused.value.retry_after_s == 5.0


async def test_ends_that_were_missed_are_learnt_after_a_reconnection(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    await job_master.submit("true", task_id="lost")
    executor.helper.end("task", 4)
    while not executor.helper._events.empty():
        executor.helper._events.get_nowait()
    del executor.helper.specs["lost"]
    executor.helper.tell(Reconnected())
    assert (await job_master.watch()).exit.exit_code == 4
    assert (await job_master.watch("lost")).last.error.reason == "TERMINATED"


async def test_a_task_whose_supervisor_was_killed_is_told_as_killed(
    executor: Executor, job_master: JobMaster
) -> None:
    await job_master.submit("true")
    executor.helper.end("task", None, error=TaskFault("TERMINATED", "its supervisor was killed"))
    seen = await job_master.watch()
    assert (seen.last.state, seen.exit.signal) == (te.TASK_STATE_EXITED, 9)


async def test_errors_of_the_helper_that_nobody_foresaw_leave_no_task(
    executor: Executor, job_master: JobMaster
) -> None:
    executor.helper.refuse_start = FinegrainError("boom")
    with pytest.raises(FinegrainError, match="boom"):
        await job_master.submit("true")
    executor.helper.refuse_start = None
    assert (await job_master.submit("true")).state == te.TASK_STATE_RUNNING
