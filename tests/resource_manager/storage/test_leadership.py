"""Tests that one resource manager leads, and that its epoch fences the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from finegrain.errors import Reason, StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import schema
from resource_manager.storage.lazy_store import LazyStore
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.opening import open_store
from resource_manager.storage.postgresql_server import CONNECTIONS, postgresql_engine
from resource_manager.storage.postgresql_store import PostgresqlStore
from resource_manager.storage.prepared import PreparedChanges
from resource_manager.storage.sqlite_store import SqliteStore
from resource_manager.storage.store import NotLeader, Store, StoreAway
from tests.support.books import job
from tests.support.migrations import NEXT, know_next_version
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PostgresqlServer
from tests.support.stores import OpenStore, inside


def test_every_leadership_has_a_higher_epoch(opened: OpenStore) -> None:
    epochs = []
    for number in range(4):
        store = opened()
        epochs.append(store.lead(f"incarnation {number}"))
        assert store.load().rm_epoch == epochs[-1]
        store.close()
    assert epochs == [1, 2, 3, 4]


def test_a_leader_raises_its_own_epoch_above_one_that_was_reported(store: Store) -> None:
    assert store.lead("first", above_epoch=41) == 42
    assert store.lead("first", above_epoch=7) == 43
    store.commit(Changes(jobs=[job()]))
    assert store.load().rm_epoch == 43


def test_an_epoch_survives_its_leader(opened: OpenStore) -> None:
    first = opened()
    first.lead("first", above_epoch=99)
    first.close()
    assert opened().lead("second") == 101


def test_a_second_resource_manager_is_refused_by_name(store: Store, opened: OpenStore) -> None:
    second = opened()
    ends = time.monotonic() + PATIENCE_S
    with keeps_renewing(store), pytest.raises(StoreError, match="in use by first") as caught:
        second.lead("second")
    assert caught.value.reason is Reason.STORE_IN_USE
    assert caught.value.details["holder"] == "first"
    assert time.monotonic() < ends
    store.commit(Changes(jobs=[job()]))
    assert store.load().rm_epoch == 1


def test_leadership_that_was_given_back_is_free_at_once(store: Store, opened: OpenStore) -> None:
    store.close()
    assert opened().lead("second", wait_s=0) == 2


class keeps_renewing:  # noqa: N801  reads as a phrase
    """A live leader, which renews its lease in a separate thread."""

    def __init__(self, store: Store, pause_s: float = 0.05) -> None:
        self._store = store
        self._pause_s = pause_s
        self.failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            try:
                self._store.renew()
            except BaseException as error:
                self.failure = error
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self.failure is None


# SQLite: the lock file.


@pytest.fixture
def file_store(sqlite_url: str) -> Iterator[SqliteStore]:
    with open_store(sqlite_url) as store:
        assert isinstance(store, SqliteStore)
        store.lead("first")
        yield store


def test_a_lock_file_that_was_removed_cannot_make_two_leaders(
    file_store: SqliteStore, sqlite_url: str
) -> None:
    """The second one gets a different lock, and with it an epoch that fences the first."""
    lock = file_store.location.path.with_name("books.db.lock")
    lock.unlink()
    with pytest.raises(NotLeader):
        file_store.renew()
    with open_store(sqlite_url) as second:
        second.lead("second")
        with pytest.raises(NotLeader, match="another one has taken over"):
            file_store.commit(Changes(jobs=[job()]))
        assert second.load().jobs == []


def test_a_leader_notices_that_its_database_was_replaced(file_store: SqliteStore) -> None:
    path: Path = file_store.location.path
    file_store.renew()
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(NotLeader):
        file_store.renew()


# PostgreSQL: the lease row.

on_postgresql = pytest.mark.needs("postgresql")


@on_postgresql
def test_a_lease_that_nobody_renews_is_waited_for_and_taken(postgresql_url: str) -> None:
    """As after a crash: the predecessor neither renews nor releases the lease."""
    crashed = open_store(postgresql_url, lease_ms=400)
    crashed.lead("crashed")
    with open_store(postgresql_url) as second:
        assert second.lead("second") == 2
        with pytest.raises(NotLeader):
            crashed.commit(Changes(jobs=[job()]))
        with pytest.raises(NotLeader):
            crashed.renew()
        with pytest.raises(NotLeader):
            crashed.lead("crashed")
        assert second.load().jobs == []
        # Releasing a lease that it has lost must not affect the new leader.
        crashed.close()
        second.renew()
        second.commit(Changes(jobs=[job()]))


@on_postgresql
def test_a_running_lease_is_not_taken(postgresql_url: str) -> None:
    with open_store(postgresql_url, lease_ms=60_000) as first:
        first.lead("first")
        with open_store(postgresql_url) as second, pytest.raises(StoreError) as caught:
            second.lead("second", wait_s=0.2)
        assert caught.value.reason is Reason.STORE_IN_USE
        first.commit(Changes(jobs=[job()]))


@on_postgresql
def test_a_leader_that_freezes_in_a_transaction_is_broken_off(postgresql_url: str) -> None:
    """The row lock of a frozen writer must not outlast its lease."""
    from psycopg import connect
    from psycopg.errors import IdleInTransactionSessionTimeout

    frozen = open_store(postgresql_url, lease_ms=500)
    frozen.lead("frozen")
    session = connect(postgresql_url)
    # The first step of a commit, and then nothing more.
    session.execute("SET LOCAL idle_in_transaction_session_timeout = 200")
    session.execute("SELECT 1 FROM leadership WHERE rm_epoch = 1 FOR SHARE")
    with open_store(postgresql_url) as second:
        assert second.lead("second", wait_s=20) == 2
    with pytest.raises(IdleInTransactionSessionTimeout):
        session.commit()
    session.close()
    frozen.close()


@on_postgresql
def test_a_commit_sets_the_guard_against_freezing(postgresql_url: str) -> None:
    """The test reads the setting inside a transaction of the store."""
    with open_store(postgresql_url, lease_ms=1000) as store:
        store.lead("first")
        with inside(store)._writing() as connection:
            assert inside(store)._fence(connection)
            shown = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
        assert shown == "400ms"


@on_postgresql
def test_a_server_that_may_forget_commits_is_told_not_to(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    name = postgresql_url.partition("@/")[2].partition("?")[0]
    postgresql_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with open_store(postgresql_url) as store:
        store.lead("first")
        with inside(store)._writing() as connection:
            assert inside(store)._fence(connection)
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


@on_postgresql
def test_of_several_contenders_one_takes_over(postgresql_url: str) -> None:
    """Several want the lease of a dead leader at the same time."""
    dead = open_store(postgresql_url, lease_ms=300)
    dead.lead("dead")
    stores = [open_store(postgresql_url, lease_ms=30_000) for _ in range(3)]
    epochs: list[int] = []
    refusals: list[Reason] = []

    def contend(store: Store, name: str) -> None:
        try:
            epochs.append(store.lead(name, wait_s=2))
        except StoreError as error:
            refusals.append(error.reason)

    threads = [
        threading.Thread(target=contend, args=(store, f"contender {number}"))
        for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert epochs == [2]
    assert refusals == [Reason.STORE_IN_USE] * 2
    for store in [dead, *stores]:
        store.close()


# How long a lease is trusted without asking.


class Clock:
    """The boot time clock of this host, set by the test."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leased(postgresql_url: str, clock: Clock) -> Iterator[PostgresqlStore]:
    """A store with a lease of one minute, by the test's clock."""
    made = PostgresqlStore(
        DatabaseUrl.parse(postgresql_url),
        postgresql_engine(DatabaseUrl.parse(postgresql_url)),
        read_only=False,
        lease_ms=60_000,
        clock=clock,
    )
    open_store(postgresql_url).close()  # creates the tables
    yield made
    made.close()


