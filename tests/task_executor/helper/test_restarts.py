"""If helper, front or both are killed, no task, output or exit status is lost."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError
from task_executor.helper.journal import Journal, journal_names
from task_executor.helper.launch import HelperConfig, HelperNotStarted, start_helper
from task_executor.helper.paths import write_json
from task_executor.host.helper_client import (
    HelperClient,
    HelperUnavailable,
    Reconnected,
    TaskExited,
)
from tests.support.journals import record_of
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import Host, alive, eventually, leftover_groups

pytestmark = pytest.mark.full


def journal_of(host: Host) -> Journal:
    """Returns the journal of the only supervisor, which has ended or will be killed."""
    folder = host.state / "supervisors"
    (name,) = journal_names(folder)
    return Journal(folder, name)


def supervisor_of(host: Host, task_id: str = "task") -> int:
    return int(host.record(task_id)["shim_pid"])


async def test_a_task_that_outlives_the_helper_is_found_again(any_host: Host) -> None:
    await any_host.slot()
    pid = await any_host.start("read line; echo $line; exit 6", stdin=True)
    any_host.kill_helper()
    assert alive(pid)
    any_host.restart_helper()
    task = (await any_host.client.inspect()).tasks[0]
    assert (task.state, task.pid) == ("running", pid)
    assert await any_host.start("read line; echo $line; exit 6", stdin=True) == pid
    await any_host.client.write_input("task", 0, b"still here\n")
    assert (await any_host.next_exit("task")).exit_code == 6
    assert any_host.output() == "still here\n"


async def test_a_task_that_ended_while_there_was_no_helper_has_its_exit_status(
    any_host: Host,
) -> None:
    await any_host.slot()
    await any_host.start("sleep 0.3; echo late; exit 9")
    any_host.kill_helper()
    await eventually(lambda: any_host.record()["exit"], "the record is written")
    any_host.restart_helper()
    record = await any_host.exit_of()
    assert (record.exit_code, record.stdout_bytes) == (9, 5)
    assert any_host.output() == "late\n"


async def test_a_forgotten_task_does_not_come_back(host: Host) -> None:
    await host.slot()
    await host.run("echo one", "one")
    await host.run("exit 3", "two")
    await host.client.forget_task("one")
    assert not host.directory("one").exists()
    host.kill_helper()
    host.restart_helper()
    assert [task.task_id for task in (await host.client.inspect()).tasks] == ["two"]
    assert (await host.exit_of("two")).exit_code == 3


async def test_a_long_journal_is_replaced_while_tasks_run(host: Host) -> None:
    await host.slot()
    await host.start("sleep 600", "stays")
    folder, argument = host.state / "supervisors", "x" * 100_000
    for n in range(12):
        await host.run(f"exit 3 # {argument}", f"t{n}")
        await host.client.forget_task(f"t{n}")

    def has_only_a_later_segment() -> bool:
        numbers = [path.name.split(".")[1] for path in folder.glob("*.journal")]
        return len(numbers) == 1 and numbers != ["0"]

    await eventually(has_only_a_later_segment, "the first segment is removed")
    assert sum(path.stat().st_size for path in folder.glob("*.journal")) < 1_000_000
    host.kill_helper()
    host.restart_helper()
    (task,) = (await host.client.inspect()).tasks
    assert (task.task_id, task.state) == ("stays", "running")
    await host.client.kill_task("stays")
    assert (await host.exit_of("stays")).signal == signal.SIGKILL


async def test_ends_outlive_supervisor_and_helper(host: Host) -> None:
    await host.slot()
    await host.run("echo kept; exit 3", "one")
    await host.run("exit 4", "two")
    await host.client.forget_task("two")
    await eventually(lambda: record_of(host.state, "two") is None, "its supervisor knows")
    supervisor = supervisor_of(host, "one")
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not alive(supervisor), "it is gone")
    host.kill_helper()
    host.restart_helper()
    (task,) = (await host.client.inspect()).tasks
    assert task.exit is not None
    assert (task.task_id, task.exit.exit_code, task.pid > 0) == ("one", 3, True)
    assert host.output("one") == "kept\n"
    await host.client.forget_task("one")
    assert list((host.state / "supervisors").iterdir()) == []


async def test_an_order_that_was_still_unread_is_carried_out_once(host: Host) -> None:
    """The supervisor was stopped when the helper sent the order, and until the helper was
    killed.
    """
    await host.slot()
    await host.start("sleep 600", "one")
    supervisor, runs = supervisor_of(host, "one"), host.state.parent / "runs"
    os.kill(supervisor, signal.SIGSTOP)
    start = asyncio.create_task(host.start(f"echo once >> {runs}; exit 8", "two"))
    await asyncio.sleep(0.2)
    host.kill_helper()
    host.restart_helper()
    await asyncio.sleep(0.3)
    assert not start.done()
    os.kill(supervisor, signal.SIGCONT)
    assert await start
    assert (await host.exit_of("two")).exit_code == 8
    assert runs.read_text() == "once\n"


async def test_a_start_that_is_repeated_after_the_end_is_told_of_the_end(any_host: Host) -> None:
    """The helper was killed, so the answer to the first start and the event of the end were
    lost.
    """
    await any_host.slot()
    pid = await any_host.start("sleep 0.5; exit 9")
    any_host.kill_helper()
    await eventually(lambda: any_host.record()["exit"], "the record is written")
    any_host.restart_helper()
    assert await any_host.start("sleep 0.5; exit 9") == pid
    assert (await any_host.next_exit("task")).exit_code == 9


async def test_killing_helper_and_front_together_loses_nothing(host: Host) -> None:
    await host.slot()
    await host.start("echo before; sleep 1; echo after; exit 2", "lives")
    await host.client.close()
    host.kill_helper()
    await asyncio.sleep(0.1)
    host.restart_helper()
    host.client = await HelperClient.connect(host.config.socket_path)
    state = await host.client.inspect()
    assert [slot.limits.allocation_id for slot in state.slots] == ["slot"]
    assert (await host.exit_of("lives")).exit_code == 2
    assert host.output("lives") == "before\nafter\n"


async def test_the_front_is_told_that_it_may_have_missed_something(host: Host) -> None:
    await host.slot()
    host.kill_helper()
    host.restart_helper()
    async with asyncio.timeout(PATIENCE_S):
        async for event in host.client.events():
            assert event == Reconnected()
            break


async def test_a_new_helper_still_destroys_what_the_old_one_made(any_host: Host) -> None:
    await any_host.slot()
    pid = await any_host.start("trap '' TERM; while :; do sleep 0.1; done")
    any_host.kill_helper()
    any_host.restart_helper()
    await any_host.client.destroy_slot("slot", 1)
    assert not alive(pid)
    assert (await any_host.exit_of()).signal == signal.SIGKILL


async def test_a_helper_killed_while_it_starts_many_tasks_knows_each_afterwards(
    any_host: Host,
) -> None:
    await any_host.slot()
    starts = [asyncio.create_task(any_host.start("sleep 0.5; exit 8", f"t{n}")) for n in range(12)]
    await asyncio.sleep(0.06)
    any_host.kill_helper()
    any_host.restart_helper()
    await asyncio.gather(*starts)  # the client has repeated the calls; they are the same tasks
    assert [(await any_host.exit_of(f"t{n}")).exit_code for n in range(12)] == [8] * 12


@pytest.mark.needs("root")
async def test_tasks_continue_when_their_supervisor_is_killed(host: Host) -> None:
    await host.slot()
    late = "read line < go; echo $line; exit 5"
    for name in ("one", "two"):
        directory = host.state.parent / name
        directory.mkdir()
        os.mkfifo(directory / "go")
        pid = await host.start(f"echo before; {late}", name, cwd=str(directory))
        await eventually(partial(host.output, name), "it has begun")
        assert alive(pid)
    first = supervisor_of(host, "one")
    os.kill(first, signal.SIGKILL)

    def has_another_supervisor() -> bool:
        both = {supervisor_of(host, name) for name in ("one", "two")}
        return len(both) == 1 and first not in both

    await eventually(has_another_supervisor, "another one has taken over")
    (host.state.parent / "one" / "go").write_text("after")
    record = await host.exit_of("one")
    assert (record.exit_code, record.error, record.stdout_bytes) == (5, None, 13)
    assert host.output("one") == "before\nafter\n"
    await host.client.kill_task("two")
    assert (await host.exit_of("two")).signal == signal.SIGKILL


@pytest.mark.needs("root")
async def test_an_end_while_there_is_no_supervisor_is_recorded(host: Host) -> None:
    """When a supervisor is killed, the helper becomes the parent of its tasks, and reaps them."""
    await host.slot()
    pid = await host.start("sleep 600")
    os.kill(supervisor_of(host), signal.SIGKILL)
    os.kill(pid, signal.SIGTERM)
    record = await host.exit_of()
    assert (record.signal, record.error) == (signal.SIGTERM, None)


@pytest.mark.needs("root")
async def test_an_exit_status_that_no_process_can_know_is_reported_as_lost(host: Host) -> None:
    """First the supervisor is killed, and then the helper, which would have reaped the task."""
    await host.slot()
    await host.start("echo begun; read line < /dev/zero; sleep 1; exit 4")
    await eventually(host.output, "it has begun")
    first = supervisor_of(host)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: supervisor_of(host) != first, "another one has taken over")
    host.kill_helper()
    host.restart_helper()
    await host.client.kill_task("task")
    record = await host.exit_of()
    assert (record.exit_code, record.signal, record.stdout_bytes) == (None, None, 6)
    assert record.error is not None
    assert "exit status is lost" in record.error.message


async def test_a_task_with_stdin_ends_with_its_supervisor(host: Host) -> None:
    """Input may be lost, so the task must not go on as if it had received all of it."""
    await host.slot()
    pid = await host.start("read line", stdin=True)
    os.kill(supervisor_of(host), signal.SIGKILL)
    record = await host.next_exit("task")
    assert record.error is not None
    assert "supervisor was killed" in record.error.message
    task_json = host.record("task")
    await host.client.forget_task("task")
    assert not Path(task_json["scratch"]).exists()
    assert (record.exit_code, record.signal) == (None, None)
    assert not alive(pid)


async def test_a_new_task_gets_another_supervisor(host: Host) -> None:
    await host.slot()
    await host.start("sleep 600", "one", stdin=True)
    os.kill(supervisor_of(host, "one"), signal.SIGKILL)
    assert (await host.run("exit 3", "two")).exit_code == 3


async def test_a_supervisor_killed_while_there_was_no_helper_is_noticed(host: Host) -> None:
    await host.slot()
    pid = await host.start("sleep 60")
    supervisor = supervisor_of(host)
    host.kill_helper()
    os.kill(supervisor, signal.SIGKILL)
    host.restart_helper()
    record = await host.exit_of()
    assert record.error is not None
    await eventually(lambda: not alive(pid), "the task has gone, too")


async def test_a_pid_that_was_reused_is_not_taken_for_the_supervisor(host: Host) -> None:
    await host.slot()
    await host.start("sleep 60")
    host.kill_helper()
    journal = journal_of(host)
    os.kill(journal.owner["pid"], signal.SIGKILL)
    journal.own(journal.owner | {"pid": os.getpid(), "start_ticks": 1})
    host.restart_helper()
    assert (await host.exit_of()).error is not None
    assert alive(os.getpid())


async def test_after_a_restart_of_the_host_all_tasks_are_lost_and_no_slot_is_left(
    host: Host,
) -> None:
    await host.slot()
    await host.start("sleep 60")
    await host.client.destroy_slot("slot", 1)
    host.kill_helper()
    journal = journal_of(host)
    journal.own(journal.owner | {"boot_id": "another boot"})
    record = journal.entries["task"]["start"] | {"boot_id": "another boot"}
    journal.forget("task")
    journal.begin("task", record)
    slot = {"boot_id": "another boot", "limits": {}}
    write_json(host.state / "slots" / "old.1.json", slot)
    host.restart_helper()
    lost = await host.exit_of()
    assert lost.error is not None
    assert "host was restarted" in lost.error.message
    assert (await host.client.inspect()).slots == []


async def test_a_directory_without_a_record_is_of_no_task(host: Host) -> None:
    """An earlier version left it: a task was never ordered, or the output of a task was not
    removed.
    """
    await host.slot()
    host.kill_helper()
    (host.directory("two")).mkdir()
    host.restart_helper()
    await eventually(lambda: not host.directory("two").exists(), "the directory is removed")
    assert (await host.client.inspect()).tasks == []


async def test_a_shim_of_version_0_2_that_has_no_record_yet_is_waited_for(host: Host) -> None:
    await host.slot()
    host.kill_helper()
    host.directory("old").mkdir()
    lock = os.open(host.directory("old") / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    host.restart_helper()
    start = asyncio.create_task(host.start("exit 0", "old"))
    await asyncio.sleep(0.1)
    assert not start.done()
    assert host.directory("old").exists()
    os.close(lock)  # the shim ended without a record, so it has started nothing
    assert await start


async def test_a_task_that_did_not_start_has_no_end_either(host: Host) -> None:
    await host.slot()
    with pytest.raises(FinegrainError):
        await host.start("", "never", argv=["no-such-program"])
    await host.start("exit 0", "real")
    async with asyncio.timeout(PATIENCE_S):
        async for event in host.client.events():
            assert isinstance(event, TaskExited)
            assert event.task_id == "real"
            break


async def test_a_planned_stop_leaves_tasks_running(host: Host) -> None:
    await host.slot()
    pid = await host.start("sleep 60")
    await host.client.stop()
    await eventually(lambda: not alive(host.pid), "the helper has gone")
    assert alive(pid)
    host.restart_helper()
    assert (await host.client.inspect()).tasks[0].state == "running"


async def test_a_live_helper_is_reused(host: Host) -> None:
    assert start_helper(host.config) == host.pid


async def test_a_helper_with_another_configuration_is_replaced_and_tasks_live_on(
    host: Host,
) -> None:
    await host.slot()
    pid = await host.start("sleep 60")
    host.config = replace(host.config, allow_root_tasks=False, isolation="none")
    before, host.pid = host.pid, start_helper(host.config)
    assert host.pid != before
    assert (await host.client.inspect()).tasks[0].pid == pid
    driver = (await host.client.hello()).isolation.driver
    assert driver == "v1" or os.geteuid() != 0  # the slot is in a cgroup, so it stays there


async def test_two_starts_at_once_give_one_helper(config: HelperConfig) -> None:
    pids = await asyncio.gather(*(asyncio.to_thread(start_helper, config) for _ in range(4)))
    assert len(set(pids)) == 1
    client = await HelperClient.connect(config.socket_path)
    await client.stop()
    await client.close()
    await eventually(lambda: not alive(pids[0]), "the helper has gone")


def test_a_helper_that_cannot_start_says_why(config: HelperConfig, place: Path) -> None:
    (place / "file").write_text("")
    bad = replace(config, state_dir=str(place / "file"), socket_path=str(place / "file" / "s"))
    with pytest.raises(HelperNotStarted, match="file"):
        start_helper(bad)


async def test_without_a_helper_a_call_waits_and_then_says_so(place: Path) -> None:
    began = time.monotonic()
    with pytest.raises(HelperUnavailable, match="no helper answers at"):
        await HelperClient.connect(place / "helper.sock", deadline_s=0.3)
    assert time.monotonic() - began >= 0.3


async def test_the_helper_needs_nothing_but_the_standard_library(host: Host) -> None:
    maps = Path(f"/proc/{host.pid}/maps").read_text()
    assert "site-packages" not in maps
    assert "grpc" not in maps
    assert Path(f"/proc/{host.pid}/task").is_dir()
    assert len(list(Path(f"/proc/{host.pid}/task").iterdir())) == 1  # one thread
    session = int(Path(f"/proc/{host.pid}/stat").read_text().rpartition(")")[2].split()[3])
    assert session == host.pid


async def test_a_supervisor_keeps_no_descriptor_of_the_helper_and_a_task_none_of_both(
    host: Host,
) -> None:
    await host.slot()
    await host.start("sleep 60", "one")
    pid = await host.start("exec sleep 60", "two")
    folder = Path(f"/proc/{supervisor_of(host, 'two')}/fd")
    targets = [str(each.readlink()) for each in folder.iterdir()]
    assert [each for each in targets if "state/helper." in each] == []
    assert sorted(each.name for each in Path(f"/proc/{pid}/fd").iterdir()) == ["0", "1", "2"]


async def test_exits_are_told_once_each_to_a_front_that_stays(host: Host) -> None:
    await host.slot()
    for n in range(5):
        await host.start("exit 0", f"t{n}")
    told: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in host.client.events():
            assert isinstance(event, TaskExited)
            told.append(event.task_id)
            if len(told) == 5:
                break
    assert sorted(told) == [f"t{n}" for n in range(5)]
    with pytest.raises(FinegrainError):
        await host.client.kill_task("t0")


@pytest.mark.needs("root")
@pytest.mark.parametrize("comes_back", ["front", "helper"])
async def test_a_group_that_nobody_can_explain_is_killed_and_told_of(
    comes_back: str, host: Host
) -> None:
    """Someone has made a group among the slots, with a process in it. If there are several
    hierarchies, the group is in one of them only.
    """
    await host.slot()
    await host.start("sleep 600")
    places = leftover_groups(host.config.executor_id)
    place = next((path for path in places if "memory" in str(path)), places[0])
    group = place / "slots/by-hand"
    group.mkdir()
    stranger = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220 - it does not block
    (group / "cgroup.procs").write_text(str(stranger.pid))
    if comes_back == "helper":
        host.kill_helper()
        host.restart_helper()
    state = await host.client.inspect()  # as a front does after a restart
    assert [(each.group, each.pids) for each in state.strangers] == [("by-hand", [stranger.pid])]
    assert await asyncio.to_thread(stranger.wait, PATIENCE_S) == -signal.SIGKILL
    await eventually(lambda: not group.exists(), "the group is gone")
    state = await host.client.inspect()
    assert state.strangers == []
    assert [task.state for task in state.tasks] == ["running"]
