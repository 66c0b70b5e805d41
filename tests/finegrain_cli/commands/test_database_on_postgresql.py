"""`finegrain db ...` on a real PostgreSQL: what it does, what it refuses, and the remedies in its
errors.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from resource_manager.storage import postgresql_server as server_side
from resource_manager.storage.opening import open_store
from tests.support.cli import Finegrain
from tests.support.migrations import NEXT, know_next_version
from tests.support.postgresql import PASSWORD_USER, PostgresqlServer

pytestmark = [pytest.mark.needs("postgresql"), pytest.mark.full]

COMMANDS = [
    ("check",),
    ("upgrade",),
    ("upgrade", "--dry-run"),
    ("raise-epoch", "--above-epoch", "7"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    started = PostgresqlServer()
    yield started
    started.stop()


@pytest.fixture
def name(server: PostgresqlServer) -> Iterator[str]:
    """An empty database."""
    made = server.create_database()
    yield made
    server.drop_database(made)


@pytest.fixture
def url(server: PostgresqlServer, name: str) -> str:
    return server.url(name)


@pytest.fixture
def filled(finegrain: Finegrain, url: str) -> str:
    """The URL of a database that is up to date."""
    assert finegrain("db", "upgrade", "--database", url).exit_code == 0
    return url


def told(result: Result) -> tuple[str, str]:
    """The code and the one sentence of a refusal; `check` gives a finding instead."""
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert "geheim" not in result.output
    document = json.loads(result.stdout)
    if document["kind"] != "DatabaseFindingList":
        assert result.stderr.count("finegrain: ") == 1
        return document["code"], document["message"]
    (finding,) = document["items"]
    assert finding["severity"] == "error"
    return "", finding["message"]


def refused_by_all(finegrain: Finegrain, url: str, code: str, *words: str) -> None:
    for command in COMMANDS:
        result = finegrain("db", *command, "--database", url, "-o", "json")
        found, message = told(result)
        assert found in ("", code)
        for word in words:
            assert word in message
        assert "run `finegrain db upgrade`" not in result.stderr  # that would not help


def test_a_server_that_cannot_be_reached(finegrain: Finegrain) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://user:geheim@127.0.0.1:{unused.getsockname()[1]}/books"
        refused_by_all(
            finegrain, url, "STORE_UNAVAILABLE", "cannot be reached", "check that the server runs"
        )


def test_a_wrong_password(finegrain: Finegrain, server: PostgresqlServer, name: str) -> None:
    server.execute(
        f"DO $$ BEGIN CREATE USER {PASSWORD_USER} PASSWORD 'right'; "
        f"EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    url = server.url(name, PASSWORD_USER, "geheim")
    refused_by_all(
        finegrain,
        url,
        "STORE_UNAVAILABLE",
        f"refuses user {PASSWORD_USER}; correct user or password in the database URL",
    )


def test_a_database_that_nobody_made(finegrain: Finegrain, server: PostgresqlServer) -> None:
    refused_by_all(finegrain, server.url("no_such_books"), "STORE_UNAVAILABLE", "createdb no_such")


def test_a_database_of_another_program(
    finegrain: Finegrain, server: PostgresqlServer, name: str, url: str
) -> None:
    server.execute("CREATE TABLE photos (name text)", name)
    refused_by_all(finegrain, url, "STORE_SCHEMA", "not those of finegrain", "createdb finegrain")
    left = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name)
    assert left == [("photos",)]


def test_a_database_of_newer_software(
    finegrain: Finegrain, server: PostgresqlServer, name: str, filled: str
) -> None:
    server.execute("UPDATE alembic_version SET version_num = '0099'", name)
    refused_by_all(
        finegrain,
        filled,
        "STORE_SCHEMA",
        "has schema version 99",
        "install that version again",
        "pg_restore",
    )


def test_a_database_of_older_software(
    finegrain: Finegrain, filled: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    know_next_version(monkeypatch, tmp_path / "migrations")
    for command in (("check",), ("raise-epoch", "--above-epoch", "7")):
        _, message = told(finegrain("db", *command, "--database", filled, "-o", "json"))
        assert f"has schema version {NEXT - 1}, this software needs {NEXT}" in message
        assert "stop the resource manager and run `finegrain db upgrade`" in message
    plan = finegrain("db", "upgrade", "--dry-run", "--database", filled, "-o", "json")
    assert json.loads(plan.stdout)["steps"] == [f"{NEXT:04d} A step for tests."]
    done = finegrain("db", "upgrade", "--database", filled, "-o", "json")
    assert json.loads(done.stdout) == json.loads(plan.stdout) | {"dry_run": False}
    assert "nothing to do" in finegrain("db", "upgrade", "--database", filled).stdout


def test_a_database_that_a_resource_manager_holds(
    finegrain: Finegrain, filled: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such a database can be checked, but cannot be upgraded and cannot get another epoch."""
    monkeypatch.setattr(server_side, "LEASE_WAIT_MAX_S", 0.1)
    monkeypatch.setattr("resource_manager.storage.postgresql_store.LEASE_WAIT_MAX_S", 0.1)
    with open_store(filled, lease_ms=60_000) as store:
        store.lead("the resource manager")
        assert finegrain("db", "check", "--database", filled).exit_code == 0
        with pytest.MonkeyPatch.context() as newer:
            know_next_version(newer, tmp_path / "migrations")
            plan = finegrain("db", "upgrade", "--dry-run", "--database", filled)
            assert f"would upgrade from schema {NEXT - 1} to {NEXT}" in plan.stdout
            result = finegrain("db", "upgrade", "--database", filled, "-o", "json")
        code, message = told(result)
        assert code == "STORE_IN_USE"
        assert "in use by the resource manager (epoch 1" in message
        assert "stop that process first" in message
        result = finegrain(
            "db", "raise-epoch", "--above-epoch", "7", "--database", filled, "-o", "json"
        )
        assert told(result)[0] == "STORE_IN_USE"
        store.renew()  # still leads
    raised = finegrain("db", "raise-epoch", "--above-epoch", "7", "--database", filled)
    assert raised.stdout.endswith(": epoch 8\n")


def test_an_empty_database_is_filled_by_an_upgrade_only(finegrain: Finegrain, url: str) -> None:
    planned = finegrain("db", "upgrade", "--dry-run", "--database", url, "-o", "json")
    for command in (("check",), ("raise-epoch", "--above-epoch", "7")):
        _, message = told(finegrain("db", *command, "--database", url, "-o", "json"))
        assert "is empty; `finegrain db upgrade`" in message
    done = finegrain("db", "upgrade", "--database", url, "-o", "json")
    assert json.loads(planned.stdout) == json.loads(done.stdout) | {"dry_run": True}
    checked = finegrain("db", "check", "--database", url)
    assert checked.exit_code == 0
    assert checked.stdout.endswith(f": sound, schema {NEXT - 1}\n")


def test_copies_are_left_to_the_servers_own_tools(
    finegrain: Finegrain, filled: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    backup = finegrain("db", "backup", str(copy), "--database", filled)
    restore = finegrain("db", "restore", str(copy), "--above-epoch", "1", "--database", filled)
    assert (backup.exit_code, restore.exit_code) == (1, 1)
    assert "pg_dump" in backup.stderr
    assert "pg_restore, then finegrain db raise-epoch" in restore.stderr
    assert "will be replaced" not in restore.stderr
