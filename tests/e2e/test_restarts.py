"""Daemons that are killed and started again: acknowledged changes are kept, and running tasks
continue.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from task_executor.engine.slots import Slot
from task_executor.service.checkpoint import STATE_FILE, parse_state, read_document
from tests.e2e.driving import (
    Daemon,
    Daemons,
    eventually,
    finish,
    free_address,
    helper_pid,
    json_lines,
    read_until,
    slot_groups,
    unique,
)
from tests.support.identities import credentials_file
from tests.support.journals import has_ended
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PostgresqlServer

pytestmark = pytest.mark.slow

TICKER = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 7"
TICKS = b"".join(b"%d\n" % number for number in range(1, 61))


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))]
)
def daemons(request: pytest.FixtureRequest, home: Path) -> Iterator[Daemons]:
    """Daemons over each kind of database."""
    database = ""
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql_server")
        database = server.url(server.create_database())
    made = Daemons(home, database)
    yield made
    made.clean_up()


@pytest.fixture
def on_sqlite(home: Path) -> Iterator[Daemons]:
    """Daemons over SQLite, for tests in which the kind of database does not matter."""
    made = Daemons(home)
    yield made
    made.clean_up()


def started(daemons: Daemons, *names: str) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    for name in names:
        daemons.executor(name).start()
    daemons.await_executors(*names)


def epoch(daemons: Daemons) -> int:
    return int(daemons.cli.json("status")["rm_epoch"])


def helper_of(executor: Daemon) -> int | None:
    """None while there is none."""
    with suppress(LookupError):
        return helper_pid(executor)
    return None


def logged(daemon: Daemon, since: int) -> list[dict[str, Any]]:
    """Returns the entries of a daemon's log from a position on."""
    return [json.loads(line) for line in daemon.log[since:].splitlines()]


async def test_a_killed_resource_manager_comes_back_as_if_nothing_had_been(
    daemons: Daemons,
) -> None:
    name = unique("e2e-stays")
    started(daemons, name)
    first_epoch = epoch(daemons)
    async with daemons.connect() as cluster, cluster.job("lives on") as job:
        events = job.events()
        held, patient = await job.request_slots(
            [fg.SlotSpec(cpu_milli=600), fg.SlotSpec(cpu_milli=700)]
        )
        slot = await held.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", TICKER])
        daemons.manager.kill()
        executor = daemons.executors[0].process
        assert executor is not None
        assert executor.poll() is None
        daemons.manager.start()
        daemons.manager.endpoint()
        result = await task.wait(PATIENCE_S)  # it never noticed
        assert (result.stdout, result.exit_code) == (TICKS, 7)
        daemons.await_executors(name)
        assert epoch(daemons) > first_epoch
        books = {each.allocation_id: each.state for each in await cluster.requests()}
        assert books == {held.allocation_id: "GRANTED", patient.allocation_id: "PENDING"}
        await slot.release()
        again = await patient.granted(PATIENCE_S)
        await again.release()
        told = [await anext(events) for _ in range(4)]
        assert [event.sequence for event in told] == [1, 2, 3, 4]
        assert [event.state for event in told][:2] == ["GRANTED", "RELEASED"]
    daemons.cli.settle()


async def test_what_was_acknowledged_just_before_the_kill_is_kept(daemons: Daemons) -> None:
    name = unique("e2e-kept")
    started(daemons, name)
    async with daemons.connect() as cluster:
        async with cluster.job("many", detached=True) as job:
            requests = await job.request_slots(fg.SlotSpec(cpu_milli=900, count=500))
            daemons.manager.kill()
        daemons.manager.start()
        daemons.manager.endpoint()
        known = {each.allocation_id for each in await cluster.requests()}
        assert known == {each.allocation_id for each in requests}
        async with cluster.attach_job(job.job_id) as job:
            await job.end(grace_s=0)
    daemons.await_executors(name)
    daemons.cli.settle()


