"""One resource manager leads; its epoch fences the others out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.errors import Reason, StoreError
from resource_manager.engine.effects import Changes
from resource_manager.storage.sqlite_store import SqliteStore
from resource_manager.storage.store import NotLeader, Store, open_store
from tests.support.books import job
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
    ends = time.monotonic() + 20
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
    """A leader that lives: renews in a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self._store.renew()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


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
    """The second one gets a lock of its own, and with it an epoch that fences the first."""
    lock = file_store.location.path.with_name("books.db.lock")
    lock.unlink()
    with pytest.raises(NotLeader):
        file_store.renew()
    with open_store(sqlite_url) as second:
        second.lead("second")
        with pytest.raises(NotLeader, match="another has taken over"):
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
    """As after a crash: the predecessor neither renews nor gives back."""
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
        # Giving back what it no longer has must not hurt the new leader.
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
    # What a commit does first, and then nothing more.
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
    """Seen from inside a transaction of the store itself."""
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
    """Several at once want the lease of a dead leader."""
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
