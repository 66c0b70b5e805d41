"""Tests of tasks: started once, watched until the end, fed, signaled, and lost with their slot."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

import finegrain_client as fg
from finegrain.errors import Reason
from finegrain_client import connection
from finegrain_client.retry import RetryPolicy
from tests.client.scripted import LOST, RELEASED, Program, Scripted, eventually

TEXT = b"the quick brown fox jumps over the lazy dog"


async def test_a_command_and_what_it_said(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT, stderr=b"careful", exit_code=3)
    task = await slot.run(["say", "it"], env={"A": "b"}, cwd="/srv", user="nobody", timeout_s=2.5)
    result = await task.wait(timeout_s=10)
    assert (result.exit_code, result.stdout, result.stderr) == (3, TEXT, b"careful")
    assert (result.cpu_time_s, result.stdout_bytes) == (1.5, len(TEXT))
    (submitted,) = servant.tasks.values()
    assert submitted.allocation_id == slot.allocation_id
    assert submitted.generation == 1
    assert list(submitted.spec.argv) == ["say", "it"]
    assert (dict(submitted.spec.env), submitted.spec.cwd) == ({"A": "b"}, "/srv")
    assert submitted.spec.timeout.ToMilliseconds() == 2500
    with pytest.raises(fg.TaskFailed, match="exit code 3; its last error output: careful"):
        result.check()


async def test_a_short_task_needs_one_call(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT, stderr=b"careful", exit_code=3)
    servant.waits = True
    chunks = list[fg.OutputChunk]()
    told = await slot.run(["say"], output=chunks.append, wait_s=0.5)
    kept = await slot.run(["say"], wait_s=0.5)
    assert (await told.wait(timeout_s=10)).exit_code == 3
    assert [(each.stream, each.data) for each in chunks] == [
        ("stdout", TEXT),
        ("stderr", b"careful"),
    ]
    result = await kept.wait(timeout_s=10)
    assert (result.stdout, result.stderr, result.dropped_bytes) == (TEXT, b"careful", 0)
    assert not servant.calls["WatchTask"]
    # A later reader gets the output by the stream.
    assert b"".join([each.data async for each in kept.output() if each.stream == "stdout"]) == TEXT


async def test_a_wait_that_ends_before_the_task_changes_nothing(
    servant: Scripted, slot: fg.Slot
) -> None:
    servant.programs["say"] = Program(stdout=TEXT)
    # This executor is of an earlier version, and answers at once.
    task = await slot.run(["say"], wait_s=0.5)
    assert (await task.wait(timeout_s=10)).stdout == TEXT
    with pytest.raises(fg.InvalidArgument, match="wait_s"):
        await slot.run(["say"], wait_s=1.5)


async def test_a_good_result_checks_out(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["true"] = Program()
    task = await slot.run(["true"])
    result = await task.wait(timeout_s=10)
    assert result.check() is result
    assert result.to_dict()["cpu_time_s"] == 1.5


async def test_the_tasks_of_a_slot_are_listed(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["wait"] = Program(ends=False)
    servant.programs["true"] = Program()
    first = await slot.run(["wait"], task_id="first")
    await (await slot.run(["true"], task_id="second")).wait(timeout_s=10)
    # A task of another placement of the same request does not belong to this slot.
    other = type(servant.tasks["first"])()
    other.CopyFrom(servant.tasks["first"])
    other.task_id, other.generation = "other", 7
    servant.tasks["other"] = other

    found = await slot.tasks()

    assert [(each.task_id, str(each.state)) for each in found] == [
        ("first", "RUNNING"),
        ("second", "EXITED"),
    ]
    assert found[0].argv == ("wait",)
    await first.cancel()


@pytest.mark.parametrize("reason", ["COMMAND_NOT_FOUND", "CWD_UNAVAILABLE"])
async def test_a_command_that_cannot_run(servant: Scripted, slot: fg.Slot, reason: str) -> None:
    servant.programs["nope"] = Program(error_reason=reason)
    with pytest.raises(fg.TaskNotStarted) as caught:
        await slot.run(["nope"])
    assert caught.value.reason is Reason(reason)


async def test_output_goes_on_where_it_broke(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT)
    servant.break_output_after.extend([3, 2, 0, 1])
    task = await slot.run(["say"])
    assert (await task.wait(timeout_s=20)).stdout == TEXT
    offsets = [each.stdout_offset for each in servant.calls["WatchTask"]]
    assert offsets == [0, 12, 20, 20, 24]


async def test_output_as_it_comes(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT, stderr=b"hm")
    servant.break_output_after.extend([1, 4])  # first the states, then the output
    task = await slot.run(["say"], output="stream")
    assert (await task.wait(timeout_s=10)).stdout == b""
    chunks = [each async for each in task.output()]
    assert b"".join(each.data for each in chunks if each.stream == "stdout") == TEXT
    assert b"".join(each.data for each in chunks if each.stream == "stderr") == b"hm"
    rest = [each.data async for each in task.output(stdout_offset=40, stderr_offset=2)]
    assert b"".join(rest) == TEXT[40:]


async def test_leaving_the_output_early_leaves_no_stream(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT, ends=False)
    task = await slot.run(["say"], output="stream")
    output = task.output()
    await anext(output)
    await eventually(lambda: servant.live["WatchTask"] == 2)
    await output.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: servant.live["WatchTask"] == 1)
    await servant.end_program("say")
    await task.wait(timeout_s=10)
    await eventually(lambda: servant.live["WatchTask"] == 0)


async def test_output_to_a_function(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT)
    heard: list[bytes] = []

    async def hear(chunk: fg.OutputChunk) -> None:
        heard.append(chunk.data)

    task = await slot.run(["say"], output=hear)
    await task.wait(timeout_s=10)
    assert b"".join(heard) == TEXT


async def test_a_function_that_fails_is_heard_of(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(stdout=TEXT)

    def fail(chunk: fg.OutputChunk) -> None:
        raise ZeroDivisionError

    task = await slot.run(["say"], output=fail)
    with pytest.raises(ZeroDivisionError):
        await task.wait(timeout_s=10)


async def test_submission_is_repeated_under_the_same_id(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["true"] = Program()
    servant.failures["SubmitTask"].extend([fg.Unavailable("restarting")] * 6)
    task = await slot.run(["true"])
    await task.wait(timeout_s=10)
    assert {each.task_id for each in servant.calls["SubmitTask"]} == {task.task_id}


async def test_a_cancelled_submission_is_taken_back(servant: Scripted, slot: fg.Slot) -> None:
    servant.blocked["SubmitTask"] = asyncio.Event()
    running = asyncio.create_task(slot.run(["true"], task_id="task-1"))
    await eventually(lambda: servant.live["SubmitTask"] == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: servant.live["SubmitTask"] == 0)
    await eventually(lambda: servant.calls["CancelTask"])
    assert servant.calls["CancelTask"][0].task_id == "task-1"


async def test_a_lost_slot_ends_the_wait_for_its_tasks(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["sleep"] = Program(ends=False)
    task = await slot.run(["sleep"])
    await servant.tell(slot.allocation_id, LOST, reason="EXECUTOR_LOST")
    with pytest.raises(fg.SlotLost, match="on host-a has ended") as caught:
        await task.wait(timeout_s=10)
    assert caught.value.reason is Reason.EXECUTOR_LOST
    with pytest.raises(fg.SlotLost):
        await slot.run(["sleep"])
    with pytest.raises(fg.SlotLost):
        await task.signal(signal.SIGTERM)
    await eventually(lambda: servant.live["WatchTask"] == 0)


async def test_a_released_slot_lets_its_tasks_end(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["sleep"] = Program(ends=False)
    task = await slot.run(["sleep"])
    await eventually(lambda: servant.live["WatchTask"] == 1)
    await servant.tell(slot.allocation_id, RELEASED, reason="EXECUTOR_DRAINED")
    await eventually(lambda: slot.has_ended)
    await servant.end_program("sleep", cancelled=True)
    assert (await task.wait(timeout_s=10)).cancelled


async def test_tasks_of_a_released_slot_outlive_a_restart_of_their_executor(
    servant: Scripted, slot: fg.Slot
) -> None:
    servant.programs["sleep"] = Program(ends=False)
    task = await slot.run(["sleep"])
    await eventually(lambda: servant.live["WatchTask"] == 1)
    await slot.release()
    servant.failures["WatchTask"].extend([fg.Unavailable("restarting")] * 2)
    servant.interrupt_watches = True
    await servant.wake()
    await eventually(lambda: not servant.failures["WatchTask"])
    servant.interrupt_watches = False
    await servant.end_program("sleep", cancelled=True)
    assert (await task.wait(timeout_s=10)).cancelled


async def test_a_released_slot_whose_tasks_are_forgotten(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["sleep"] = Program(ends=False)
    task = await slot.run(["sleep"])
    await eventually(lambda: servant.live["WatchTask"] == 1)
    await slot.release()
    servant.failures["WatchTask"].append(fg.NotFound("gone", reason=Reason.TASK_UNKNOWN))
    servant.interrupt_watches = True
    await servant.wake()
    with pytest.raises(fg.SlotLost, match="released"):
        await task.wait(timeout_s=10)


async def test_signals_and_cancellation(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["sleep"] = Program(ends=False)
    task = await slot.run(["sleep"])
    with pytest.raises(TimeoutError):
        await task.wait(timeout_s=0.05)
    await task.signal(signal.SIGINT)
    assert servant.signals == [2]
    await task.cancel(grace_s=0.5)
    assert (await task.wait(timeout_s=10)).cancelled
    assert servant.calls["CancelTask"][0].grace.ToMilliseconds() == 500


async def test_standard_input_from_bytes(servant: Scripted, slot: fg.Slot) -> None:
    program = servant.programs["cat"] = Program(ends=False)
    data = bytes(range(256)) * 1024 * 10
    task = await slot.run(["cat"], stdin=data)
    await eventually(lambda: program.eof)
    await servant.end_program("cat")
    await task.wait(timeout_s=10)
    assert bytes(program.read) == data
    sizes = [each.ByteSize() for each in servant.calls["WriteTaskInput"]]
    assert max(sizes) <= 64 * 1024


async def test_standard_input_goes_on_where_it_broke(servant: Scripted, slot: fg.Slot) -> None:
    program = servant.programs["cat"] = Program(ends=False)
    servant.failures["WriteTaskInput"].extend([fg.Unavailable("restarting")] * 2)

    async def source() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two " * 50_000
        yield b"three"

    await slot.run(["cat"], stdin=source())
    await eventually(lambda: program.eof)
    assert bytes(program.read) == b"one " + b"two " * 50_000 + b"three"


async def test_standard_input_by_hand(servant: Scripted, slot: fg.Slot) -> None:
    program = servant.programs["cat"] = Program(ends=False)
    task = await slot.run(["cat"], stdin="pipe")
    await task.write_input(b"hello ")
    assert (bytes(program.read), program.eof) == (b"hello ", False)
    await task.write_input(b"world", eof=True)
    await task.close_input()
    assert (bytes(program.read), program.eof) == (b"hello world", True)
    with pytest.raises(fg.FailedPrecondition, match="closed"):
        await task.write_input(b"more")
    other = await slot.run(["cat"])
    with pytest.raises(fg.InvalidArgument, match="pipe"):
        await other.write_input(b"x")


async def test_an_executor_that_moved_is_found(servant: Scripted, slot: fg.Slot) -> None:
    moved = Scripted()
    moved.programs["true"] = Program()
    async with moved.served():
        servant.failures["SubmitTask"].extend([fg.Unavailable("gone")] * 100)
        servant.executor_address = moved.tasks_address
        task = await slot.run(["true"])
        await task.wait(timeout_s=10)
        assert slot.executor_address == moved.tasks_address


async def test_leaving_the_job_ends_the_waits(servant: Scripted, cluster: fg.Cluster) -> None:
    servant.programs["sleep"] = Program(ends=False)
    async with cluster.job("left") as job:
        (request,) = await job.request_slots(fg.SlotSpec())
        task = await (await request.granted(timeout_s=10)).run(["sleep"])
    with pytest.raises(fg.JobEnded):
        await task.wait(timeout_s=10)


async def test_nothing_is_left_behind(servant: Scripted, cluster: fg.Cluster) -> None:
    servant.programs["true"] = Program(stdout=TEXT)
    before = len(asyncio.all_tasks())
    async with cluster.job("many") as job:
        for _ in range(3):
            requests = await job.request_slots(fg.SlotSpec(count=20))
            async for slot in fg.as_granted(requests):
                async with slot:
                    assert (await (await slot.run(["true"])).wait(timeout_s=10)).ok
            await eventually(lambda: servant.live["WatchTask"] == 0)
            await eventually(lambda: len(asyncio.all_tasks()) <= before + 12)
        await eventually(lambda: job.requests == [])
    await eventually(lambda: len(asyncio.all_tasks()) <= before + 2)
    assert +servant.live == {}


async def test_another_executor_at_the_address_gets_no_task(
    servant: Scripted, job: fg.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    (request,) = await job.request_slots(fg.SlotSpec())
    slot = await request.granted(timeout_s=10)
    # The resource manager listens where the executor was.
    monkeypatch.setattr(slot, "_address", servant.address)
    servant.executor_address = servant.address
    job._context.connection.policy = RetryPolicy(budget_s=2)
    with pytest.raises(fg.Unavailable, match="another member of the cluster answers") as raised:
        await slot.run(["true"])
    assert raised.value.reason is fg.Reason.CERTIFICATE_WRONG
    assert servant.calls["SubmitTask"] == []


async def test_channels_of_executors_that_nobody_uses_are_closed(
    servant: Scripted, job: fg.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "EXECUTOR_CHANNELS_IDLE_MAX", 1)
    program = Program(stdout=TEXT, ends=False)
    hosts = [Scripted() for _ in range(3)]
    async with AsyncExitStack() as stack:
        running = []
        for host in hosts:
            host.programs["say"] = program
            await stack.enter_async_context(host.served())
            servant.tasks_address = host.tasks_address
            (request,) = await job.request_slots(fg.SlotSpec())
            slot = await request.granted(timeout_s=10)
            running.append(await slot.run(["say"]))
            await slot.release()
        program.ends = True
        for host, task in zip(hosts, running, strict=True):
            await host.wake()
            assert (await task.wait(timeout_s=10)).stdout == TEXT
        links = job._context.connection._links
        await eventually(lambda: len(links) == 1)


async def test_a_task_that_the_executor_ended_says_why(servant: Scripted, slot: fg.Slot) -> None:
    servant.programs["say"] = Program(
        end_reason="GPU_MEMORY_EXCEEDED", end_message="its slot used 12Gi"
    )
    result = await (await slot.run(["say"])).wait()
    assert not result.ok
    assert result.end_reason == "GPU_MEMORY_EXCEEDED"
    with pytest.raises(fg.TaskFailed, match="was ended by the executor: its slot used 12Gi"):
        result.check()
