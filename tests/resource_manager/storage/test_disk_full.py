"""Tests a full disk: a clear error, nothing lost, and recovery when there is space again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.errors import Reason, StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import schema
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.support.books import job
from tests.support.stores import inside

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "finegrain-test", str(folder)], check=True
    )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_up(store: Store) -> int:
    """Commits until a commit fails; returns the number of acknowledged commits."""
    for number in range(10_000):
        try:
            store.commit(Changes([job(f"job-{number}", name="x" * 200)]))
        except StoreError as error:
            if error.reason is not Reason.DISK_FULL:
                raise
            return number
    raise AssertionError("the disk never got full")


@pytest.mark.needs("root")
def test_a_full_disk_loses_nothing_acknowledged(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 400_000)
    with open_store(f"sqlite:///{small_disk}/books.db") as store:
        store.lead("first")
        acknowledged = fill_up(store)
        assert acknowledged
        assert len(store.load().jobs) == acknowledged
        ballast.unlink()
        store.lead("first")
        store.commit(Changes([job("afterwards")]))
        assert len(store.load().jobs) == acknowledged + 1
    with open_store(f"sqlite:///{small_disk}/books.db") as store:
        assert len(store.load().jobs) == acknowledged + 1


@pytest.mark.needs("root")
def test_a_database_that_does_not_fit_is_not_half_made(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"\0" * 1_000_000)
    with pytest.raises(StoreError) as caught:
        open_store(f"sqlite:///{small_disk}/books.db")
    assert caught.value.reason is Reason.DISK_FULL
    assert {each.name for each in small_disk.iterdir()} <= {"ballast", "books.db.lock"}


@pytest.mark.needs("root")
def test_a_backup_that_does_not_fit_leaves_the_older_one(small_disk: Path, sqlite_url: str) -> None:
    with open_store(sqlite_url) as store:
        schema.backup(sqlite_url, small_disk / "backup.db")
        before = (small_disk / "backup.db").read_bytes()
        store.lead("first")
        store.commit(Changes([job(name="x" * 2_000_000)]))
        with pytest.raises(StoreError) as caught:
            schema.backup(sqlite_url, small_disk / "backup.db")
    assert caught.value.reason is Reason.DISK_FULL
    assert [each.name for each in small_disk.iterdir()] == ["backup.db"]
    assert (small_disk / "backup.db").read_bytes() == before


def test_a_database_at_its_largest_size_says_so_and_goes_on(sqlite_url: str) -> None:
    """The answer of SQLite to a full disk, on any machine."""
    with open_store(sqlite_url) as store:
        store.lead("first")
        with inside(store)._writing() as connection:
            connection.execute("PRAGMA max_page_count = 60")
        acknowledged = fill_up(store)
        assert len(store.load().jobs) == acknowledged
        with inside(store)._writing() as connection:
            connection.execute("PRAGMA max_page_count = 6000")
        store.commit(Changes([job("afterwards")]))
        assert len(store.load().jobs) == acknowledged + 1


FAILING_DISK = """
import resource, sys
from finegrain.errors import StoreError
from resource_manager.engine.model.effects import Changes
from resource_manager.storage.opening import open_store
from tests.support.books import job

store = open_store(sys.argv[1])
store.lead("first")
# Writes beyond this size fail with an error that is none of "no space left".
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
number = 0
try:
    while True:
        store.commit(Changes([job(f"job-{number}")]))
        number += 1
except StoreError as error:
    print(number, error.details["sqlite_error"])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
for use in (lambda: store.commit(Changes([job("again")])), lambda: store.lead("first"), store.load):
    try:
        use()
    except StoreError as error:
        print("restart this process" in error.message)
"""


def test_a_disk_that_failed_once_is_not_written_again_by_the_same_process(sqlite_url: str) -> None:
    """After a failed write or sync the kernel's copy of the file proves nothing."""
    told = subprocess.run(
        [sys.executable, "-c", FAILING_DISK, sqlite_url],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    acknowledged, error, *refused = told.stdout.split()
    assert error.startswith("SQLITE_IOERR"), told.stderr
    assert refused == ["True"] * 3
    with open_store(sqlite_url) as store:
        assert len(store.load().jobs) in {int(acknowledged), int(acknowledged) + 1}
        assert len(store.load().jobs) > 10
