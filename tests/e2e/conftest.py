"""Provides one small cluster for each module that needs a cluster, and daemons for tests that kill
daemons.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.driving import Daemons, Small, small_cluster
from tests.support.postgresql import PostgresqlServer


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Home and run directory of the users in a module's tests. The path is short, because it
    contains sockets.
    """
    folder = Path(tempfile.mkdtemp(prefix="fg-home-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A server that runs until all tests of a module have ended."""
    server = PostgresqlServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Small]:
    """Two executors, labeled zone=a and zone=b, with one core and 512 MiB each."""
    with small_cluster(home) as small:
        yield small


@pytest.fixture
def small(shared: Small) -> Iterator[Small]:
    """The module's cluster; it must be empty after every test."""
    yield shared
    shared.cli.settle()
    assert not shared.slot_groups()


@pytest.fixture
def daemons(home: Path) -> Iterator[Daemons]:
    """A resource manager and executors that a test starts, kills and starts again."""
    made = Daemons(home)
    yield made
    made.clean_up()
