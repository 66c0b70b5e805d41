"""Tests restores: a copy made under load is complete, with an epoch above every epoch seen."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from finegrain.errors import InvalidArgument, Reason, StoreError
from resource_manager.engine.model.changes import GENERATION_FLOOR
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import backup as backup_module
from resource_manager.storage import schema
from resource_manager.storage.lost_history import SEQUENCE_STEP
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.support.books import books_of, everything, job, same_books
from tests.support.disk_calls import DiskCalls, Synced
from tests.support.stores import inside


@pytest.fixture
def leading(sqlite_url: str) -> Iterator[Store]:
    with open_store(sqlite_url) as store:
        store.lead("first", above_epoch=9)
        yield store


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


def test_a_backup_of_a_running_database_is_complete(
    leading: Store, sqlite_url: str, copy: Path
) -> None:
    changes = everything()
    leading.commit(changes)
    schema.backup(sqlite_url, copy)
    leading.commit(Changes([job("after the backup")]))
    with open_store(f"sqlite:///{copy}", read_only=True) as store:
        assert same_books(store.load(), books_of(changes))


def test_a_backup_is_one_private_file(leading: Store, sqlite_url: str, copy: Path) -> None:
    schema.backup(sqlite_url, copy)
    assert [each.name for each in copy.parent.glob("backup*")] == ["backup.db"]
    assert copy.stat().st_mode & 0o777 == 0o600


def test_the_restore_drill(leading: Store, sqlite_url: str, copy: Path) -> None:
    """The restored database has the backup's rows and an epoch above what executors saw.

    The replaced file is kept. test_lost_history.py tests the numbers that were lost with that file.
    """
    changes = everything()
    leading.commit(changes)
    schema.backup(sqlite_url, copy)
    leading.commit(Changes([job("acknowledged after the backup")]))
    leading.close()
    done = schema.restore(sqlite_url, copy, above_epoch=57)
    assert done.rm_epoch == 58
    expected = books_of(changes)
    for each in expected.jobs:
        each.last_sequence += SEQUENCE_STEP
        each.trimmed_sequence = each.last_sequence
    with open_store(sqlite_url) as store:
        found = store.load()
        del found.counters[GENERATION_FLOOR]
        assert same_books(found, expected)
        assert store.lead("second") == 59
    assert done.kept is not None
    with open_store(f"sqlite:///{done.kept}", read_only=True) as old:
        assert "acknowledged after the backup" in {each.job_id for each in old.load().jobs}


def test_a_log_that_a_crash_left_behind_does_not_get_into_the_restored_file(
    sqlite_url: str, copy: Path, tmp_path: Path
) -> None:
    """The last process died with rows in its log only."""
    path = tmp_path / "books.db"
    with open_store(sqlite_url) as store:
        store.lead("first")
        schema.backup(sqlite_url, copy)
        store.commit(Changes([job("in the log only")]))
        remains = {
            name: path.with_name(name).read_bytes()
            for name in ("books.db", "books.db-wal", "books.db-shm")
        }
    for name, content in remains.items():
        path.with_name(name).write_bytes(content)
    done = schema.restore(sqlite_url, copy, above_epoch=0)
    with open_store(sqlite_url) as store:
        assert store.load().jobs == []
    assert done.kept is not None
    with open_store(f"sqlite:///{done.kept}", read_only=True) as old:
        assert [each.job_id for each in old.load().jobs] == ["in the log only"]


def test_the_epoch_of_the_replaced_database_counts_too(
    leading: Store, sqlite_url: str, copy: Path
) -> None:
    schema.backup(sqlite_url, copy)
    leading.lead("first", above_epoch=199)
    leading.close()
    assert schema.restore(sqlite_url, copy, above_epoch=0).rm_epoch == 201


def test_databases_survive_a_power_cut_once_they_have_their_names(
    sqlite_url: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    with open_store(sqlite_url) as store:
        disk.check_durable(database := inside(store).location.path)
        store.lead("first")
        schema.backup(sqlite_url, copy)
    disk.check_durable(copy)
    disk.calls.clear()
    kept = schema.restore(sqlite_url, copy, above_epoch=0).kept
    assert kept is not None
    disk.check_durable(database)
    set_aside, replaced = disk.at_naming(kept), disk.at_naming(database)
    assert Synced(database.parent, None) in disk.calls[set_aside:replaced]


def test_a_damaged_database_can_be_replaced(
    leading: Store, sqlite_url: str, copy: Path, tmp_path: Path
) -> None:
    schema.backup(sqlite_url, copy)
    leading.close()
    (tmp_path / "books.db").write_bytes(b"\0" * 10_000)
    assert schema.restore(sqlite_url, copy, above_epoch=30).rm_epoch == 31
    with open_store(sqlite_url) as store:
        assert store.lead("second") == 32


def test_a_lost_database_can_be_replaced(
    leading: Store, sqlite_url: str, copy: Path, tmp_path: Path
) -> None:
    schema.backup(sqlite_url, copy)
    leading.close()
    for each in tmp_path.glob("books.db*"):
        each.unlink()
    done = schema.restore(sqlite_url, copy, above_epoch=30)
    assert done.kept is None
    assert schema.current_version(sqlite_url) == schema.head_version()


def test_nothing_is_restored_under_a_running_resource_manager(
    leading: Store, sqlite_url: str, copy: Path
) -> None:
    schema.backup(sqlite_url, copy)
    with pytest.raises(StoreError, match="in use by first") as caught:
        schema.restore(sqlite_url, copy, above_epoch=0)
    assert caught.value.reason is Reason.STORE_IN_USE
    leading.commit(Changes([job()]))


@pytest.mark.parametrize("damage", ["cut", "scribbled", "foreign", "newer", "absent"])
def test_a_bad_backup_changes_nothing(
    leading: Store, sqlite_url: str, copy: Path, tmp_path: Path, damage: str
) -> None:
    leading.commit(everything())
    schema.backup(sqlite_url, copy)
    leading.close()
    spoil(copy, damage)
    before = (tmp_path / "books.db").read_bytes()
    with pytest.raises(StoreError, match=re.escape(str(copy))):
        schema.restore(sqlite_url, copy, above_epoch=0)
    assert (tmp_path / "books.db").read_bytes() == before
    assert not list(tmp_path.glob("*.new*"))


def spoil(copy: Path, damage: str) -> None:
    match damage:
        case "cut":
            os.truncate(copy, copy.stat().st_size // 2)
        case "scribbled":
            data = bytearray(copy.read_bytes())
            data[len(data) // 2 :] = b"\xa5" * (len(data) - len(data) // 2)
            copy.write_bytes(data)
        case "foreign":
            copy.unlink()
            with closing(sqlite3.connect(copy)) as other:
                other.execute("CREATE TABLE photos (name TEXT)")
        case "newer":
            with closing(sqlite3.connect(copy)) as newer:
                newer.execute("PRAGMA user_version = 99")
        case "absent":
            copy.unlink()


def test_a_restore_interrupted_before_the_last_step_leaves_the_old_database(
    leading: Store, sqlite_url: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading.commit(Changes([job()]))
    schema.backup(sqlite_url, copy)
    leading.commit(Changes([job("job-2")]))
    leading.close()

    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backup_module, "put_in_place", power_cut)
        with pytest.raises(KeyboardInterrupt):
            schema.restore(sqlite_url, copy, above_epoch=0)
    with open_store(sqlite_url) as store:
        assert len(store.load().jobs) == 2


def test_a_backup_replaces_an_older_one_and_nothing_else(
    leading: Store, sqlite_url: str, copy: Path, tmp_path: Path
) -> None:
    schema.backup(sqlite_url, copy)
    leading.commit(Changes([job()]))
    schema.backup(sqlite_url, copy)
    with open_store(f"sqlite:///{copy}", read_only=True) as store:
        assert store.load().jobs == [job()]
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    for path in (thesis, tmp_path / "books.db", tmp_path):
        with pytest.raises(InvalidArgument, match="an older backup"):
            schema.backup(sqlite_url, path)
    assert thesis.read_text() == "years of work"


def test_a_negative_epoch_is_refused(sqlite_url: str, copy: Path) -> None:
    with pytest.raises(InvalidArgument, match="above_epoch is -1"):
        schema.restore(sqlite_url, copy, above_epoch=-1)
