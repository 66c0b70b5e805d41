"""A cluster that begins empty, grows with the waiting requests, and shrinks when idle. It leaves
nothing behind, even if any of its processes is killed.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain_cli.local.cluster import LocalCluster
from tests.e2e.driving import (
    Cli,
    Daemons,
    eventually,
    finish,
    processes_that_name,
    read_until,
    unique,
)
from tests.e2e.scaling import groups, kill, scaled_up
from tests.support.patience import PATIENCE_S

BURST = 200
SMALL = fg.SlotSpec(cpu_milli=50, memory_bytes=16 * fg.MIB, count=BURST)
SMALL_ONE = fg.SlotSpec(cpu_milli=50, memory_bytes=16 * fg.MIB)
TASK = ("run", "--cpu", "0.1", "--memory", "32M", "--")


async def test_a_burst_on_an_empty_cluster(home: Path) -> None:
    with scaled_up(home, 4, "--idle-timeout", "2s") as up:
        assert up.cli.items("executors") == []
        assert up.provided == []
        watch = up.cli.start("providers", "--watch", "-o", "jsonl")
        operator = up.told["credentials_file"]
        async with fg.connect(credentials=operator) as cluster, cluster.job("burst") as job:
            requests = await job.request_slots(SMALL)
            codes = await asyncio.gather(*map(_run, requests))
        eventually(lambda: not up.provided, "all executors were given back")
        assert up.cli.items("executors") == []
        assert up.directories == []
        events = up.cli.items("events", "--newest", "1000")
        watch.terminate()
        seen = [json.loads(line) for line in finish(watch).stdout.splitlines() if line]
        code, said = up.end()

    assert codes == [0] * BURST
    states = [{each["executor_id"]: each["state"] for each in one["executors"]} for one in seen]
    assert "REGISTERED" in {state for one in states for state in one.values()}
    # Do not use the output: on a busy machine, there may be no output yet.
    kinds = {each["kind"] for each in events}
    assert kinds >= {"provision_asked", "provision_started", "provision_ended"}
    causes = [each["message"] for each in events if each["kind"] == "provision_asked"]
    assert any(re.match(r"[1-9]\d+ requests of .* fit no executor", cause) for cause in causes), (
        causes
    )
    assert max(len(one) for one in states) == 4
    assert all(each["cause"] for one in seen for each in one["executors"])
    assert (code, up.left()) == (0, []), said


async def _run(request: fg.Request) -> int:
    slot = await request.granted(PATIENCE_S)
    result = await (await slot.run(["true"])).wait(PATIENCE_S)
    await slot.release()
    return result.exit_code


async def _told_while_waiting(local: LocalCluster) -> fg.Explanation:
    """Returns the explanation of a request while its executor is requested and not there yet."""
    connection = fg.connect(local.address, credentials=local.credentials_file)
    async with connection as cluster, cluster.job("asks") as job:
        (request,) = await job.request_slots(SMALL_ONE)
        while not (told := await request.explain()).planned_on:
            assert not request.is_settled, "granted, and never told what it waited for"
            await asyncio.sleep(0.02)
        await request.granted(PATIENCE_S)
        return told


def test_a_request_for_ports_starts_an_executor(home: Path) -> None:
    with scaled_up(home, 1) as up:
        outcome = up.cli.run("--ports", "2", "--", "sh", "-c", "echo $FINEGRAIN_PORTS")
        code, said = up.end()
    assert outcome.code == 0, outcome.stderr
    assert len(set(outcome.text.split(","))) == 2
    assert (code, up.left()) == (0, []), said


def test_who_waits_is_told_for_which_executor(home: Path) -> None:
    with LocalCluster(scale=1) as local:
        cli = Cli(home, local.address, local.credentials_file)
        assert local.scaled is not None
        told = asyncio.run(_told_while_waiting(local))
        assert told.planned_on == f"{local.scaled.shape}-1-1"
        assert told.primary_reason == "WAITING_EXECUTOR"
        assert f"planned on executor {told.planned_on}" in told.summary
        outcome = cli.run(*TASK[1:], "sh", "-c", "echo up")
        assert (outcome.code, outcome.stdout) == (0, b"up\n")
        (executor,) = cli.items("executors")
        assert executor["provided_as"] == local.scaled.shape
        too_large = cli.run("--cpu", "64", "--", "true")
        assert too_large.code == 125
        assert "[INFEASIBLE_NEVER]" in too_large.stderr


@pytest.mark.parametrize("moment", ["asked", "busy"])
def test_a_resource_manager_that_is_killed_ends_all_of_it(home: Path, moment: str) -> None:
    with scaled_up(home, 2) as up:
        task = up.cli.start(*TASK, "sh", "-c", "echo up; sleep 1000")
        if moment == "asked":
            eventually(lambda: up.directories, "an executor is being started")
        else:
            read_until(task, b"up\n")
        kill(up.manager_pid)
        code, said = up.wait()
        task.kill()
        task.communicate()

        assert code == 1
        assert "the resource manager was killed by signal 9" in said
        assert up.left() == []
        assert not up.state_dir.exists()


def test_executors_outlive_nobody(home: Path) -> None:
    """`finegrain up` and the resource manager are killed at once: the sweeper is left."""
    with scaled_up(home, 2) as up:
        task = up.cli.start(*TASK, "sh", "-c", "echo up; sleep 1000")
        read_until(task, b"up\n")
        sweeper = up.sweeper_pid
        kill(up.process.pid, up.manager_pid)
        task.kill()
        task.communicate()
        eventually(lambda: not Path(f"/proc/{sweeper}").exists(), "the sweeper is done")
        assert up.left() == []
        assert up.directories == []
        shutil.rmtree(up.state_dir.parent)  # only an end in order removes that


def test_a_sweeper_that_is_killed_ends_all_of_it(home: Path) -> None:
    with scaled_up(home, 2) as up:
        kill(up.sweeper_pid)
        code, said = up.wait()

        assert code == 1
        assert "sweeper" in said
        assert up.left() == []


def test_ctrl_c_in_the_middle_of_growing(home: Path) -> None:
    with scaled_up(home, 2) as up:
        task = up.cli.start(*TASK, "sleep", "1000")
        eventually(lambda: up.directories, "an executor is being started")
        code, said = up.end(signal.SIGINT)
        task.kill()
        task.communicate()

        assert code == 0, said
        assert "nothing is left behind" in said
        assert up.left() == []


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="fg-kept-"))
    yield folder / "state"
    shutil.rmtree(folder, ignore_errors=True)


def test_a_state_directory_is_taken_up_with_what_runs(home: Path, short_dir: Path) -> None:
    flags = ("--idle-timeout", "2s", "--state-dir", str(short_dir))
    mark = unique("task")
    with scaled_up(home, 2, *flags) as up:
        task = up.cli.start(*TASK, "sh", "-c", f"echo up; sleep 1000; : {mark}")
        read_until(task, b"up\n")
        before = up.directories
        kill(up.sweeper_pid, up.process.pid, up.manager_pid)  # no process is left to clean up
        task.kill()
        task.communicate()
        assert up.left()
    with scaled_up(home, 2, *flags) as again:
        eventually(
            lambda: [each["state"] for each in again.cli.items("executors")] == ["ACTIVE"],
            "it comes back",
        )
        assert [each["executor_id"] for each in again.provided] == before
        (slot,) = again.cli.items("slots")
        assert (slot["executor_id"], slot["state"]) == (before[0], "ALLOCATED")
        assert processes_that_name(mark)  # its task runs on
        (job,) = again.cli.items("jobs")
        assert again.cli("terminate", job["job_id"], "--yes", "--grace", "0s").code == 0
        eventually(lambda: not again.provided, "it is given back when it is idle")
        assert again.cli.run("--", "echo", "on").stdout == b"on\n"
        assert again.end()[0] == 0
        assert again.left() == []


def test_a_state_directory_that_was_left_in_order(home: Path, short_dir: Path) -> None:
    for _ in range(2):
        with scaled_up(home, 1, "--state-dir", str(short_dir)) as up:
            assert up.cli.run("--", "echo", "on").stdout == b"on\n"
            assert len(up.cli.items("executors")) == 1
            assert up.end()[0] == 0
            assert up.left() == []


@pytest.mark.parametrize("moment", ["asked", "started", "granted"])
def test_a_resource_manager_that_comes_back_takes_them_up(daemons: Daemons, moment: str) -> None:
    shape = unique("e2e")
    file = daemons.folder / "providers.toml"
    file.write_text(_providers(shape, str(daemons.folder)))
    flags = ("--providers-file", str(file))
    daemons.manager.start(*flags)
    daemons.manager.endpoint()
    go_on = daemons.folder / "go-on"
    wait = f"while [ ! -e {go_on} ]; do sleep 0.1; done"
    task = daemons.patient_cli.start(*TASK, "sh", "-c", f"echo up; {wait}; echo down")

    def provided() -> list[str]:
        found = daemons.cli.json("providers")["executors"]
        return [each["executor_id"] for each in found]

    (executor_id,) = eventually(provided, "an executor is asked for")
    if moment == "started":
        eventually(lambda: groups(shape), "it is on its way")
    elif moment == "granted":
        read_until(task, b"up\n")
    daemons.manager.kill()
    daemons.manager.start(*flags)
    daemons.manager.endpoint()
    assert provided() == [executor_id]
    go_on.touch()
    outcome = finish(task)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.endswith(b"down\n")
    eventually(lambda: not provided(), "it is given back")
    assert daemons.cli.items("executors") == []
    assert not groups(shape)
    assert not processes_that_name(f"{daemons.folder}/p/")


def _providers(shape: str, folder: str) -> str:
    return f"""
look_interval = "500ms"
[limits]
idle_timeout = "2s"
[process]
directory = "{folder}/p"
[process.executor]
task_user = "self"
allow_root_tasks = true
task_kill_grace = "2s"
[[shape]]
name = "{shape}"
provider = "process"
[[shape.process.share]]
cpus = "0"
cpu = "0.5"
memory = "256MiB"
[[shape.process.share]]
cpus = "0"
cpu = "0.5"
memory = "256MiB"
"""
