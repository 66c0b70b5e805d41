"""With the real helper and the real kernel: what a job master sees of tasks on this host."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from finegrain.errors import NotFound
from finegrain.v1 import task_executor_pb2 as te
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    MIB,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

pytestmark = [pytest.mark.slow, pytest.mark.full]


async def test_a_command_runs_and_its_output_and_exit_code_come_back(
    rm: ScriptedRM, real: JobMaster
) -> None:
    answer = await rm.allocate(allocation())
    assert not answer.results[0].HasField("error"), answer.results[0].error.message
    status = await real.submit("sh", "-c", "echo out; echo err >&2; exit 3")
    assert status.pid > 0
    seen = await real.watch()
    assert (seen.stdout, seen.stderr, seen.exit.exit_code) == (b"out\n", b"err\n", 3)
    assert seen.exit.stdout_bytes == 4
    assert seen.exit.end_time.seconds >= seen.last.start_time.seconds > 0


async def test_what_a_task_is_told_of_its_slot(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(allocation(cpu_milli=700))
    await real.submit("sh", "-c", "env | grep -e FINEGRAIN_ -e ^PATH= -e ^MINE=", env={"MINE": "x"})
    seen = await real.watch()
    env = dict(line.split("=", 1) for line in seen.stdout.decode().splitlines())
    assert env["FINEGRAIN_ALLOCATION_ID"] == "slot"
    assert env["FINEGRAIN_JOB_ID"] == "job"
    assert env["FINEGRAIN_TASK_ID"] == "task"
    assert env["FINEGRAIN_EXECUTOR_ID"] == rm.registered.executor_id
    assert env["FINEGRAIN_CPU_MILLI"] == "700"
    assert env["FINEGRAIN_MEMORY_BYTES"] == str(64 * MIB)
    assert env["FINEGRAIN_CPUS"] == rm.registered.shared_cpus
    assert env["MINE"] == "x"
    assert "/usr/bin" in env["PATH"]


async def test_a_signal_reaches_the_task(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(allocation())
    await real.submit("sleep", "1000")
    await real.signal(signal.SIGUSR1)
    seen = await real.watch()
    assert (seen.exit.signal, seen.exit.cancelled) == (signal.SIGUSR1, False)
    await real.signal(signal.SIGUSR1)  # it has ended: fine


async def test_a_task_that_takes_too_long_is_ended(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(allocation())
    await real.submit("sleep", "1000", timeout_ms=100)
    seen = await real.watch()
    assert (seen.exit.signal, seen.exit.timed_out) == (signal.SIGTERM, True)


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_task_that_eats_too_much_memory_dies_alone(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(allocation("small"), allocation("other"))
    await real.submit("sleep", "1000", task_id="neighbour", allocation_id="other")
    eat = "x = bytearray(200 << 20); print(len(x))"
    await real.submit("python3", "-c", eat, task_id="eater", allocation_id="small")
    seen = await real.watch("eater")
    assert seen.exit.oom_killed
    assert 32 * MIB < seen.exit.peak_memory_bytes <= 64 * MIB
    assert [t.state for t in await real.tasks() if t.task_id == "neighbour"] == [
        te.TASK_STATE_RUNNING
    ]


async def test_cancelling_asks_first_and_then_kills(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    stubborn = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
    await real.submit("sh", "-c", stubborn)
    await eventually(lambda: process.output("task"), "the trap is set")
    await real.cancel(grace_ms=300)
    seen = await real.watch()
    assert seen.stdout == b"ready\nasked\n"
    assert seen.exit.cancelled
    assert seen.exit.signal == signal.SIGKILL
    await real.cancel()  # it has ended: fine


async def test_freeing_a_slot_kills_its_whole_tree(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", "setsid sleep 1001 & sleep 1001 & echo $!; wait")
    answer = await rm.free(free())
    assert not answer.results[0].HasField("error")
    assert not answer.report.slots
    seen = await real.watch()
    assert seen.exit.signal in (signal.SIGKILL, signal.SIGTERM)
    assert seen.exit.cancelled
    assert answer.report.available == rm.registered.total
    assert not [p for g in process.groups() for p in g.glob("slots/*/")]


async def test_input_is_fed_at_offsets_and_ends_with_eof(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(allocation())
    await real.submit("cat", stdin=True)
    assert await real.write((0, b"hello ", False)) == 6
    assert await real.write((0, b"hello ", False), (6, b"world\n", True)) == 12
    seen = await real.watch()
    assert (seen.stdout, seen.exit.exit_code) == (b"hello world\n", 0)


async def test_a_watch_resumes_at_its_offsets(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", "printf 0123456789; printf abc >&2")
    assert (await real.watch()).stdout == b"0123456789"
    seen = await real.watch(stdout_offset=7, stderr_offset=3)
    assert (seen.stdout, seen.stderr) == (b"789", b"")


async def test_more_output_than_the_limit_is_counted_not_kept(
    rm: ScriptedRM, real: JobMaster
) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", "head -c 300000 /dev/zero", output_limit_bytes=100_000)
    await real.watch()  # a watcher may see more than is kept in the end
    seen = await real.watch()
    assert 90_000 < len(seen.stdout) <= 100_000
    assert (seen.exit.stdout_bytes, seen.exit.dropped_bytes) == (
        300_000,
        300_000 - len(seen.stdout),
    )


@pytest.mark.parametrize(
    ("argv", "spec", "reason"),
    [
        pytest.param(
            ["no-such-program"], {}, "COMMAND_NOT_FOUND", id="a program that is not there"
        ),
        pytest.param(["/etc/passwd"], {}, "COMMAND_NOT_EXECUTABLE", id="a file that is no program"),
        pytest.param(["true"], {"cwd": "/no/such"}, "CWD_UNAVAILABLE", id="a missing directory"),
        pytest.param(["true"], {"user": "no-such"}, "USER_NOT_ALLOWED", id="an unknown user"),
    ],
)
async def test_a_command_that_cannot_run_says_why(
    rm: ScriptedRM, real: JobMaster, argv: list[str], spec: dict[str, Any], reason: str
) -> None:
    await rm.allocate(allocation())
    status = await real.submit(*argv, **spec)
    assert (status.state, status.error.reason) == (te.TASK_STATE_FAILED, reason)
    assert (await real.watch()).last.error.reason == reason
    assert (await real.submit(*argv, **spec)).state == te.TASK_STATE_FAILED


@pytest.mark.full
async def test_a_hundred_tasks_in_ten_slots(rm: ScriptedRM, real: JobMaster) -> None:
    await rm.allocate(*(allocation(f"slot-{i}", cpu_milli=100) for i in range(10)))
    for i in range(100):
        await real.submit(
            "sh", "-c", f"echo {i}", task_id=f"task-{i}", allocation_id=f"slot-{i % 10}"
        )
    for i in range(100):
        seen = await real.watch(f"task-{i}")
        assert (seen.stdout, seen.exit.exit_code) == (f"{i}\n".encode(), 0)
    assert [t.task_id for t in await real.tasks()] == [f"task-{i}" for i in range(100)]


async def test_a_task_of_a_slot_that_never_was(rm: ScriptedRM, real: JobMaster) -> None:
    with pytest.raises(NotFound, match="no slot elsewhere"):
        await real.submit("true", allocation_id="elsewhere")


@pytest.mark.needs("nobody-user", "cgroup-v1")
async def test_tasks_of_another_user_see_nothing_of_the_executor(
    rm: ScriptedRM, process: ExecutorProcess
) -> None:
    process.start(task_user="nobody", allow_root_tasks=False)
    await eventually(lambda: rm.reports, "it reports")
    await rm.allocate(allocation())
    job_master = rm.job_master()
    look = f"id -un; touch made && ls; cat {process.state_dir}/state.json; kill -9 $PPID"
    await job_master.submit("/bin/sh", "-c", look, task_id="looker")
    seen = await job_master.watch("looker")
    assert seen.stdout == b"nobody\nmade\n"
    assert b"Permission denied" in seen.stderr
    assert b"not permitted" in seen.stderr
    refused = await job_master.submit("true", task_id="as-root", user="root")
    assert (refused.state, refused.error.reason) == (te.TASK_STATE_FAILED, "USER_NOT_ALLOWED")
