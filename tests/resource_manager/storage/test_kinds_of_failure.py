"""Tests what a caller must do after a failure: wait for the database, exit, or neither."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from finegrain.errors import Reason, StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import StoreAway, StoreBroken
from tests.support.books import job
from tests.support.postgresql import PostgresqlServer
from tests.support.stores import inside

END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'finegrain'"
)


@pytest.mark.needs("postgresql")
def test_a_server_that_ends_sessions_or_does_not_answer_is_away() -> None:
    server = PostgresqlServer()
    try:
        with open_store(server.url(server.create_database())) as store:
            store.lead("first")
            server.execute(END_SESSIONS)
            with pytest.raises(StoreAway):
                store.commit(Changes([job("job-1")]))
            store.lead("first")
            store.commit(Changes([job("job-1")]))
            server.shut_down(at_once=True)
            for use in (lambda: store.commit(Changes([job("job-2")])), lambda: store.lead("first")):
                with pytest.raises(StoreAway) as caught:
                    use()
                assert caught.value.reason is Reason.STORE_UNAVAILABLE
            server.start_again()
            store.lead("first")
            assert [each.job_id for each in store.load().jobs] == ["job-1"]
    finally:
        server.stop()


def test_a_batch_that_the_database_refuses_is_no_reason_to_wait(url: str) -> None:
    with open_store(url) as store:
        store.lead("first")
        with pytest.raises(StoreError) as caught:
            store.commit(Changes([job("job-1", name="with a lone \ud800")]))
        assert not isinstance(caught.value, StoreAway | StoreBroken)
        store.commit(Changes([job("job-1")]))


@pytest.mark.needs("postgresql")
def test_a_statement_that_the_server_refuses_is_no_reason_to_wait(postgresql_url: str) -> None:
    with open_store(postgresql_url) as store:
        store.lead("first")
        with pytest.raises(StoreError, match="rejected a statement") as caught:
            store.commit(Changes([job("job-1", name="with NUL \0")]))
        assert not isinstance(caught.value, StoreAway)
        store.commit(Changes([job("job-1")]))


def test_a_disk_that_fails_is_not_taken_for_another_leader(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that steps down is not restarted; one that exits with a failure is."""

    def failing(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with open_store(sqlite_url) as store:
        store.lead("first")
        store.renew()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", failing)
            with pytest.raises(StoreError, match="Input/output error"):
                store.renew()
        store.renew()


def test_an_sqlite_without_room_may_have_some_later(sqlite_url: str) -> None:
    with open_store(sqlite_url) as store:
        store.lead("first")
        with inside(store)._writing() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreAway) as caught:
            store.commit(Changes([job(f"job-{number}", name="x" * 200) for number in range(500)]))
        assert caught.value.reason is Reason.DISK_FULL
