"""Tests that all migrations together make the schema of new databases, and runs every migration."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from finegrain.errors import Reason, StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import creation, migrate, schema, tables
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.opening import open_store
from tests.support.books import books_of, everything, same_books
from tests.support.migrations import NEXT, STEP, know_next_version
from tests.support.postgresql import PostgresqlServer

REPOSITORY = Path(__file__).resolve().parents[3]

BROKEN = STEP + '    op.execute("INSERT INTO no_such_table VALUES (1)")\n'


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this software know one more migration."""

    def use(step: str) -> None:
        know_next_version(monkeypatch, tmp_path / "migrations", step)

    return use


def sqlite_objects(path: Path) -> dict[str, str]:
    """Returns every table and index with its SQL, without white space and quotes."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: "".join(sql.replace('"', "").split()) for name, sql in rows}


def test_migrated_schema_is_that_of_a_new_database_in_sqlite(
    sqlite_url: str, tmp_path: Path
) -> None:
    with create_engine(f"sqlite:///{tmp_path / 'migrated.db'}").begin() as connection:
        migrate.migrate(connection, tables.SCHEMA_VERSION)
    schema.upgrade(sqlite_url)
    migrated = sqlite_objects(tmp_path / "migrated.db")
    assert migrated == sqlite_objects(tmp_path / "books.db")
    assert len(migrated) > 10
    for table in tables.metadata.tables:
        assert migrated[table].endswith("STRICT")


DESCRIBED = """
    SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable
        || ' ' || coalesce(column_default, '')
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL
    SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    UNION ALL
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
    """


def described(url: str) -> set[str]:
    with create_engine(DatabaseUrl.parse(url).url).connect() as connection:
        return {str(row[0]) for row in connection.execute(text(DESCRIBED))}


@pytest.mark.needs("postgresql")
def test_migrated_schema_is_that_of_a_new_database_in_postgresql(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    schema.upgrade(postgresql_url)
    name = postgresql_server.create_database()
    migrated = postgresql_server.url(name)
    with create_engine(DatabaseUrl.parse(migrated).url).begin() as connection:
        migrate.migrate(connection, tables.SCHEMA_VERSION)
    assert described(postgresql_url) == described(migrated)
    assert len(described(postgresql_url)) > 80
    postgresql_server.drop_database(name)


def test_every_version_is_a_file_and_can_be_reached_from_the_one_before(url: str) -> None:
    names = sorted(each.name for each in (migrate.migrations_folder() / "versions").glob("0*.py"))
    assert [int(name[:4]) for name in names] == list(range(1, schema.head_version() + 1))
    location = DatabaseUrl.parse(url)
    engine = create_engine(location.url)
    for version in range(1, schema.head_version() + 1):
        with engine.begin() as connection:
            migrate.migrate(connection, version)
            assert migrate.recorded_version(connection) == version
    assert schema.differences(location) == []
    engine.dispose()


def test_a_dry_run_tells_the_steps_and_does_nothing(url: str) -> None:
    plan = schema.upgrade(url, dry_run=True)
    assert (plan.from_version, plan.to_version) == (0, schema.head_version())
    assert plan.steps[0].startswith("0001 The first schema")
    assert schema.current_version(url) == 0


def test_an_upgrade_of_nothing_makes_the_database_and_a_second_one_nothing(url: str) -> None:
    assert len(schema.upgrade(url).steps) == schema.head_version()
    assert schema.upgrade(url).steps == []
    assert schema.current_version(url) == schema.head_version()
    assert not [each for each in schema.check(url) if each.severity == "error"]


def test_books_survive_an_upgrade(url: str, next_version: Callable[[str], None]) -> None:
    changes = everything()
    with open_store(url) as store:
        store.lead("old software")
        store.commit(changes)
        salt = store.meta("cluster_salt")
    next_version(STEP)
    with pytest.raises(StoreError, match="finegrain db upgrade") as caught:
        open_store(url, upgrade=False)
    assert caught.value.reason is Reason.STORE_SCHEMA
    assert schema.upgrade(url, dry_run=True).steps == [f"{NEXT:04d} A step for tests."]
    with open_store(url) as store:
        assert store.lead("new software") == 2
        assert same_books(store.load(), books_of(changes))
        assert store.meta("cluster_salt") == salt
    assert schema.current_version(url) == NEXT


def test_a_copy_of_the_old_file_is_kept(
    sqlite_url: str, tmp_path: Path, next_version: Callable[[str], None]
) -> None:
    schema.upgrade(sqlite_url)
    next_version(STEP)
    schema.upgrade(sqlite_url)
    assert schema.current_version(f"sqlite:///{tmp_path}/books.db.before-{NEXT:04d}") == NEXT - 1


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    url: str, next_version: Callable[[str], None]
) -> None:
    changes = everything()
    with open_store(url) as store:
        store.lead("old software")
        store.commit(changes)
    next_version(BROKEN)
    with pytest.raises(StoreError, match="no_such_table"):
        open_store(url)
    assert schema.current_version(url) == NEXT - 1
    location = DatabaseUrl.parse(url)
    assert schema.differences(location) == []


def test_nothing_is_upgraded_under_a_running_resource_manager(
    url: str, next_version: Callable[[str], None]
) -> None:
    with open_store(url, lease_ms=60_000) as store:
        store.lead("old software")
        next_version(STEP)
        if DatabaseUrl.parse(url).is_sqlite:
            with pytest.raises(StoreError, match="in use by old software"):
                open_store(url)
        else:
            from resource_manager.storage import postgresql_server

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(postgresql_server, "LEASE_WAIT_MAX_S", 0.1)
                with pytest.raises(StoreError, match="in use by old software"):
                    open_store(url)
        assert schema.current_version(url) == NEXT - 1
        store.commit(Changes(counters={"x": 1}))


def test_a_schema_changed_by_hand_is_reported(sqlite_url: str, tmp_path: Path) -> None:
    schema.upgrade(sqlite_url)
    with closing(sqlite3.connect(tmp_path / "books.db")) as connection:
        connection.execute("ALTER TABLE jobs ADD COLUMN colour TEXT")
    assert any("changed by hand" in each.message for each in schema.check(sqlite_url))


def test_check_tells_damage_as_an_error(sqlite_url: str, tmp_path: Path) -> None:
    schema.upgrade(sqlite_url)
    assert [each for each in schema.check(sqlite_url) if each.severity == "error"] == []
    with closing(sqlite3.connect(tmp_path / "books.db")) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(
            "INSERT INTO job_events VALUES ('nobody', 1, 1, '', '', '', '', NULL, 1)"
        )
        connection.commit()
    findings = schema.check(sqlite_url)
    assert any(each.severity == "error" and "without its jobs" in each.message for each in findings)


def test_check_of_nothing_says_how_to_begin(url: str) -> None:
    (finding,) = schema.check(url)
    assert finding.severity == "error"
    assert "finegrain db upgrade" in finding.message


def test_the_version_of_the_file_and_of_alembic_agree(sqlite_url: str, tmp_path: Path) -> None:
    schema.upgrade(sqlite_url)
    with create_engine(sqlite_url).connect() as connection:
        assert migrate.recorded_version(connection) == schema.current_version(sqlite_url)


def test_migrations_are_found_where_a_wheel_puts_them(tmp_path: Path) -> None:
    """Below `resource_manager/`, from any working directory, without a repository."""
    # a name that the configuration of alembic would interpret
    site = tmp_path / "site-packages-100%"
    for package in ("finegrain", "resource_manager"):
        shutil.copytree(
            REPOSITORY / package,
            site / package,
            ignore=shutil.ignore_patterns("__pycache__", "v1"),
        )
    shutil.copytree(REPOSITORY / "migrations", site / "resource_manager/migrations")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from resource_manager.storage import migrate, schema\n"
        "schema.upgrade(sys.argv[2])\n"
        "print(migrate.migrations_folder(), schema.current_version(sys.argv[2]))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(site), f"sqlite:///{tmp_path}/wheel.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == [
        str(site / "resource_manager/migrations"),
        str(schema.head_version()),
    ], told.stderr


def test_new_databases_have_identities_of_their_own(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        creation.create_sqlite(tmp_path / name)
        with open_store(f"sqlite:///{tmp_path}/{name}") as store:
            found += [store.meta("cluster_id"), store.meta("cluster_salt")]
    assert len(set(found)) == 4
