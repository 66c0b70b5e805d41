"""Bad input, end to end: there is one clear error with field, value and remedy, and no call is half
done.

The tests for every field of every call are in tests/resource_manager/service/test_bad_input.py, and
the tests for the wrapper are in tests/finegrain/rpc.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.ids import new_id
from tests.e2e.driving import Daemon, Daemons, Small, free_address, unique
from tests.support.membership import give_authority
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PASSWORD_USER, PostgresqlServer

TOO_MUCH = "99999999999999999999"
LONG = "x" * 300

RUN = [
    ("zero cpu", ("--cpu", "0"), "--cpu is '0'; expected at least 0.01"),
    ("too little cpu", ("--cpu", "0.001"), "--cpu is '0.001'; expected at least 0.01"),
    ("negative cpu", ("--cpu", "-1"), "--cpu is '-1'; expected cores such as"),
    ("overflowing cpu", ("--cpu", TOO_MUCH), "at most 9007199254740992"),
    ("cpu that is no number", ("--cpu", "nan"), "--cpu is 'nan'"),
    ("zero memory", ("--memory", "0"), "--memory is '0'; expected at least 4Mi"),
    ("too little memory", ("--memory", "16K"), "--memory is '16K'; expected at least 4Mi"),
    ("overflowing memory", ("--memory", "99999999999T"), "at most 9007199254740992"),
    ("memory in an unknown unit", ("--memory", "12Q"), "--memory is '12Q'; expected a size such"),
    (
        "a cap below what is booked",
        ("--cpu", "1", "--cpu-limit", "0.5"),
        "--cpu-limit is '0.5'; expected 0, or --cpu (1) to",
    ),
    (
        "too many processes",
        ("--pids", "99999999999"),
        "--pids is '99999999999'; expected an integer from 0 to",
    ),
    ("less than none of a resource", ("--resource", "gpu=-1"), "--resource gpu is '-1'"),
    ("a resource nobody has", ("--resource", "nosuch=1"), "1 nosuch, even when empty"),
    ("half a label", ("--label", "zone"), "--label is 'zone'; expected KEY=VALUE"),
    ("a label nobody carries", ("--label", "zone=moon"), "zone=moon"),
    ("a control character in a name", ("--name", "a\nb"), r"name is 'a\nb'; expected 1 to 200"),
    ("a control character in a group", ("--group", "a\x01"), r"--group is 'a\x01'; expected"),
    (
        "a directory that is relative",
        ("--cwd", "here"),
        "--cwd is 'here'; expected an absolute path",
    ),
    ("an unknown user", ("--user", "no-such-user"), "there is no such user on this host"),
    ("no time at all", ("--timeout", "0"), "--timeout is '0'; expected 1ms to"),
    ("a negative time", ("--timeout", "-1s"), "--timeout is '-1s'; expected a duration such as"),
    ("no credentials", ("--credentials", "/no/such"), "there is no credentials file /no/such"),
    ("an address without a port", ("--manager", "nowhere"), 'expected an address "host:port"'),
]


@pytest.mark.parametrize(("flags", "told"), [pytest.param(f, t, id=name) for name, f, t in RUN])
def test_what_run_refuses(small: Small, flags: tuple[str, ...], told: str) -> None:
    outcome = small.cli("run", *flags, "--", "echo", "ran")
    assert outcome.code == 125
    assert outcome.stdout == b""
    assert told in small.cli.error(outcome)


OPERATOR = [
    ("release nothing that exists", ("release", "no-such-slot"), 3, "no-such-slot"),
    (
        "release of an impossible id",
        ("release", LONG),
        2,
        "or at least 4 characters of its beginning or end",
    ),
    ("too short a beginning", ("explain", "01"), 2, "at least 4 characters"),
    ("drain an unknown host", ("drain", "no-such-host"), 3, "executor no-such-host is not known"),
    ("drain until nonsense", ("drain", "x", "--deadline", "soon"), 2, "--deadline is 'soon'"),
    ("terminate an unknown job", ("terminate", "no-such-job"), 3, "no-such-job"),
    ("a port out of range", ("slots", "--manager", "127.0.0.1:99999"), 2, "a port from 0 to 65535"),
]


@pytest.mark.parametrize(
    ("command", "code", "told"), [pytest.param(c, e, t, id=name) for name, c, e, t in OPERATOR]
)
def test_what_other_commands_refuse(
    small: Small, command: tuple[str, ...], code: int, told: str
) -> None:
    outcome = small.cli(*command)
    assert (outcome.code, outcome.stdout) == (code, b"")
    assert told in small.cli.error(outcome)


async def test_an_id_used_again_with_other_content(small: Small) -> None:
    chosen = new_id()
    async with (
        small.connect() as cluster,
        cluster.job("mine") as job,
        cluster.job("other") as other,
    ):
        (first,) = await job.request_slots(fg.SlotSpec(cpu_milli=100, allocation_id=chosen))
        slot = await first.granted(PATIENCE_S)
        for who, spec in (
            (job, fg.SlotSpec(cpu_milli=200, allocation_id=chosen)),
            (other, fg.SlotSpec(cpu_milli=100, allocation_id=chosen)),
        ):
            with pytest.raises(fg.FinegrainError) as refused:
                await who.request_slots(spec)
            assert refused.value.reason == fg.Reason.ALREADY_EXISTS
        (booked,) = await cluster.slots()
        assert (booked.allocation_id, booked.profile.cpu_milli) == (chosen, 100)
        assert (await (await slot.run(["echo", "mine"])).wait(PATIENCE_S)).check().ok


async def test_a_batch_larger_than_a_call_is_cut_and_all_of_it_counts(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("large") as job:
        await job.request_slots(fg.SlotSpec(cpu_milli=100, memory_bytes=8 * fg.MIB, count=10_001))
        info = await cluster.info()
        assert info.slots + sum(info.pending_requests.values()) >= 10_001


async def test_a_command_line_larger_than_a_message(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("long") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=100))
        slot = await request.granted(PATIENCE_S)
        with pytest.raises(fg.FinegrainError) as refused:
            await slot.run(["echo", "x" * (1 << 20)])
        assert refused.value.reason == fg.Reason.MESSAGE_TOO_LARGE
        assert "262144" in refused.value.message
        assert (await (await slot.run(["echo", "on"])).wait(PATIENCE_S)).check().stdout == b"on\n"


@pytest.mark.parametrize("word", ["a\0b", "\ud800"], ids=["NUL", "a lone surrogate"])
async def test_a_command_that_no_kernel_takes(small: Small, word: str) -> None:
    async with small.connect() as cluster, cluster.job("odd") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=100))
        slot = await request.granted(PATIENCE_S)
        with pytest.raises((fg.FinegrainError, ValueError)):
            await slot.run(["echo", word])


# -- daemons that cannot start ------------------------------------------------------------------


@pytest.fixture
def made(daemons: Daemons) -> Daemons:
    """A resource manager that has run before and was stopped as planned."""
    daemons.manager.start()
    daemons.manager.endpoint()
    assert daemons.manager.stop() == 0
    return daemons


def refused(daemon: Daemon) -> str:
    """Returns the last error of a daemon that does not start."""
    before = len(daemon.log)
    daemon.start()
    assert daemon.end() != 0
    said = daemon.log[before:]
    assert "Traceback" not in said
    return said


def database(daemons: Daemons) -> Path:
    (found,) = daemons.manager.state_dir.glob("*.db")
    return found


def test_a_port_in_use(daemons: Daemons) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    other = Daemon(
        daemons.cli, daemons.folder / "other", "rm", "serve", "--listen", daemons.address
    )
    said = refused(other)
    assert daemons.address in said
    assert "in use" in said
    assert daemons.cli.json("status")["executors"] is not None


@pytest.mark.parametrize("same", ["directory", "database"])
def test_a_second_resource_manager(daemons: Daemons, same: str) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    listen = ("--listen", free_address(), "--metrics-listen", "none")
    directory = daemons.manager.state_dir if same == "directory" else daemons.folder / "second"
    store = ("--database", f"sqlite:///{database(daemons)}") if same == "database" else ()
    second = Daemon(daemons.cli, directory, "rm", "serve", *listen, *store)
    second.log_file = daemons.folder / "second.log"
    said = refused(second)
    assert f"{directory if same == 'directory' else database(daemons)} is in use by" in said
    assert "stop" in said
    assert daemons.cli("status").code == 0


def test_a_database_that_another_program_keeps_locked(made: Daemons) -> None:
    with closing(sqlite3.connect(database(made), isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        said = refused(made.manager)
        assert "locked" in said
        assert str(database(made)) in said
    made.manager.start()
    made.manager.endpoint()


def test_a_database_of_newer_software(made: Daemons) -> None:
    with closing(sqlite3.connect(database(made))) as connection:
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        connection.execute("PRAGMA user_version = 99")
    said = refused(made.manager)
    assert "schema version 99" in said
    assert "newer finegrain" in said
    with closing(sqlite3.connect(database(made))) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    made.manager.start()
    made.manager.endpoint()


def test_a_database_of_older_software_is_brought_up_to_date(made: Daemons) -> None:
    with closing(sqlite3.connect(database(made))) as connection:
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        connection.execute("PRAGMA user_version = 0")
    made.manager.start()
    made.manager.endpoint()
    assert made.cli("status").code == 0
    with closing(sqlite3.connect(database(made))) as connection:
        assert connection.execute("PRAGMA user_version").fetchall() == [(version,)]


def test_a_corrupt_database(made: Daemons) -> None:
    content = bytearray(database(made).read_bytes())
    content[4096 : 4096 + 2048] = b"\xff" * 2048
    database(made).write_bytes(content)
    said = refused(made.manager)
    assert str(database(made)) in said
    assert "damaged" in said or "corrupt" in said or "malformed" in said
    assert "restore" in said or "backup" in said


def test_a_database_with_a_row_that_belongs_to_no_job(made: Daemons) -> None:
    with closing(sqlite3.connect(database(made))) as connection:
        connection.execute(
            "INSERT INTO job_events (job_id, sequence, time_ms, allocation_id, state, reason, "
            "message) VALUES ('no-job', 1, 0, 'slot', 'GRANTED', '', '')"
        )
        connection.commit()
    said = refused(made.manager)
    assert "is damaged: job_events has a row without its jobs" in said
    assert "finegrain db restore" in said


def test_a_file_that_is_no_database(made: Daemons) -> None:
    database(made).write_bytes(b"not a database at all, but long enough to look at" * 100)
    assert str(database(made)) in refused(made.manager)


# -- the same on PostgreSQL ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    """A server that runs until all tests of this module have ended."""
    started = PostgresqlServer()
    yield started
    started.stop()


def refused_on(daemons: Daemons, url: str) -> str:
    """The one error of a resource manager that cannot serve from this database."""
    daemons.manager.command = (*daemons.manager.command, "--database", url)
    (line,) = refused(daemons.manager).splitlines()
    entry = json.loads(line)
    assert (entry["event"], daemons.manager.end()) == ("cannot_serve", 1)
    assert "geheim" not in line
    return f"{entry['reason']}: {entry['error']}"


def test_a_postgresql_that_cannot_be_reached(daemons: Daemons) -> None:
    said = refused_on(daemons, f"postgresql://user:geheim@{free_address()}/books")
    assert said.startswith("STORE_UNAVAILABLE: ")
    assert (
        "cannot be reached, or closed the connection; check that the server runs, and its host"
        in said
    )


@pytest.mark.needs("postgresql")
def test_a_wrong_password(daemons: Daemons, server: PostgresqlServer) -> None:
    server.execute(f"CREATE USER {PASSWORD_USER} PASSWORD 'right'")
    said = refused_on(daemons, server.url(server.create_database(), PASSWORD_USER, "geheim"))
    assert said.startswith("STORE_UNAVAILABLE: ")
    assert f"refuses user {PASSWORD_USER}; correct user or password in the database URL" in said


@pytest.mark.needs("postgresql")
def test_a_postgresql_database_that_nobody_made(daemons: Daemons, server: PostgresqlServer) -> None:
    assert "is missing; create it: createdb nowhere" in refused_on(daemons, server.url("nowhere"))


@pytest.mark.needs("postgresql")
def test_a_postgresql_database_of_another_program(
    daemons: Daemons, server: PostgresqlServer
) -> None:
    name = server.create_database()
    server.execute("CREATE TABLE photos (name text)", name)
    said = refused_on(daemons, server.url(name))
    assert said.startswith("STORE_SCHEMA: ")
    assert "not those of finegrain; name an empty database" in said
    left = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name)
    assert left == [("photos",)]


@pytest.mark.needs("postgresql")
def test_a_postgresql_database_of_newer_software(
    daemons: Daemons, server: PostgresqlServer
) -> None:
    name = server.create_database()
    assert daemons.cli("db", "upgrade", "--database", server.url(name)).code == 0
    server.execute("UPDATE alembic_version SET version_num = '0099'", name)
    said = refused_on(daemons, server.url(name))
    assert said.startswith("STORE_SCHEMA: ")
    assert "has schema version 99" in said
    assert "install that version again" in said


@pytest.mark.needs("postgresql")
def test_a_postgresql_database_that_another_resource_manager_holds(
    daemons: Daemons, server: PostgresqlServer
) -> None:
    url = server.url(server.create_database())
    listen = ("--listen", free_address(), "--metrics-listen", "none", "--database", url)
    first = Daemon(daemons.cli, daemons.folder / "first", "rm", "serve", *listen)
    give_authority(first.state_dir)
    first.start()
    first.endpoint()
    try:
        said = refused_on(daemons, url)
        assert said.startswith("STORE_IN_USE: ")
        assert listen[1] in said
        assert "stop that process first, start this one with --standby" in said
    finally:
        assert first.stop() == 0  # it led all the time
    daemons.manager.start()
    daemons.manager.endpoint()


@pytest.fixture
def small_disk(daemons: Daemons) -> Iterator[Path]:
    """A file system of 2 MiB where the resource manager keeps its state."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", daemons.manager.state_dir],
        check=True,
    )
    give_authority(daemons.manager.state_dir)  # the mount has hidden the first one
    yield daemons.manager.state_dir
    subprocess.run(["umount", "-l", daemons.manager.state_dir], check=True)


