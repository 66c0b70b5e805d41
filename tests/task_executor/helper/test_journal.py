"""The journal of a supervisor survives kills, power cuts and full disks, and stays short."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.journal import Journal, journal_names

OWNER = {"pid": 1, "start_ticks": 2, "boot_id": "boot"}


def owned(folder: Path) -> Journal:
    """Returns a journal as a supervisor writes it."""
    os.close(Journal.create(folder, "name", 0))
    journal = Journal(folder, "name")
    journal.own(OWNER)
    return journal


def read(folder: Path) -> Journal:
    return Journal(folder, "name")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def begin(journal: Journal, numbers: range) -> None:
    for number in numbers:
        journal.begin(f"task-{number}", {})


class Syncs:
    """Takes sync orders, and executes them later."""

    def __init__(self) -> None:
        self.orders: list[tuple[list[str], Callable[[bool], None]]] = []

    def sync(self, paths: list[str], done: Callable[[bool], None]) -> None:
        self.orders.append((paths, done))


def test_a_later_helper_reads_what_was_written(tmp_path: Path) -> None:
    journal = owned(tmp_path)
    for task_id in ("one", "two", "three"):
        journal.begin(task_id, {"argv": ["true"]})
    journal.add("one", "process", {"pid": 7})
    journal.add("one", "end", {"exit_code": 1})
    journal.add("one", "end", {"exit_code": 0, "stdout_dropped_bytes": 1})  # written once more
    journal.forget("three")
    found = read(tmp_path)
    assert found.owner == OWNER
    assert found.entries == {
        "one": {
            "start": {"argv": ["true"]},
            "process": {"pid": 7},
            "end": {"exit_code": 0, "stdout_dropped_bytes": 1},
        },
        "two": {"start": {"argv": ["true"]}},
    }


@pytest.mark.parametrize("damage", ["a line without its end", "zeros within a line", "zeros"])
def test_a_power_cut_costs_only_lines_that_were_not_synced(tmp_path: Path, damage: str) -> None:
    journal = owned(tmp_path)
    journal.begin("one", {})
    journal.add("one", "end", {"exit_code": 0})
    kept = journal._size
    journal.begin("two", {})
    (path,) = tmp_path.iterdir()
    with path.open("r+b") as file:
        if damage == "a line without its end":
            file.truncate(journal._size - 3)
        else:
            file.seek(kept + (5 if damage == "zeros within a line" else 0))
            file.write(bytes(20 if damage == "zeros within a line" else 200))
    found = read(tmp_path)
    assert list(found.entries) == ["one"]
    found.add("one", "end", {"exit_code": 5})  # and it can be continued
    assert read(tmp_path).entries["one"]["end"] == {"exit_code": 5}


def test_facts_of_a_task_whose_start_was_destroyed_are_ignored(tmp_path: Path) -> None:
    journal = owned(tmp_path)
    journal.add("one", "process", {"pid": 7})
    journal.begin("two", {})
    assert list(read(tmp_path).entries) == ["two"]


def test_the_end_of_every_running_task_fits_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = owned(tmp_path)
    begin(journal, range(40))

    def full(*_args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        begin(journal, range(40, 1000))
    begun = len(journal.entries)
    (path,) = tmp_path.iterdir()
    reserved = path.stat().st_size
    for task_id in list(journal.entries):
        journal.add(task_id, "end", {"error": "x" * 3000})
    assert path.stat().st_size == reserved
    assert len(read(tmp_path).entries) == begun


def fill(journal: Journal, *, kept: str) -> None:
    """Writes more than fits in one segment; only one task is still needed."""
    journal.begin(kept, {"argv": ["sleep"]})
    journal.add(kept, "process", {"pid": 7})
    for number in range(300):
        journal.begin(f"task-{number}", {"argv": ["x" * 4096]})
        journal.add(f"task-{number}", "end", {"exit_code": 0})
        journal.forget(f"task-{number}")


def test_a_long_journal_continues_in_a_short_segment(tmp_path: Path) -> None:
    journal, syncs = owned(tmp_path), Syncs()
    fill(journal, kept="task")
    journal.compact(syncs.sync)
    journal.add("task", "end", {"exit_code": 3})
    # The old segment is removed only when the new segment and its name are durable.
    assert files(tmp_path) == ["name.0.journal", "name.1.journal"]
    ((paths, done),) = syncs.orders
    assert paths == [str(tmp_path / "name.1.journal"), str(tmp_path)]
    both = read(tmp_path).entries
    done(True)
    assert files(tmp_path) == ["name.1.journal"]
    found = read(tmp_path)
    assert (
        found.entries
        == both
        == {"task": {"start": {"argv": ["sleep"]}, "process": {"pid": 7}, "end": {"exit_code": 3}}}
    )
    assert found.owner == OWNER
    assert (tmp_path / "name.1.journal").stat().st_size < 200_000
    fill(journal, kept="other")
    journal.compact(syncs.sync)
    assert files(tmp_path) == ["name.1.journal", "name.2.journal"]


def test_a_segment_that_could_not_be_synced_does_not_replace_the_old_one(tmp_path: Path) -> None:
    journal, syncs = owned(tmp_path), Syncs()
    fill(journal, kept="task")
    journal.compact(syncs.sync)
    syncs.orders[0][1](False)
    assert files(tmp_path) == ["name.0.journal", "name.1.journal"]
    assert list(read(tmp_path).entries) == ["task"]


def test_on_a_full_disk_a_journal_stays_in_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, syncs = owned(tmp_path), Syncs()
    fill(journal, kept="task")

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        journal.compact(syncs.sync)
    assert (files(tmp_path), syncs.orders) == (["name.0.journal"], [])
    journal.add("task", "end", {"exit_code": 3})
    assert read(tmp_path).entries["task"]["end"] == {"exit_code": 3}


def test_a_short_journal_is_not_compacted(tmp_path: Path) -> None:
    journal, syncs = owned(tmp_path), Syncs()
    journal.begin("task", {})
    journal.compact(syncs.sync)
    assert (files(tmp_path), syncs.orders) == (["name.0.journal"], [])


def test_after_the_supervisor_the_helper_forgets_the_last_task_and_the_file_goes(
    tmp_path: Path,
) -> None:
    journal = owned(tmp_path)
    for task_id in ("one", "two"):
        journal.begin(task_id, {})
    taken = read(tmp_path)
    taken.forget("one")
    assert list(read(tmp_path).entries) == ["two"]
    taken.forget("two")
    assert journal_names(tmp_path) == []


def test_a_journal_without_an_owner_is_abandoned_when_its_supervisor_has_ended(
    tmp_path: Path,
) -> None:
    lock = Journal.create(tmp_path, "name", 0)
    assert not read(tmp_path).is_abandoned()
    os.close(lock)
    assert read(tmp_path).is_abandoned()
