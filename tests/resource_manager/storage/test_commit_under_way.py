"""Tests a PostgreSQL lease that expires in the middle of a commit.

The next leader must wait for the commit. Otherwise it could read its state before rows of its
predecessor appear.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text

from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Job
from resource_manager.storage.opening import open_store
from resource_manager.storage.prepared import PreparedChanges
from resource_manager.storage.statements import Statements
from resource_manager.storage.store import NotLeader, Store
from tests.support.books import job
from tests.support.postgresql import PostgresqlServer
from tests.support.stores import inside

pytestmark = pytest.mark.needs("postgresql")

PATIENCE_S = 30.0
LEASE_MS = 60_000  # long enough that a silent commit is not aborted
WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class SlowCommit:
    """Pauses every commit after its fence and before its rows, until `go_on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fenced, self.go_on = threading.Event(), threading.Event()
        apply = PreparedChanges.apply

        def slowly(
            prepared: PreparedChanges, to: Connection, statements: Statements[Connection]
        ) -> None:
            self.fenced.set()
            assert self.go_on.wait(PATIENCE_S)
            apply(prepared, to, statements)

        monkeypatch.setattr(PreparedChanges, "apply", slowly)


@pytest.fixture
def leader(postgresql_server: PostgresqlServer, postgresql_url: str) -> Iterator[Store]:
    """A leader whose lease has expired, as after a long stop, and that does not know it."""
    with open_store(postgresql_url, lease_ms=LEASE_MS) as store:
        store.lead("leader")
        name = postgresql_url.partition("@/")[2].partition("?")[0]
        postgresql_server.execute("UPDATE leadership SET until_time_ms = 0", name)
        yield store


@pytest.fixture
def successor(postgresql_url: str) -> Iterator[Store]:
    with open_store(postgresql_url, lease_ms=LEASE_MS) as store:
        yield store


def until_one_waits_for_a_lock(store: Store, unless: Future[list[Job]]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not unless.done():
        with inside(store)._read_connection() as connection:
            if connection.scalar(WAITING):
                return
        assert time.monotonic() < end, "the successor neither leads nor waits"


def test_whoever_takes_over_reads_what_its_predecessor_was_committing(
    leader: Store, successor: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SlowCommit(monkeypatch)

    def take_over() -> list[Job]:
        successor.lead("successor", wait_s=PATIENCE_S)
        return successor.load().jobs

    with ThreadPoolExecutor(2) as threads:
        committed = threads.submit(leader.commit, Changes(jobs=[job()]))
        assert commit.fenced.wait(PATIENCE_S)
        found = threads.submit(take_over)
        until_one_waits_for_a_lock(leader, unless=found)
        commit.go_on.set()
        committed.result(PATIENCE_S)
        assert found.result(PATIENCE_S) == [job()]
    with pytest.raises(NotLeader):
        leader.commit(Changes(jobs=[job("job-2")]))
    assert successor.load().jobs == [job()]
