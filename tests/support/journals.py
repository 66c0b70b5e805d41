"""Reads the records of a task in the journals of a helper's supervisors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from task_executor.helper.journal import Journal, journal_names
from task_executor.helper.paths import is_alive


def record_of(helper_state: Path, task_id: str) -> dict[str, Any] | None:
    """Returns the records of a task in the latest journal, as one dictionary; `exit` is the record
    of its end.
    """
    folder = helper_state / "supervisors"
    journals = [Journal(folder, name) for name in journal_names(folder)]
    owned = [each for each in journals if each.owner]
    owned.sort(key=lambda each: (is_alive(each.owner), each.owner["start_ticks"]))
    for journal in reversed(owned):
        if entry := journal.entries.get(task_id):
            supervisor = {"shim_pid": journal.owner["pid"], "exit": entry.get("end")}
            known: dict[str, Any] = entry["start"] | entry.get("process", {}) | supervisor
            return known
    return None


def has_ended(helper_state: Path, task_id: str) -> bool:
    """True if the end of the task is recorded."""
    record = record_of(helper_state, task_id)
    return record is not None and record["exit"] is not None
