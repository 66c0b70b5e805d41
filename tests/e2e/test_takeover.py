"""Two resource managers, of which one is a standby. After a takeover, clients and executors
continue with the standby.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.e2e.driving import (
    Cli,
    Daemon,
    eventually,
    free_address,
    processes_that_name,
    slot_groups,
    unique,
)
from tests.support.browser import browsing
from tests.support.identities import credentials_file
from tests.support.membership import give_authority, give_membership
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PostgresqlServer

pytestmark = pytest.mark.slow

TICKER = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 7"
TICKS = b"".join(b"%d\n" % number for number in range(1, 61))


class Pair:
    """Two resource managers on one database, and an executor and a command line that know the
    addresses of both.
    """

    def __init__(self, home: Path, database: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fg-pair-"))  # short: sockets lie in it
        self.database = database or f"sqlite:///{self.folder}/books.db"
        self._bare = Cli(home)
        self.addresses = [free_address(), free_address()]
        self.managers = [
            self.manager(f"rm-{letter}", address, "--standby")
            for letter, address in zip("ab", self.addresses, strict=True)
        ]
        self.user = credentials_file(self.folder, "user/alice")
        operator = credentials_file(self.folder, "operator/root")
        self.cli = Cli(home, ",".join(self.addresses), operator)
        self.name = unique("e2e-pair")
        give_membership(self.folder / self.name, self.name)
        as_root = ("--allow-root-tasks", "--task-user", "self") if os.geteuid() == 0 else ()
        self.executor = Daemon(
            self._bare,
            self.folder / self.name,
            *("executor", "serve", "--executor-id", self.name, "--metrics-listen", "none"),
            *("--manager", ",".join(self.addresses), "--listen", "127.0.0.1:0"),
            *("--run-dir", str(self.folder / "run"), "--cpu", "1", "--memory", "512MiB"),
            "--stop-tasks-on-exit",
            *as_root,
        )

    def manager(self, name: str, address: str, *more: str) -> Daemon:
        """A resource manager on the database, not started yet."""
        give_authority(self.folder / name)
        return Daemon(
            self._bare,
            self.folder / name,
            *("rm", "serve", "--listen", address, "--metrics-listen", "none"),
            *("--database", self.database, "--report-interval", "500ms", "--lost-timeout", "60s"),
            *more,
        )

    def start(self) -> None:
        for manager, state in zip(self.managers, ("serving", "standing_by"), strict=True):
            manager.start()
            manager.endpoint()
            said(manager, state)
        self.executor.start()
        self.await_executor()

    def await_executor(self) -> None:
        def active() -> bool:
            rows = self.cli.items("executors")
            return [each["state"] for each in rows] == ["ACTIVE"]

        eventually(active, "the executor is active")

    def epoch(self) -> int:
        return int(self.cli.json("status")["rm_epoch"])

    def clean_up(self) -> None:
        for manager in self.managers:
            if manager.runs():
                os.kill(manager.pid, signal.SIGCONT)
        if self.executor.process is not None:
            assert self.executor.stop() == 0
        for manager in self.managers:
            if manager.runs():
                assert manager.stop() == 0
        left: list[Any] = [*processes_that_name(self.folder), *slot_groups(self.name)]
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, left


def events_of(daemon: Daemon) -> list[str]:
    """Returns the events in its log, in order."""
    complete = [line for line in daemon.log.splitlines(keepends=True) if line.endswith("\n")]
    return [str(json.loads(line)["event"]) for line in complete]


def said(daemon: Daemon, event: str) -> None:
    """Waits until the last entry about its role in its log is this event."""
    kinds = {"serving", "standing_by"}

    def last() -> bool:
        stands = [each for each in events_of(daemon) if each in kinds]
        return stands[-1:] == [event]

    eventually(last, f"{event}: {daemon.log[-1000:]}")


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))]
)
def pair(request: pytest.FixtureRequest, home: Path) -> Iterator[Pair]:
    """A pair over each kind of database, started."""
    database = ""
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql_server")
        database = server.url(server.create_database())
    made = Pair(home, database)
    try:
        made.start()
        yield made
    finally:
        made.clean_up()


@pytest.mark.needs("chromium")
def test_the_page_of_a_standby_links_to_the_page_of_the_leader(home: Path) -> None:
    """The managers have different web ports, and change their roles."""
    pair = Pair(home, "")
    pages = [free_address(), free_address()]
    try:
        leader, standby = pair.managers
        leader.start("--web-listen", pages[0])
        said(leader, "serving")
        standby.start("--web-listen", pages[1])
        said(standby, "standing_by")
        with browsing(flags=("--ignore-certificate-errors",)) as browser:
            browser.open(f"https://{pages[1]}/requests")
            browser.shows("is a standby", pair.addresses[0])
            browser.click("a", "The page of the resource manager that leads")
            browser.shows("finegrain web --link")  # the leader asks for a session
            assert browser.run("return location.host") == pages[0]

            leader.kill()
            said(standby, "serving")
            leader.start("--web-listen", pages[0])
            leader.endpoint()
            said(leader, "standing_by")
            browser.open(f"https://{pages[0]}")
            browser.click("a", "The page of the resource manager that leads")
            browser.shows("finegrain web --link")
            assert browser.run("return location.host") == pages[1]
    finally:
        pair.clean_up()


@pytest.fixture
def on_postgresql(postgresql_server: PostgresqlServer, home: Path) -> Iterator[Pair]:
    """The databases on which a stalled leader can be replaced."""
    made = Pair(home, postgresql_server.url(postgresql_server.create_database()))
    try:
        made.start()
        yield made
    finally:
        made.clean_up()


async def test_when_the_leader_is_killed_everything_goes_on_with_the_other(pair: Pair) -> None:
    leader, standby = pair.managers
    untouched = [
        each.name
        for each in Path(f"/proc/{standby.pid}/fd").iterdir()
        if str(each.readlink()).startswith(f"{pair.folder}/books.db")
    ]
    assert untouched == []  # an SQLite file is not even opened while another leads
    # The standby comes first in the client's list, so the client must follow the hint to the
    # leader.
    async with (
        fg.connect(pair.addresses[::-1], credentials=pair.user) as cluster,
        cluster.job("lives on") as job,
    ):
        events = job.events()
        held, patient = await job.request_slots(
            [fg.SlotSpec(cpu_milli=600), fg.SlotSpec(cpu_milli=700)]
        )
        slot = await held.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", TICKER])
        assert cluster.address == pair.addresses[0]
        before = pair.epoch()

        leader.kill()
        late = await job.request_slots(fg.SlotSpec(cpu_milli=100))
        assert cluster.address == pair.addresses[1]
        assert pair.epoch() == before + 1
        result = await task.wait(PATIENCE_S)  # it never noticed
        assert (result.stdout, result.exit_code) == (TICKS, 7)
        pair.await_executor()
        (quick,) = late
        await (await quick.granted(PATIENCE_S)).release()
        await slot.release()
        await (await patient.granted(PATIENCE_S)).release()

        leader.start()  # as a standby this time
        leader.endpoint()
        said(leader, "standing_by")
        standby.kill()
        await job.request_slots(fg.SlotSpec(cpu_milli=100))
        assert pair.epoch() == before + 2
        standby.start()
        standby.endpoint()
        seen = [await anext(events) for _ in range(5)]
        assert [each.sequence for each in seen] == [1, 2, 3, 4, 5]
    pair.await_executor()
    pair.cli.settle()


async def test_a_leader_that_stalls_is_left_and_stands_by_when_it_wakes_up(
    on_postgresql: Pair,
) -> None:
    pair = on_postgresql
    stalled, standby = pair.managers
    pid = stalled.pid
    async with (
        fg.connect(pair.addresses, credentials=pair.user) as cluster,
        cluster.job("goes on") as job,
    ):
        events = job.events()
        before = pair.epoch()
        os.kill(pid, signal.SIGSTOP)
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=100))
        assert cluster.address == pair.addresses[1]
        slot = await request.granted(PATIENCE_S)
        os.kill(pid, signal.SIGCONT)
        said(stalled, "standing_by")
        assert "restarting_as_standby" in events_of(stalled)
        assert stalled.pid == pid
        assert stalled.runs()
        assert pair.epoch() == before + 1
        await slot.release()
        seen = [await anext(events) for _ in range(2)]
        assert [(each.sequence, each.state) for each in seen] == [(1, "GRANTED"), (2, "RELEASED")]
        assert "leadership_taken_over" in events_of(standby)
        assert pair.executor.log.count("STALE_EPOCH") == 0  # it did not even try to send a command
    pair.cli.settle()
