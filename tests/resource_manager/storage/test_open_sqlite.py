"""Tests of opening an unusable database file: one clear error with the remedy."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from finegrain.errors import ConfigurationError, FinegrainError, Reason, StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import schema, sqlite_file, sqlite_store, tables
from resource_manager.storage.location import sqlite_url as sqlite_url_of
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import StoreAway
from tests.support.books import job, request
from tests.support.stores import inside


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "books.db"


@pytest.fixture
def made(sqlite_url: str, path: Path) -> Path:
    """Returns a complete database with a thousand requests, closed."""
    with open_store(sqlite_url) as store:
        store.lead("first")
        store.commit(Changes([job()], [request(f"slot-{n}") for n in range(1000)]))
    return path


def refusal(url: str, **options: bool) -> FinegrainError:
    with pytest.raises(FinegrainError) as caught:
        open_store(url, **options).close()
    return caught.value


def set_pragma(path: Path, setting: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA {setting}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://host/db", "unknown database"),
        ("sqlite://", "is lost at a restart"),
        ("sqlite:///:memory:", "is lost at a restart"),
        ("books.db", "cannot be parsed"),
        ("", "cannot be parsed"),
        ("sqlite:////tmp/x.db?mode=ro", "options"),
        ("mysql://user:geheim@host/db", r"user:\*\*\*@host"),
    ],
)
def test_a_url_that_is_not_understood_shows_what_is_expected(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        open_store(url)
    assert "sqlite:////absolute/path.db" in caught.value.message
    assert "geheim" not in caught.value.message


def test_a_missing_database_is_made_only_where_that_was_meant(sqlite_url: str, path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        error = refusal(sqlite_url, **options)
        assert "finegrain db upgrade" in error.message
        assert not path.exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}/no/such/books.db")
    assert error.reason is Reason.STORE_UNAVAILABLE
    assert f"{tmp_path}/no/such" in error.message


@pytest.mark.parametrize("name", ["two words", "#1", "50%41", "für alle", "a'b", "why?"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with open_store(sqlite_url_of(tmp_path / name)) as store:
            store.lead("first")
            store.commit(Changes([job()]))
    assert (tmp_path / name).exists()
    assert not [each for each in tmp_path.iterdir() if not each.name.startswith(name)]


def test_a_folder_where_the_file_should_be(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(f"sqlite:///{tmp_path}").message


def test_a_new_database_has_the_profile_that_keeps_acknowledged_rows(sqlite_url: str) -> None:
    with open_store(sqlite_url) as store:
        store.lead("first")
        with inside(store)._writing() as connection:
            shown = {
                name: connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in (
                    *("journal_mode", "synchronous", "foreign_keys", "trusted_schema"),
                    *("cell_size_check", "wal_autocheckpoint", "application_id", "user_version"),
                )
            }
    assert shown == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "wal_autocheckpoint": 0,
        "application_id": tables.APPLICATION_ID,
        "user_version": tables.SCHEMA_VERSION,
    }


def test_the_files_are_for_their_owner_only(sqlite_url: str, tmp_path: Path) -> None:
    with open_store(sqlite_url) as store:
        store.lead("first")
        store.commit(Changes([job()]))
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert {"books.db", "books.db-wal", "books.db.lock"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_a_file_that_is_no_database(sqlite_url: str, path: Path) -> None:
    for content in (b"", b"hello", os.urandom(9000)):
        path.write_bytes(content)
        error = refusal(sqlite_url)
        assert error.reason is Reason.STORE_CORRUPT
        assert "not an SQLite database" in error.message
        assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(sqlite_url: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()
    error = refusal(sqlite_url)
    assert error.reason is Reason.STORE_SCHEMA
    assert "not one of finegrain" in error.message
    assert path.read_bytes() == before


def test_a_database_that_newer_software_upgraded(sqlite_url: str, made: Path) -> None:
    set_pragma(made, "user_version = 99")
    error = refusal(sqlite_url)
    assert error.reason is Reason.STORE_SCHEMA
    assert f"{made} has schema version 99" in error.message
    assert "newer finegrain" in error.message
    known = str(schema.head_version())
    assert error.details == {"schema_version": "99", "known_version": known}


def test_what_is_opened_to_read_cannot_be_written(made: Path) -> None:
    engine = sqlite_file.sqlite_engine(made, read_only=True, connections=1)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = OFF")  # the file itself is read-only, too
        with pytest.raises(OperationalError, match="readonly"):
            connection.exec_driver_sql("DELETE FROM meta")
    engine.dispose()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_spent_quota_may_have_room_later(made: Path, number: int) -> None:
    with pytest.raises(StoreAway) as caught, sqlite_file.os_errors(made):
        raise OSError(number, os.strerror(number))
    assert caught.value.reason is Reason.DISK_FULL


def test_commits_without_a_pause_do_not_let_the_log_grow(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_COMMITS", 2)
    sizes = []
    with open_store(sqlite_url) as store:
        store.lead("busy")
        for number in range(100):
            store.commit(Changes([job(f"job-{number}")]))
            sizes.append(next(tmp_path.glob("*-wal")).stat().st_size)
    assert max(sizes) < 2 * sizes[20]


def test_a_log_that_a_reader_keeps_is_emptied_in_the_next_idle_moment(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "QUIET_S", 0.0)
    with open_store(sqlite_url) as store:
        store.lead("quiet")
        (log,) = tmp_path.glob("*-wal")
        with closing(sqlite3.connect(next(tmp_path.glob("*.db")))) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchall()
            store.commit(Changes([job("job-1")]))
            store.maintain()
            assert log.stat().st_size
        store.maintain()
        assert not log.stat().st_size


def test_a_database_that_waits_for_an_upgrade(sqlite_url: str, made: Path) -> None:
    set_pragma(made, "user_version = 0")
    for options in ({"upgrade": False}, {"read_only": True}):
        error = refusal(sqlite_url, **options)
        assert error.reason is Reason.STORE_SCHEMA
        assert "finegrain db upgrade" in error.message


def test_a_database_upgraded_while_this_software_waited_is_not_led(
    sqlite_url: str, made: Path
) -> None:
    with open_store(sqlite_url) as store:
        set_pragma(made, "user_version = 99")
        with pytest.raises(StoreError, match="newer finegrain"):
            store.lead("old software")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9], ids=["early", "middle", "late"])
def test_a_damaged_database_is_not_opened(sqlite_url: str, made: Path, share: float) -> None:
    data = bytearray(made.read_bytes())
    start = int(len(data) * share)
    data[start : start + 5000] = b"\xa5" * 5000
    made.write_bytes(data)
    error = refusal(sqlite_url)
    assert error.reason is Reason.STORE_CORRUPT
    assert str(made) in error.message
    assert "finegrain db restore" in error.message


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9], ids=["early", "middle", "late"])
def test_the_first_load_finds_damage_that_opening_did_not_look_for(
    sqlite_url: str, made: Path, share: float
) -> None:
    data = bytearray(made.read_bytes())
    start = int(len(data) * share)
    data[start : start + 5000] = b"\xa5" * 5000
    made.write_bytes(data)
    with open_store(sqlite_url, check_in_load=True) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="finegrain db restore") as caught:
                store.load()
            assert caught.value.reason is Reason.STORE_CORRUPT
            assert str(made) in caught.value.message


def test_a_row_without_its_job_is_damage_even_if_every_row_can_be_read(
    sqlite_url: str, made: Path
) -> None:
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("DELETE FROM jobs")
        connection.commit()
    with (
        open_store(sqlite_url, check_in_load=True) as store,
        pytest.raises(StoreError, match="has a row without its jobs"),
    ):
        store.load()


def test_a_truncated_database_is_not_opened(sqlite_url: str, made: Path) -> None:
    os.truncate(made, made.stat().st_size // 2)
    assert refusal(sqlite_url).reason is Reason.STORE_CORRUPT


def test_a_log_without_its_database_is_not_played_into_a_new_one(
    sqlite_url: str, made: Path
) -> None:
    made.with_name("books.db-wal").write_bytes(b"acknowledged requests")
    made.unlink()
    error = refusal(sqlite_url)
    assert "moved or deleted without its log" in error.message
    assert not made.exists()


@pytest.mark.full
def test_a_database_that_another_program_keeps_locked(
    sqlite_url: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.1)
    with open_store(sqlite_url) as store, closing(sqlite3.connect(made)) as other:
        store.lead("first")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program") as caught:
            store.commit(Changes([job("job-2")]))
        assert caught.value.reason is Reason.STORE_IN_USE
        other.rollback()
        store.commit(Changes([job("job-2")]))
        assert len(store.load().jobs) == 2


def test_a_second_process_is_told_who_has_the_database(sqlite_url: str, made: Path) -> None:
    code = """