def test_a_planned_restart_says_nothing_to_those_who_watch(on_sqlite: Daemons) -> None:
    name = unique("e2e-watched")
    started(on_sqlite, name)
    watch = on_sqlite.patient_cli.start("events", "--watch", "-o", "jsonl")
    assert watch.stdout is not None
    seen = watch.stdout.readline()
    assert on_sqlite.manager.stop() == 0
    on_sqlite.manager.start()
    on_sqlite.manager.endpoint()
    on_sqlite.await_executors(name)
    mark = unique("after-the-restart")
    with on_sqlite.cli.client() as cluster, cluster.job(mark):
        while mark.encode() not in seen:
            line = watch.stdout.readline()
            assert line, finish(watch).stderr
            seen += line
    watch.send_signal(signal.SIGINT)
    finish(watch)
    numbers = [event["sequence"] for event in json_lines(seen)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize("starts", [1, 3], ids=["the same epoch again", "an epoch far below"])
async def test_a_restored_manager_commands_no_executor(on_sqlite: Daemons, starts: int) -> None:
    """A database is restored from a copy, and executors have newer state. So their slots stay until
    an administrator runs the command that the resource manager names.
    """
    name = unique("e2e-epoch")
    started(on_sqlite, name)
    assert on_sqlite.manager.stop() == 0
    rm = on_sqlite.manager
    copies = {path: path.read_bytes() for path in rm.state_dir.glob("*.db*")}
    assert copies
    for rest in reversed(range(starts)):
        rm.start()
        rm.endpoint()
        on_sqlite.await_executors(name)
        last_epoch = epoch(on_sqlite)
        if rest:
            assert rm.stop() == 0
    async with on_sqlite.connect() as cluster, cluster.job("later", detached=True) as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(PATIENCE_S)
        await slot.run(["sleep", "600"])
    assert rm.stop() == 0
    for path in rm.state_dir.glob("*.db*"):
        path.unlink()
    for path, content in copies.items():
        path.write_bytes(content)

    seen_before = len(rm.log)
    rm.start()
    assert rm.end() == 4
    (error,) = [each for each in logged(rm, seen_before) if each["level"] == "error"]
    assert error["reason"] == "STALE_EPOCH"
    own = last_epoch - starts + 1
    assert (
        f"executor {name} has seen rm_epoch {last_epoch}, but this database has {own}"
        in error["error"]
    )
    assert "STALE_EPOCH" in on_sqlite.executors[0].log
    assert "unowned_slot" not in on_sqlite.executors[0].log
    assert slot_groups(name)

    # Even if it is restarted many times, its epoch must not exceed the epoch that executors have
    # seen.
    for _ in range(starts + 1):
        seen_before = len(rm.log)
        rm.start()
        assert rm.end() == 4
    (error,) = [each for each in logged(rm, seen_before) if each["level"] == "error"]
    assert f"an executor has seen rm_epoch {last_epoch}" in error["error"]
    assert slot_groups(name)

    (command,) = re.findall(r"`finegrain (db raise-epoch [^`]*)`", error["error"])
    assert on_sqlite.cli(*shlex.split(command)).code == 0
    rm.start()
    rm.endpoint()
    on_sqlite.await_executors(name)
    assert epoch(on_sqlite) > last_epoch
    on_sqlite.cli.settle()  # no request owns that slot any more
    eventually(lambda: not slot_groups(name), "its slot is gone")
    assert on_sqlite.cli.run("--", "echo", "on").stdout == b"on\n"


async def test_a_killed_executor_loses_neither_task_nor_output_nor_exit_status(
    on_sqlite: Daemons,
) -> None:
    name = unique("e2e-front")
    started(on_sqlite, name)
    (executor,) = on_sqlite.executors
    async with on_sqlite.connect() as cluster, cluster.job("front") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", TICKER], output="stream")
        seen = b""
        async for chunk in task.output():
            seen += chunk.data
            if chunk.offset == 0:
                executor.kill()
                executor.start()
        result = await task.wait(PATIENCE_S)
        assert (seen, result.exit_code) == (TICKS, 7)
        assert not slot.is_lost
        assert (await (await slot.run(["echo", "same slot"])).wait(PATIENCE_S)).check().ok
        (listed,) = await cluster.slots()
        assert (listed.generation, listed.state) == (1, "ALLOCATED")


@pytest.mark.full
def test_a_run_goes_on_when_its_executor_comes_back_before_the_resource_manager(
    on_sqlite: Daemons,
) -> None:
    """The front checks the caller's identity and the slot with the state that it has on disk."""
    name = unique("e2e-alone")
    executor = on_sqlite.executor(name, "--listen", free_address())
    rm = on_sqlite.manager
    rm.start()
    rm.endpoint()
    executor.start()
    on_sqlite.await_executors(name)
    user = replace(on_sqlite.cli, credentials_file=credentials_file(on_sqlite.folder, "user/alice"))
    signal_file = on_sqlite.folder / "go"
    waits = 'echo before; until [ -e "$1" ]; do sleep 0.05; done; echo after; exit 7'
    small = ("--cpu", "0.1", "--memory", "32M")
    run = user.start("run", *small, "--", "sh", "-c", waits, "sh", str(signal_file))
    assert read_until(run, b"before\n") == b"before\n"
    rm.kill()
    executor.kill()
    log_end = len(executor.log)
    executor.start()
    executor.endpoint()
    signal_file.touch()
    assert read_until(run, b"after\n") == b"after\n"
    assert '"event": "registered"' not in executor.log[log_end:]
    rm.start()
    rm.endpoint()
    outcome = finish(run)
    assert (outcome.code, outcome.stdout) == (7, b"")
    on_sqlite.cli.settle()


async def test_a_task_that_ended_meanwhile(on_sqlite: Daemons) -> None:
    name = unique("e2e-meanwhile")
    started(on_sqlite, name)
    (executor,) = on_sqlite.executors
    async with on_sqlite.connect() as cluster, cluster.job("meanwhile") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", "echo here; sleep 0.3; echo there; exit 5"])
        executor.kill()
        eventually(lambda: has_ended(executor.state_dir / "helper", task.task_id), "it ends")
        executor.start()
        result = await task.wait(PATIENCE_S)
        assert (result.stdout, result.exit_code) == (b"here\nthere\n", 5)


async def test_a_killed_helper_loses_nothing(on_sqlite: Daemons) -> None:
    name = unique("e2e-helper")
    started(on_sqlite, name)
    (executor,) = on_sqlite.executors
    async with on_sqlite.connect() as cluster, cluster.job("helper") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", TICKER])
        helper = helper_pid(executor)
        os.kill(helper, signal.SIGKILL)
        result = await task.wait(PATIENCE_S)
        assert (result.stdout, result.exit_code) == (TICKS, 7)
        eventually(lambda: helper_of(executor) not in (None, helper), "another helper")
        assert (await (await slot.run(["echo", "same slot"])).wait(PATIENCE_S)).check().ok
    on_sqlite.cli.settle()


@pytest.mark.full
async def test_no_restart_extends_a_time_limit_but_a_reuse_starts_it_again(
    on_sqlite: Daemons,
) -> None:
    name = unique("e2e-limit")
    started(on_sqlite, name)
    (executor,) = on_sqlite.executors
    whole = fg.SlotSpec(cpu_milli=1_000, memory_bytes=64 * fg.MIB, time_limit_s=30)

    def limited() -> Slot:
        content = read_document(executor.state_dir / STATE_FILE)
        state = parse_state(content or {}, [])
        (slot,) = [each for each in state.slots if each.limited_since_ms is not None]
        return slot

    async with on_sqlite.connect() as cluster, cluster.job("limit", detached=True) as job:
        first, second = await job.request_slots([whole, whole])
        slot = await first.granted(PATIENCE_S)
        begun = limited()
        assert await slot.reuse_for(second)
        eventually(lambda: limited().reuse_number == 1, "the executor knows of the reuse")
        again = limited()
        assert (again.limited_since_ms or 0) > (begun.limited_since_ms or 0)
        noted = on_sqlite.folder / "pid"
        await slot.run(["sh", "-c", f"echo $$ > {noted}; exec sleep 600"])
        eventually(lambda: noted.exists() and noted.read_text(), "the task runs")
        pid = noted.read_text().strip()
        os.kill(helper_pid(executor), signal.SIGKILL)
        on_sqlite.manager.kill()
        executor.kill()
        executor.start()
        executor.endpoint()
        assert limited().limited_since_ms == again.limited_since_ms
        eventually(
            lambda: not Path(f"/proc/{pid}").exists(), "the task ends without the resource manager"
        )
        assert "time_limit_over" in executor.log
        on_sqlite.manager.start()
        on_sqlite.manager.endpoint()
        with pytest.raises(fg.FinegrainError, match="time limit"):
            await slot.run(["true"])
        await job.end()
    on_sqlite.cli.settle()


def test_run_says_that_a_placed_slot_is_not_confirmed(on_sqlite: Daemons) -> None:
    """No reason code exists for this wait, so the message has no brackets."""
    name = unique("silent")
    started(on_sqlite, name)
    (executor,) = on_sqlite.executors
    os.kill(executor.pid, signal.SIGSTOP)
    process = on_sqlite.cli.start("run", "--cpu", "0.1", "--memory", "32M", "--", "echo", "late")
    assert process.stderr is not None
    waits = process.stderr.readline().decode()
    os.kill(executor.pid, signal.SIGCONT)
    done = finish(process)

    assert f"waiting for a slot: placed on {name}, which has not confirmed yet; finegrain" in waits
    assert "[" not in waits
    assert (done.code, done.stdout) == (0, b"late\n"), done.stderr
