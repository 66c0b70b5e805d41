"""Tests of the journal of tasks: what it keeps, what it survives, and how it stays short."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_executor.service import task_journal
from task_executor.service.task_journal import TaskJournal
from tests.support.disk_calls import DiskCalls, Synced

Steps = list[tuple[str, int]]


def opened(folder: Path) -> TaskJournal:
    return TaskJournal(folder, lambda _path: None)


def content(number: int) -> dict[str, Any]:
    return {"task_id": f"t{number}", "argv": ["true\n", "é"]}


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_line_of_a_task_counts(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.put("t1", content(1))
    journal.put("t2", content(2))
    journal.put("t1", content(1) | {"cancelled": True})
    journal.forget("t2")
    journal.forget("never there")
    assert opened(tmp_path).saved() == {"t1": content(1) | {"cancelled": True}}


@given(st.lists(st.tuples(st.sampled_from(["put", "forget", "sync", "open"]), st.integers(0, 9))))
def test_the_journal_keeps_exactly_the_tasks_that_are_not_forgotten(
    tmp_path_factory: pytest.TempPathFactory, steps: Steps
) -> None:
    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_journal, "LENGTH_BYTES_MAX", 300)
        journal, expected = opened(folder), dict[str, int]()
        for version, (step, number) in enumerate(steps):
            task_id = f"t{number}"
            if step == "put":
                journal.put(task_id, content(number) | {"version": version})
                expected[task_id] = version
            elif step == "forget":
                journal.forget(task_id)
                expected.pop(task_id, None)
            elif step == "sync":
                journal.prepare_sync()()
            else:
                journal.close()
                journal = opened(folder)
                assert {name: each["version"] for name, each in journal.saved().items()} == expected
        journal.close()
    assert {name: each["version"] for name, each in opened(folder).saved().items()} == expected


def test_a_long_journal_loses_the_lines_of_forgotten_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_journal, "LENGTH_BYTES_MAX", 1_000)
    journal = opened(tmp_path)
    for number in range(1_000):
        journal.put(f"t{number}", content(number))
        if number >= 5:
            journal.forget(f"t{number}")
        journal.prepare_sync()()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3_000
    assert opened(tmp_path).saved() == {f"t{number}": content(number) for number in range(5)}


def test_lines_that_are_written_during_a_copy_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_journal, "LENGTH_BYTES_MAX", 0)
    journal = opened(tmp_path)
    for number in (1, 2, 3, 4):
        journal.put(f"t{number}", content(number))
    for number in (1, 2, 3):
        journal.put(f"t{number}", content(number) | {"again": 1})
    journal.forget("t1")
    journal.forget("t2")
    sync = journal.prepare_sync()
    journal.forget("t3")
    journal.put("t5", content(5))
    sync()
    assert segments(tmp_path) == ["2.journal", "3.journal"]
    assert opened(tmp_path).saved() == {"t4": content(4), "t5": content(5)}


def test_after_a_crash_during_a_copy_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_journal, "LENGTH_BYTES_MAX", 0)
    journal = opened(tmp_path)
    for number in (1, 2, 3):
        journal.put(f"t{number}", content(number))
    journal.forget("t1")
    journal.forget("t2")

    def killed(_self: Path, *, missing_ok: bool) -> None:
        raise OSError("killed before it removed the old segment")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        journal.prepare_sync()()
    assert segments(tmp_path) == ["1.journal", "2.journal", "3.journal"]
    assert opened(tmp_path).saved() == {"t3": content(3)}


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_line_at_the_end_costs_only_itself(tmp_path: Path, cut: int) -> None:
    journal = opened(tmp_path)
    journal.put("t1", content(1))
    journal.put("t2", content(2))
    path = tmp_path / "1.journal"
    path.write_bytes(path.read_bytes()[:-cut])
    again = opened(tmp_path)
    assert again.saved() == {"t1": content(1)}
    assert not again.damage
    # The next line goes to another segment, and not behind the incomplete line.
    again.put("t3", content(3))
    assert opened(tmp_path).saved() == {"t1": content(1), "t3": content(3)}


def test_a_changed_line_is_reported(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.put("t1", content(1))
    journal.put("t2", content(2))
    path = tmp_path / "1.journal"
    path.write_bytes(path.read_bytes().replace(b'"t1"', b'"tx"', 1))
    again = opened(tmp_path)
    assert again.saved() == {"t2": content(2)}
    assert again.damage == ["1.journal has 1 lines that cannot be read"]


def test_a_sync_makes_the_lines_and_the_name_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    disk = DiskCalls(monkeypatch)
    journal.put("t1", content(1))
    journal.prepare_sync()()
    path = tmp_path / "1.journal"
    assert disk.calls == [Synced(path, path.read_bytes()), Synced(tmp_path, None)]
    disk.calls.clear()
    journal.put("t2", content(2))
    journal.prepare_sync()()
    assert disk.calls == [Synced(path, path.read_bytes())]


def test_old_segments_are_removed_only_when_the_copy_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_journal, "LENGTH_BYTES_MAX", 0)
    journal = opened(tmp_path)
    journal.put("t1", content(1))
    journal.put("t2", content(2))
    journal.put("t3", content(3))
    journal.forget("t1")
    journal.forget("t2")
    removed = list[tuple[str, bool]]()
    disk = DiskCalls(monkeypatch)
    unlink = Path.unlink

    def noting(path: Path, missing_ok: bool = False) -> None:
        durable = any(
            isinstance(call, Synced) and call.path.name == "2.journal" and call.content
            for call in disk.calls
        )
        removed.append((path.name, durable and disk.calls[-1] == Synced(tmp_path, None)))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noting)
    journal.prepare_sync()()
    assert removed == [("1.journal", True)]


def test_after_a_failed_sync_everything_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.put("t1", content(1))

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            journal.prepare_sync()()
    # The kernel reports the error of a lost write once; a further sync of the same file would
    # succeed.
    disk = DiskCalls(monkeypatch)
    journal.prepare_sync()()
    fresh = next(
        call.content for call in disk.calls if isinstance(call, Synced) and "2." in call.path.name
    )
    assert fresh is not None
    assert b'"t1"' in fresh


def test_a_line_that_does_not_fit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.put("t1", content(1))
    write = os.pwrite
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:20], at))
        with pytest.raises(OSError, match="No space left"):
            journal.put("t2", content(2))
    journal.put("t3", content(3))
    assert opened(tmp_path).saved() == {"t1": content(1), "t3": content(3)}


def test_the_files_of_an_earlier_version_are_taken_over(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"t{number}.json").write_text(str(number))
    (tmp_path / "bad.json").write_text("torn")

    def read(path: Path) -> dict[str, Any] | None:
        text = path.read_text()
        return content(int(text)) if text.isdigit() else None

    journal = TaskJournal(tmp_path, read)
    assert journal.saved() == {"t1": content(1), "t2": content(2)}
    # After a crash at this moment, the files are read again, but newer lines count.
    journal.put("t1", content(1) | {"cancelled": True})
    journal.close()
    journal = TaskJournal(tmp_path, read)
    assert journal.saved() == {"t1": content(1) | {"cancelled": True}, "t2": content(2)}
    journal.prepare_sync()()
    assert not list(tmp_path.glob("t*.json"))
    assert (tmp_path / "bad.json").exists()
    assert opened(tmp_path).saved() == {"t1": content(1) | {"cancelled": True}, "t2": content(2)}