import sys
import tempfile
from resource_manager.storage.opening import open_store
try:
    open_store(sys.argv[1]).lead("second")
except Exception as error:
    print(error.reason, error)
"""
    with open_store(sqlite_url) as store:
        store.lead("rm at 127.0.0.1:7000")
        told = subprocess.run(
            [sys.executable, "-c", code, sqlite_url], capture_output=True, text=True
        )
    assert told.stdout.startswith("STORE_IN_USE"), told.stderr
    assert f"in use by rm at 127.0.0.1:7000 (pid {os.getpid()})" in told.stdout


def test_a_making_that_was_interrupted_leaves_no_half_database(
    sqlite_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("resource_manager.storage.creation.put_in_place", power_cut)
        with pytest.raises(KeyboardInterrupt):
            open_store(sqlite_url)
    assert not path.exists()
    open_store(sqlite_url).close()
    assert path.exists()
    assert not list(path.parent.glob("*.new*"))


def test_what_a_power_cut_left_of_a_making_is_cleared_away(sqlite_url: str, path: Path) -> None:
    """No process completed its creation: the unfinished file still has its temporary name."""
    unfinished = sqlite_file.temporary_name(path)
    for suffix in ("", "-wal", "-shm"):
        unfinished.with_name(unfinished.name + suffix).write_bytes(b"half")
    other = path.with_name("books.db.mine.new")
    other.write_bytes(b"not ours")
    open_store(sqlite_url).close()
    assert not list(path.parent.glob(unfinished.name + "*"))
    assert other.exists()


def test_a_backup_copied_into_place_by_hand_works_in_wal_mode_again(
    sqlite_url: str, made: Path, tmp_path: Path
) -> None:
    set_pragma(made, "journal_mode = DELETE")
    with open_store(sqlite_url) as store:
        store.lead("first")
        assert len(store.load().requests) == 1000
        assert (
            inside(store)._reader.connect().exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        )


def test_old_sqlite_is_reported(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    with open_store(sqlite_url) as store:
        assert any("older than 3.51.3" in each for each in store.check())
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
        assert store.check() == []


@pytest.mark.needs("nobody-user")
def test_a_database_of_another_user_is_a_clear_error() -> None:
    folder = Path(tempfile.mkdtemp(prefix="finegrain-other-user-"))
    try:
        folder.chmod(0o755)
        open_store(f"sqlite:///{folder}/books.db").close()
        code = (
            "import os, sys\n"
            "import resource_manager.storage.sqlite_store\n"
            "from resource_manager.storage.opening import open_store\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "try: open_store(sys.argv[1])\n"
            "except Exception as error: print(error.reason, error)\n"
        )
        told = subprocess.run(
            [sys.executable, "-c", code, f"sqlite:///{folder}/books.db"],
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(folder)
    assert told.stdout.startswith("STORE_UNAVAILABLE"), told.stderr
    assert "uid 65534" in told.stdout