def fill_up(path: Path) -> None:
    """Takes every block that is left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            sum(os.write(descriptor, b"x" * 4096) for _ in range(4096))
    finally:
        os.close(descriptor)


@pytest.mark.needs("root")
async def test_a_full_disk_refuses_and_loses_nothing(small_disk: Path, daemons: Daemons) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    name = unique("e2e-full")
    daemons.executor(name).start()
    daemons.await_executors(name)
    filler = small_disk / "filler"
    async with fg.connect(
        daemons.address, credentials=daemons.credentials_file, budget_s=5
    ) as cluster:
        job = cluster.job("on a full disk", detached=True)
        async with job:
            (kept,) = await job.request_slots(fg.SlotSpec(cpu_milli=100))
            await kept.granted(PATIENCE_S)
            fill_up(filler)
            with pytest.raises(fg.FinegrainError) as told:
                await job.request_slots(
                    fg.SlotSpec(cpu_milli=100, memory_bytes=8 * fg.MIB, count=2000)
                )
            assert told.value.reason in (fg.Reason.DISK_FULL, fg.Reason.UNREACHABLE)
    filler.unlink()
    if not daemons.manager.runs():
        daemons.manager.start()
    daemons.manager.endpoint()
    daemons.await_executors(name)
    async with daemons.connect() as cluster:
        states = {each.allocation_id: each.state for each in await cluster.requests()}
        assert states[kept.allocation_id] == "GRANTED"
        async with cluster.attach_job(job.job_id) as again:
            await again.end(grace_s=0)
    daemons.cli.settle()
