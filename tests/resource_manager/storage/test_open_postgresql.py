"""Tests of a PostgreSQL that cannot be used: one clear error with the remedy."""

from __future__ import annotations

import builtins
import socket
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import ConfigurationError, FinegrainError, InvalidArgument, Reason, StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import schema
from resource_manager.storage.opening import open_store
from tests.support.books import job
from tests.support.postgresql import PASSWORD_USER, PostgresqlServer

pytestmark = pytest.mark.needs("postgresql")


def refusal(url: str, **options: Any) -> FinegrainError:
    with pytest.raises(FinegrainError) as caught:
        open_store(url, **options).close()
    return caught.value


def database_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_the_url_is_understood(postgresql_url: str, scheme: str) -> None:
    with open_store(postgresql_url.replace("postgresql", scheme, 1)) as store:
        assert store.lead("first") == 1


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = refusal(f"postgresql://user:geheim@127.0.0.1:{port}/books")
    assert error.reason is Reason.STORE_UNAVAILABLE
    assert "cannot be reached" in error.message
    assert "geheim" not in error.message


def test_a_wrong_password(postgresql_server: PostgresqlServer, postgresql_url: str) -> None:
    postgresql_server.execute(
        f"DO $$ BEGIN CREATE USER {PASSWORD_USER} PASSWORD 'right'; "
        f"EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    name = database_of(postgresql_url)
    error = refusal(postgresql_server.url(name, PASSWORD_USER, "geheim"))
    assert error.reason is Reason.STORE_UNAVAILABLE
    assert f"refuses user {PASSWORD_USER}" in error.message
    assert "geheim" not in error.message
    # The right password, but no right to create tables.
    error = refusal(postgresql_server.url(name, PASSWORD_USER, "right"))
    assert f"does not let user {PASSWORD_USER}" in error.message


def test_a_database_that_nobody_made(postgresql_server: PostgresqlServer) -> None:
    error = refusal(postgresql_server.url("no_such_books"))
    assert "createdb no_such_books" in error.message


def test_an_empty_database_is_filled_only_where_that_was_meant(postgresql_url: str) -> None:
    for options in ({"create": False}, {"read_only": True}):
        error = refusal(postgresql_url, **options)
        assert error.reason is Reason.STORE_SCHEMA
        assert "finegrain db upgrade" in error.message


def test_a_database_of_another_program_is_left_alone(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    name = database_of(postgresql_url)
    postgresql_server.execute("CREATE TABLE photos (name text)", name)
    error = refusal(postgresql_url)
    assert error.reason is Reason.STORE_SCHEMA
    assert "not those of finegrain" in error.message
    tables = postgresql_server.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name
    )
    assert tables == [("photos",)]


def test_a_database_that_newer_software_upgraded(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    name = database_of(postgresql_url)
    with open_store(postgresql_url) as waiting:
        postgresql_server.execute("UPDATE alembic_version SET version_num = '0099'", name)
        error = refusal(postgresql_url)
        assert error.reason is Reason.STORE_SCHEMA
        assert f"{name}?" in error.message
        assert "has schema version 99" in error.message
        with pytest.raises(StoreError, match="newer finegrain"):
            waiting.lead("old software that waited", wait_s=0)


def test_two_processes_may_make_the_database_at_once(postgresql_url: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(3) as pool:
        stores = list(pool.map(lambda _: open_store(postgresql_url), range(3)))
    assert len({store.meta("cluster_id") for store in stores}) == 1
    for store in stores:
        store.close()


def test_a_server_that_goes_away_is_an_error_and_comes_back(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    """Its sessions end, as in a restart: acknowledged state stays."""
    name = database_of(postgresql_url)
    with open_store(postgresql_url) as store:
        store.lead("first")
        store.commit(Changes([job()]))
        postgresql_server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        with pytest.raises(StoreError) as caught:
            store.commit(Changes([job("job-2")]))
        assert caught.value.reason is Reason.STORE_UNAVAILABLE
        assert store.lead("first") == 2
        assert store.load().jobs == [job()]
        store.commit(Changes([job("job-2")]))


def test_texts_with_nul_are_refused_and_nothing_is_stored(postgresql_url: str) -> None:
    with open_store(postgresql_url) as store:
        store.lead("first")
        with pytest.raises(StoreError, match="NUL"):
            store.commit(Changes([job(), job("job-2", name="a\0b")]))
        assert store.load().jobs == []


def test_a_lease_too_short_to_keep(postgresql_url: str) -> None:
    with pytest.raises(InvalidArgument, match="lease_ms is 5; expected at least 100"):
        open_store(postgresql_url, lease_ms=5)


def test_without_the_driver_the_extra_is_named(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_psycopg(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError("No module named 'psycopg'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    with pytest.raises(ConfigurationError, match=r"pip install 'finegrain\[postgres\]'"):
        open_store(postgresql_url)


def test_files_are_backed_up_here_servers_by_their_own_tools(
    postgresql_url: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="pg_dump"):
        schema.backup(postgresql_url, tmp_path / "backup")
    with pytest.raises(ConfigurationError, match="pg_restore"):
        schema.restore(postgresql_url, tmp_path / "backup", above_epoch=0)


def test_after_a_restore_by_other_means_the_epoch_can_be_raised(postgresql_url: str) -> None:
    open_store(postgresql_url).close()
    assert schema.raise_epoch(postgresql_url, above_epoch=70) == 71
    with open_store(postgresql_url) as store:
        assert store.lead("first") == 72


def test_risky_settings_of_the_server_are_reported(
    postgresql_server: PostgresqlServer, postgresql_url: str
) -> None:
    with open_store(postgresql_url) as store:
        assert store.check() == []
    postgresql_server.execute("ALTER SYSTEM SET full_page_writes = off")
    postgresql_server.execute("SELECT pg_reload_conf()")
    try:
        with open_store(postgresql_url) as store:
            assert any("full_page_writes" in each for each in store.check())
    finally:
        postgresql_server.execute("ALTER SYSTEM RESET full_page_writes")
        postgresql_server.execute("SELECT pg_reload_conf()")
