"""What a task gets, what is known about it afterwards, and what is reported when it cannot
start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Reason,
    Unavailable,
)
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import HelperClient, SlotLimits, TaskSpec
from task_executor.host.task_log import Stream, read_output
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import MIB, Host, alive, eventually


async def test_a_task_runs_and_its_output_and_exit_code_are_kept(any_host: Host) -> None:
    await any_host.slot()
    record = await any_host.run("echo out; echo err >&2; exit 3")
    assert (record.exit_code, record.signal, record.error) == (3, None, None)
    assert (any_host.output(), any_host.output(stream="stderr")) == ("out\n", "err\n")
    assert (record.stdout_bytes, record.stderr_bytes, record.stdout_dropped_bytes) == (4, 4, 0)
    assert record.peak_memory_bytes > 0
    assert 0 < record.started_unix_ms <= record.ended_unix_ms


async def test_the_end_is_told_as_an_event(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("exit 7")
    assert (await any_host.next_exit("task")).exit_code == 7


async def test_a_task_has_its_own_environment_directory_session_and_no_strange_descriptors(
    any_host: Host,
) -> None:
    await any_host.slot()
    script = "env | grep -v -e ^PWD -e ^_= -e SHLVL -e OLDPWD; ls /proc/$$/fd; ulimit -c; pwd"
    script += "; stat -c %u ."
    pid = await any_host.start(f"{script}; ps -o sid= -p $$ || echo $$", env={"A": "1"})
    await any_host.exit_of()
    lines = any_host.output().split()
    assert lines[:5] == ["A=1", "0", "1", "2", "0"]
    scratch = Path(lines[5])
    assert scratch.name.startswith("finegrain-task-")
    assert lines[6:] == [str(os.getuid()), str(pid)]
    assert not scratch.exists()


async def test_cpu_time_and_peak_memory_include_children(any_host: Host) -> None:
    await any_host.slot()
    burn = "import time\nwhile time.process_time() < 0.4: pass\nx = bytearray(48 << 20)"
    record = await any_host.run(f'"$PYTHON" -c "{burn}" & wait', env={"PYTHON": sys.executable})
    assert record.exit_code == 0
    assert record.cpu_usec >= 400_000
    assert 48 * MIB <= record.peak_memory_bytes <= 128 * MIB


START_REFUSALS = [
    pytest.param({"argv": ["no-such-program"]}, Reason.COMMAND_NOT_FOUND, "PATH", id="not in PATH"),
    pytest.param({"argv": ["/no/such"]}, Reason.COMMAND_NOT_FOUND, "/no/such", id="no such path"),
    pytest.param(
        {"argv": ["/etc/passwd"]}, Reason.COMMAND_NOT_EXECUTABLE, "passwd", id="no program"
    ),
    pytest.param({"cwd": "/no/where"}, Reason.CWD_UNAVAILABLE, "/no/where", id="no such directory"),
    pytest.param({"cwd": "/etc/passwd"}, Reason.CWD_UNAVAILABLE, "passwd", id="cwd is a file"),
    pytest.param({"allocation_id": "other"}, Reason.ALLOCATION_UNKNOWN, "other.1", id="no slot"),
    pytest.param({"generation": 2}, Reason.ALLOCATION_UNKNOWN, "slot.2", id="other generation"),
    pytest.param({"argv": []}, Reason.INVALID_ARGUMENT, "argv", id="no program named"),
    pytest.param({"argv": ["a\0b"]}, Reason.INVALID_ARGUMENT, "argv", id="NUL in argv"),
    pytest.param({"argv": ["x" * 200_000]}, Reason.INVALID_ARGUMENT, "argv", id="argv too long"),
    pytest.param({"env": {"A=B": "1"}}, Reason.INVALID_ARGUMENT, "env", id="odd name in env"),
    pytest.param({"env": {"A": "\0"}}, Reason.INVALID_ARGUMENT, "A", id="NUL in env"),
    pytest.param({"cwd": "here"}, Reason.INVALID_ARGUMENT, "cwd", id="relative cwd"),
    pytest.param({"task_id": "../x"}, Reason.INVALID_ARGUMENT, "task_id", id="path as id"),
    pytest.param({"timeout_ms": 0}, Reason.INVALID_ARGUMENT, "timeout_ms", id="no time at all"),
]


@pytest.mark.parametrize(("changes", "reason", "named"), START_REFUSALS)
async def test_a_task_that_cannot_start_says_why_and_leaves_nothing(
    host: Host, changes: dict[str, Any], reason: Reason, named: str
) -> None:
    await host.slot()
    with pytest.raises(FinegrainError) as caught:
        await host.start("true", **changes)
    assert caught.value.reason is reason
    assert named in caught.value.message
    assert (await host.client.inspect()).tasks == []
    assert list((host.state / "tasks").iterdir()) == []


async def test_a_secret_in_the_environment_is_in_no_file_and_no_message(host: Host) -> None:
    await host.slot()
    await host.start("sleep 60", env={"TOKEN": "s3cr3t"})
    with pytest.raises(InvalidArgument) as caught:
        await host.start("true", "other", env={"TOKEN": "s3cr3t\0"})
    assert "s3cr3t" not in caught.value.message
    assert "s3cr3t" not in repr(TaskSpec("t", "a", 1, [], {"TOKEN": "s3cr3t"}))
    written = [p.read_bytes() for p in host.state.rglob("*") if p.is_file()]
    assert not [content for content in written if b"s3cr3t" in content]


async def test_starting_the_same_task_again_is_the_same_task(any_host: Host) -> None:
    await any_host.slot()
    first = await any_host.start("sleep 60")
    assert await any_host.start("sleep 60") == first
    with pytest.raises(AlreadyExists):
        await any_host.start("sleep 61")


async def test_output_beyond_the_limit_is_counted_and_never_blocks(any_host: Host) -> None:
    await any_host.slot()
    record = await any_host.run("head -c 3000000 /dev/zero; echo end >&2", log_limit_bytes=1000)
    assert 900 < record.stdout_bytes <= 1000
    assert record.stdout_bytes + record.stdout_dropped_bytes == 3_000_000
    assert (record.stderr_bytes, record.stderr_dropped_bytes) == (4, 0)
    logs = any_host.directory("task").glob("stdout*.log")
    assert sum(each.stat().st_size for each in logs) == record.stdout_bytes


async def test_held_output_waits_for_its_holder_and_none_is_lost(any_host: Host) -> None:
    await any_host.slot()
    client, directory = any_host.client, any_host.directory("task")
    limits: dict[str, Any] = {"log_limit_bytes": 100_000, "output_holder": "reader"}
    await any_host.start("seq 100000; seq 100000 >&2", **limits)
    output: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    while (await client.inspect()).tasks[0].exit is None:
        for stream, received in output.items():
            received.extend(read_output(directory, stream, len(received), 1 << 20))
        at = (len(output["stdout"]), len(output["stderr"]))
        with suppress(FailedPrecondition):  # the task has ended
            await client.hold_output("task", "reader", *at)
        with suppress(FileNotFoundError):  # a segment was removed meanwhile
            stored = sum(each.stat().st_size for each in directory.glob("std*.log"))
            assert stored <= 2 * (100_000 + (1 << 16))
    for stream, received in output.items():
        received.extend(read_output(directory, stream, len(received), 1 << 20))
    assert output["stdout"] == output["stderr"]
    assert output["stdout"] == b"".join(b"%d\n" % number for number in range(1, 100_001))
    record = await any_host.exit_of()
    assert (record.stdout_bytes, record.stdout_dropped_bytes) == (len(output["stdout"]), 0)


async def test_the_end_of_a_task_does_not_wait_for_the_holder(any_host: Host) -> None:
    await any_host.slot()
    limits: dict[str, Any] = {"log_limit_bytes": 1000, "output_holder": "reader"}
    record = await any_host.run("head -c 60000 /dev/zero", **limits)
    assert (record.stdout_bytes, record.stdout_dropped_bytes) == (60_000, 0)


async def test_output_has_one_holder(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("sleep 60", output_holder="reader")
    with pytest.raises(AlreadyExists, match="another reader holds"):
        await any_host.client.hold_output("task", "second", 0, 0)
    await any_host.client.hold_output("task", "reader", 0, 0)


async def test_output_can_be_read_while_the_task_runs(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("echo one; sleep 60")
    directory = any_host.directory("task")
    await eventually(lambda: read_output(directory, "stdout", 0, 100) == b"one\n", "it has written")
    assert read_output(directory, "stdout", 2, 1) == b"e"
    assert read_output(directory, "stdout", 4, 100) == b""
    assert read_output(any_host.directory("never"), "stdout", 0, 1) == b""


async def test_input_arrives_in_order_once_and_ends(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("cat; echo done", stdin=True)
    client = any_host.client
    assert await client.write_input("task", 0, b"hello ") == 6
    assert await client.write_input("task", 0, b"hello ") == 6  # a repetition
    assert await client.write_input("task", 3, b"lo world\n", eof=True) == 12
    with pytest.raises((OutOfRange, FailedPrecondition)):
        await client.write_input("task", 99, b"x")
    assert (await any_host.exit_of()).exit_code == 0
    assert any_host.output() == "hello world\ndone\n"


async def test_any_bytes_can_be_input(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("cat", stdin=True)
    data = bytes(range(256)) * 100
    assert await any_host.client.write_input("task", 0, data, eof=True) == len(data)
    await any_host.exit_of()
    assert read_output(any_host.directory("task"), "stdout", 0, len(data) + 1) == data


async def test_a_task_that_does_not_read_pushes_back(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("read go; wc -c", stdin=True)
    data = b"\n" + b"x" * 2_000_000
    accepted = await any_host.client.write_input("task", 0, data, eof=True)
    while accepted < len(data):
        more = await any_host.client.write_input("task", accepted, data[accepted:], eof=True)
        accepted = more
        await asyncio.sleep(0.005)
    await any_host.exit_of()
    assert int(any_host.output()) == 2_000_000


async def test_a_sleeping_reader_gets_no_more_than_the_buffer(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("sleep 60", stdin=True)
    accepted = await any_host.client.write_input("task", 0, b"x" * 3_000_000)
    assert 0 < accepted < 1_000_000
    assert await any_host.client.write_input("task", accepted, b"y" * 10) == accepted


@pytest.mark.full
async def test_input_for_a_supervisor_that_is_slow_is_refused_for_now_and_none_of_it_is_lost(
    any_host: Host,
) -> None:
    await any_host.slot()
    await any_host.start("cat", stdin=True)
    supervisor = any_host.record("task")["shim_pid"]
    data, accepted = bytes(range(256)) * 4096, 0
    accepted = await any_host.client.write_input("task", 0, data[:1000])
    os.kill(supervisor, signal.SIGSTOP)
    refusals = await asyncio.gather(
        any_host.client.write_input("task", accepted, data[accepted:]),  # does not fit a socket
        any_host.client.write_input("task", accepted, data[accepted : accepted + 100]),
        return_exceptions=True,
    )
    for refusal in refusals:
        assert isinstance(refusal, Unavailable)
        assert refusal.reason is Reason.UNREACHABLE
    os.kill(supervisor, signal.SIGCONT)
    while accepted < len(data):
        more = data[accepted:]
        accepted = await any_host.client.write_input("task", accepted, more, eof=True)
    await any_host.exit_of()
    assert read_output(any_host.directory("task"), "stdout", 0, len(data) + 1) == data


async def test_input_that_nobody_will_read_is_swallowed(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("exec <&-; echo closed; sleep 60", stdin=True)
    await eventually(lambda: any_host.output() == "closed\n", "stdin is closed")
    data, accepted = b"x" * 2_000_000, 0
    async with asyncio.timeout(PATIENCE_S):
        while accepted < len(data):
            more = data[accepted:]
            accepted = await any_host.client.write_input("task", accepted, more, eof=True)
    assert await any_host.client.write_input("task", accepted, b"more") == accepted + 4


async def test_a_task_without_stdin_reads_nothing_and_takes_no_input(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("cat; echo over; sleep 60")
    await eventually(lambda: any_host.output() == "over\n", "cat has ended")
    with pytest.raises(FailedPrecondition, match="without stdin"):
        await any_host.client.write_input("task", 0, b"x")


async def test_a_signal_reaches_the_task_and_not_its_supervisor(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("trap 'echo got; exit 5' USR1; echo up; while :; do sleep 0.05; done")
    await eventually(lambda: "up" in any_host.output(), "the trap is set")
    await any_host.client.signal_task("task", signal.SIGUSR1)
    assert (await any_host.exit_of()).exit_code == 5
    assert any_host.output() == "up\ngot\n"
    with pytest.raises(FailedPrecondition) as caught:
        await any_host.client.signal_task("task", signal.SIGUSR1)
    assert caught.value.reason is Reason.TASK_ENDED


async def test_a_kill_with_grace_lets_the_task_finish(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    await eventually(lambda: "up" in any_host.output(), "the trap is set")
    await any_host.client.kill_task("task", grace_ms=20_000)
    assert (await any_host.exit_of()).exit_code == 0
    assert any_host.output() == "up\nbye\n"


STUBBORN = (
    "trap '' TERM; (trap '' TERM; setsid sh -c \"trap '' TERM; sleep 61 & sleep 62\" &) ; sleep 63"
)


async def test_a_kill_takes_all_that_the_task_has_become(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start(STUBBORN)
    await any_host.start("sleep 590", "neighbour")
    await eventually(lambda: len(sleepers(any_host, "task")) == 3, "the tree has grown")
    pids = sleepers(any_host, "task")
    await any_host.client.kill_task("task", grace_ms=100)
    record = await any_host.exit_of()
    assert (record.exit_code, record.signal) == (None, signal.SIGKILL)
    assert not [pid for pid in pids if alive(pid)]
    assert [task.state for task in (await any_host.client.inspect()).tasks] == ["running", "exited"]


def sleepers(host: Host, task_id: str) -> list[int]:
    """Returns the `sleep` processes of `STUBBORN` among the descendants of the task's
    supervisor.
    """
    from task_executor.helper.processes import descendants

    pid = host.record(task_id)["shim_pid"]
    commands = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in descendants([pid])}
    return [each for each, text in commands.items() if text.startswith(b"sleep\x006")]


async def test_what_a_task_leaves_behind_dies_with_it(any_host: Host) -> None:
    await any_host.slot()
    record = await any_host.run("setsid sleep 64 & echo $!; exit 0")
    assert record.exit_code == 0
    assert not alive(int(any_host.output()))


async def test_a_timeout_ends_the_task_and_is_told(any_host: Host) -> None:
    await any_host.slot()
    record = await any_host.run("sleep 60", timeout_ms=200)
    assert record.timed_out
    assert record.signal == signal.SIGTERM


async def test_a_running_task_is_not_forgotten(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("sleep 60")
    with pytest.raises(FailedPrecondition, match="still runs"):
        await any_host.client.forget_task("task")


async def test_scratch_goes_with_the_task_even_if_it_was_made_undeletable(any_host: Host) -> None:
    await any_host.slot()
    await any_host.start("mkdir -p a/b; touch a/b/c; chmod 000 a/b a; pwd; read go", stdin=True)
    await eventually(any_host.output, "it has made its mess")
    scratch = Path(any_host.output().strip())
    assert scratch.exists()
    await any_host.client.write_input("task", 0, b"", eof=True)
    await any_host.exit_of()
    await eventually(lambda: not scratch.exists(), "the scratch directory is removed")


async def test_a_forgotten_task_is_unknown(any_host: Host) -> None:
    await any_host.slot()
    await any_host.run("true")
    await any_host.client.forget_task("task")
    await any_host.client.forget_task("task")
    assert not any_host.directory("task").exists()
    with pytest.raises(NotFound):
        await any_host.client.kill_task("task")


async def test_many_tasks_at_once_all_end_with_their_own_code(any_host: Host) -> None:
    await any_host.slot(pids_max=500)
    codes = range(1, 31)
    await asyncio.gather(*(any_host.start(f"exit {n}", f"t{n}") for n in codes))
    assert [(await any_host.exit_of(f"t{n}")).exit_code for n in codes] == list(codes)


@pytest.mark.needs("nobody-user")
async def test_a_task_of_nobody_has_no_privilege_and_cannot_get_any(config: HelperConfig) -> None:
    config = replace(config, allow_root_tasks=False)
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    try:
        await host.slot()
        script = (
            "id -u; id -g; id -G; grep -h -e ^CapBnd -e ^NoNewPrivs /proc/self/status; touch mine"
        )
        record = await host.run(script, uid=None, gid=None)
        assert record.exit_code == 0
        nobody = ["65534"] * 3
        assert host.output().split() == [*nobody, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
        logs = host.directory("task") / "stdout.log"
        assert logs.stat().st_uid == 0
        refused = await host.run(
            f"echo x > {logs}; echo x > {logs.parent}/new", "t2", uid=None, gid=None
        )
        assert refused.exit_code != 0
        closed = Path(config.state_dir).parent / "closed"
        closed.mkdir(0o700)
        with pytest.raises(FinegrainError, match=f"may not enter {closed}"):
            await host.start("true", "t3", uid=None, gid=None, cwd=str(closed))
        for uid in (0, 1000):
            with pytest.raises(FinegrainError) as caught:
                await host.start("true", "t4", uid=uid, gid=65534)
            assert caught.value.reason is Reason.USER_NOT_ALLOWED
    finally:
        await host.clean_up()
        await host.client.close()


@pytest.mark.needs("root")
async def test_a_task_of_root_keeps_the_capabilities_of_its_host(plain_host: Host) -> None:
    """Only tasks of other users lose capabilities."""
    await plain_host.slot()
    await plain_host.run("grep ^CapBnd /proc/self/status")
    own = [line for line in Path("/proc/self/status").read_text().splitlines() if "CapBnd" in line]
    assert plain_host.output().split() == own[0].split()


@pytest.mark.full
async def test_more_slots_and_tasks_than_fit_into_one_answer(
    plain_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [SlotLimits(f"s{n:04}", 1, 1000, 65536) for n in range(450)]
    await asyncio.gather(*(plain_host.client.create_slot(one) for one in limits))
    state = await plain_host.client.inspect()
    assert [slot.limits for slot in state.slots] == limits
    assert len((await plain_host.client.usage()).slots) == 450


async def test_a_program_is_looked_for_in_each_directory_of_the_tasks_path(
    host: Host, place: Path
) -> None:
    for name in ("first", "second"):
        (place / name).mkdir()
    program = place / "second/hello"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    await host.slot()
    path = f"{place}/none:{place}/first:{place}/second"
    assert (await host.run("", argv=["hello"], env={"PATH": path})).exit_code == 0
    assert host.output() == "hello\n"