@on_postgresql
def test_a_lease_is_relied_on_for_less_than_it_lasts(leased: PostgresqlStore, clock: Clock) -> None:
    assert not leased.holds_lease()
    leased.lead("first")
    for passed_s, sure in ((0, True), (53, True), (54, False), (1000, False)):
        clock.now_s = 1000.0 + passed_s
        assert leased.holds_lease() is sure
    leased.renew()
    assert leased.holds_lease()


@on_postgresql
@pytest.mark.parametrize("first", [True, False], ids=["taken", "renewed"])
def test_a_lease_counts_from_before_it_was_asked_for(
    leased: PostgresqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """The answer may be late: the granted lease began before it."""
    if not first:
        leased.lead("first")
    about_lease = leased._on_lease_connection

    def late(ask: Any) -> Any:
        found = about_lease(ask)
        clock.now_s += 50  # the process stood still
        return found

    monkeypatch.setattr(leased, "_on_lease_connection", late)
    if first:
        leased.lead("first")
    else:
        leased.renew()
    assert leased.holds_lease()
    clock.now_s += 5
    assert not leased.holds_lease()


@on_postgresql
def test_whoever_was_replaced_is_not_sure_any_more(
    leased: PostgresqlStore, postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    leased.lead("first")
    taken = "UPDATE leadership SET rm_epoch = rm_epoch + 1, holder = 'another'"
    postgresql_server.execute(taken, postgresql_url.partition("@/")[2].partition("?")[0])
    assert leased.holds_lease()  # it cannot know; its commits fail all the same
    with pytest.raises(NotLeader):
        leased.renew()
    assert not leased.holds_lease()


def test_in_sqlite_leading_ends_with_the_process_only(file_store: SqliteStore) -> None:
    assert file_store.holds_lease()


@on_postgresql
def test_renewing_while_the_own_epoch_is_raised_does_not_look_like_being_replaced(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failed commit: the state is reloaded while the lease is renewed in parallel."""
    scalar = Connection.scalar

    def slow(connection: Connection, *args: Any, **kwargs: Any) -> Any:
        found = scalar(connection, *args, **kwargs)
        time.sleep(0.02)  # the new epoch is in the database, but this process does not know it yet
        return found

    with open_store(postgresql_url) as store:
        store.lead("first")
        monkeypatch.setattr(Connection, "scalar", slow)
        with keeps_renewing(store, pause_s=0):
            for _ in range(10):
                store.lead("first")
        store.renew()


@on_postgresql
def test_a_leader_whose_taking_was_not_heard_of_still_leads(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the database stored the new epoch, before its answer."""
    scalar = Connection.scalar
    lost = 0

    def unheard(connection: Connection, *args: Any, **kwargs: Any) -> Any:
        nonlocal lost
        found = scalar(connection, *args, **kwargs)
        if "durable" in str(args[0]) and lost < 2:
            lost += 1
            raise OperationalError("lost", {}, Exception("server closed the connection"))
        return found

    with open_store(postgresql_url, lease_ms=60_000) as store:
        monkeypatch.setattr(Connection, "scalar", unheard)
        with pytest.raises(StoreAway):
            store.lead("first")
        with pytest.raises(StoreAway):
            store.lead("first")
        assert store.lead("first") == 3
        store.renew()
        store.commit(Changes(jobs=[job()]))


@on_postgresql
def test_two_of_one_name_are_two(postgresql_url: str) -> None:
    with open_store(postgresql_url, lease_ms=60_000) as first, open_store(postgresql_url) as second:
        first.lead("a twin")
        with pytest.raises(StoreError, match="in use by a twin \\(epoch 1"):
            second.lead("a twin", wait_s=0)


@on_postgresql
def test_the_lease_outlives_its_connection(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    name = postgresql_url.partition("@/")[2].partition("?")[0]
    with open_store(postgresql_url, lease_ms=60_000) as store:
        store.lead("first")
        postgresql_server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        store.renew()


@on_postgresql
def test_a_lease_is_renewed_while_readers_have_all_other_connections(postgresql_url: str) -> None:
    with open_store(postgresql_url) as store, ExitStack() as reading:
        store.lead("first")
        for _ in range(CONNECTIONS):
            reading.enter_context(inside(store)._read_connection())
        store.renew()


@on_postgresql
@pytest.mark.parametrize("place", ["before the fence", "after the fence", "after the rows"])
def test_a_leader_that_stops_anywhere_in_a_commit_blocks_nobody(
    postgresql_url: str, place: str
) -> None:
    frozen = open_store(postgresql_url, lease_ms=500)
    frozen.lead("frozen")
    assert isinstance(frozen, PostgresqlStore)
    writer = frozen._engine.connect()
    writer.begin()
    writer.execute(text("SELECT 1"))
    if place != "before the fence":
        assert inside(frozen)._fence(writer)
    if place == "after the rows":
        prepared = PreparedChanges(Changes(jobs=[job()]))
        prepared.apply(writer, inside(frozen)._statements)
    with open_store(postgresql_url) as second:
        assert second.lead("second", wait_s=20) == 2
        if place == "before the fence":
            assert not inside(frozen)._fence(writer)
        else:
            with pytest.raises(SQLAlchemyError):
                writer.execute(text("SELECT 1"))
        assert second.load().jobs == []
        writer.close()
        frozen.close()


@on_postgresql
def test_a_leader_that_waits_for_a_lock_gives_up_within_its_lease(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    """Otherwise its session would keep the row locked after it died."""
    from psycopg import connect

    with open_store(postgresql_url, lease_ms=300) as store:
        store.lead("first")
        with connect(postgresql_url) as operator:
            operator.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreAway, match="locked by another session"):
                store.commit(Changes(jobs=[job()]))
            operator.rollback()
        store.commit(Changes(jobs=[job()]))


# The leader's address, for waiting standbys.


def test_who_is_refused_learns_where_the_leader_is(opened: OpenStore) -> None:
    first = opened(lease_ms=60_000)
    first.lead("first", address="rm-a:7170", page_address="https://rm-a:7172")
    with pytest.raises(StoreError) as caught:
        opened().lead("second", wait_s=0)
    assert caught.value.details["leader_address"] == "rm-a:7170"
    assert caught.value.details["leader_page"] == "https://rm-a:7172"
    assert "--standby" in caught.value.message
    first.lead("first", address="rm-a.example:7170")  # would see another leader by now
    with pytest.raises(StoreError) as caught:
        opened().lead("second", wait_s=0)
    assert caught.value.details["leader_address"] == "rm-a.example:7170"
    assert caught.value.details["leader_page"] == ""  # this leader has no page


def test_a_store_that_waits_is_opened_when_nobody_leads(url: str) -> None:
    late = LazyStore(url, lambda: open_store(url, lease_ms=60_000))
    with open_store(url, lease_ms=60_000) as first:
        first.lead("first", address="rm-a:7170", page_address="https://rm-a:7172")
        with pytest.raises(StoreError) as caught:
            late.lead("second")
        assert caught.value.reason is Reason.STORE_IN_USE
        assert caught.value.details["leader_address"] == "rm-a:7170"
        assert caught.value.details["leader_page"] == "https://rm-a:7172"
        assert not late.holds_lease()
    assert late.lead("second", address="rm-b:7170") == 2
    assert late.holds_lease()
    late.renew()
    late.commit(Changes(jobs=[job()]))
    assert len(late.load().jobs) == 1
    late.close()
    with pytest.raises(StoreError):
        late.renew()


def test_a_file_that_somebody_leads_is_not_even_looked_at(tmp_path: Path, sqlite_url: str) -> None:
    opened: list[str] = []

    def opener() -> Store:
        opened.append(sqlite_url)
        return open_store(sqlite_url)

    late = LazyStore(sqlite_url, opener)
    with open_store(sqlite_url) as first:
        first.lead("first")
        for _ in range(3):
            with pytest.raises(StoreError, match="in use by first"):
                late.lead("second")
    assert opened == []
    late.lead("second")
    assert opened == [sqlite_url]
    late.close()


@on_postgresql
def test_newer_software_waits_for_the_lease_of_a_dead_leader_and_upgrades(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(postgresql_url, lease_ms=800) as dead:
        dead.lead("dead")
        know_next_version(monkeypatch, tmp_path / "migrations")
        open_store(postgresql_url).close()
        assert schema.current_version(postgresql_url) == NEXT


def test_a_standby_of_newer_software_upgrades_when_it_is_its_turn(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LazyStore(url, lambda: open_store(url))
    with open_store(url) as first:
        first.lead("first", address="rm-a:7170")
        know_next_version(monkeypatch, tmp_path / "migrations")
        with keeps_renewing(first), pytest.raises(StoreError) as caught:
            late.lead("second")
        assert caught.value.details["leader_address"] == "rm-a:7170"
    assert late.lead("second") == 2
    late.close()
    assert schema.current_version(url) == NEXT
