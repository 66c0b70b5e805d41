"""Copies the stored data of the previous version to a folder where a test may change the data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.previous.code import EVIDENCE, PreviousCode
from tests.support.postgresql import PostgresqlServer

ON_BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql")))


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> PreviousCode:
    """The code of the previous version, unpacked once."""
    return PreviousCode(tmp_path_factory.mktemp("previous"))


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """One server for all tests of this process."""
    server = PostgresqlServer()
    yield server
    server.stop()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A copy of the database file."""
    shutil.copy(EVIDENCE / "state.db", tmp_path)
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> Iterator[str]:
    """A database into which the dump was loaded."""
    import psycopg

    name = postgresql_server.create_database()
    url = postgresql_server.url(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((EVIDENCE / "state.sql").read_bytes())
    yield url
    postgresql_server.drop_database(name)


@pytest.fixture(params=ON_BOTH)
def url(request: pytest.FixtureRequest) -> str:
    """The stored state of the evidence, in each kind of database."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
