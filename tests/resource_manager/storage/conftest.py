"""A new database per test, in SQLite and in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resource_manager.storage.memory_store import MemoryDatabase, MemoryStore
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.support.postgresql import PostgresqlServer
from tests.support.stores import OpenStore

MEMORY = "memory"
"""Used instead of the URL of a database."""

ON_BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql")))


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """One server for all tests of this process."""
    server = PostgresqlServer()
    yield server
    server.stop()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a database file that does not exist yet."""
    return f"sqlite:///{tmp_path}/books.db"


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> Iterator[str]:
    """An empty database on the server."""
    name = postgresql_server.create_database()
    yield postgresql_server.url(name)
    postgresql_server.drop_database(name)


@pytest.fixture(params=ON_BOTH)
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def opened(url: str) -> Iterator[OpenStore]:
    """Opens stores on the test's database; closes all of them at the end."""
    stores: list[Store] = []

    database = MemoryDatabase()

    def open_one(**options: object) -> Store:
        if url == MEMORY:
            store: Store = MemoryStore(database, read_only=bool(options.get("read_only")))
        else:
            store = open_store(url, **options)  # type: ignore[arg-type]
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: OpenStore) -> Store:
    """A store that is the leader."""
    # A short lease lets PostgreSQL end a transaction while a busy machine pauses this process.
    made = opened(lease_ms=60_000)
    made.lead("first")
    return made
