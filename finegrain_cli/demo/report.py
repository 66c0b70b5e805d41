"""Writes the output of the demo: progress line by line, and at the end a table of all tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from finegrain.units import format_bytes, format_cpu
from finegrain_cli.text.output import Column, say, table_lines
from finegrain_client import Slot, TaskResult


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one task that has ended, with the executor, the limits and the usage of the
    task.
    """

    what: str
    executor_id: str
    cpu_milli: int
    memory_bytes: int
    result: TaskResult

    @classmethod
    def of(cls, what: str, slot: Slot, result: TaskResult) -> Record:
        """Returns the record of a task that ended in `slot`."""
        return cls(what, slot.executor_id, slot.profile.cpu_milli, slot.memory_bytes, result)


@dataclass(slots=True)
class DemoLog:
    """Prints progress on standard error. Collects the records of tasks, and the descriptions of
    failed checks.
    """

    started_at: float = field(default_factory=time.monotonic)
    records: list[Record] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)

    def progress(self, text: str) -> None:
        """Prints one line of progress, with the seconds since the start."""
        say(f"[{time.monotonic() - self.started_at:5.1f} s] {text}")

    def record(self, what: str, slot: Slot, result: TaskResult) -> TaskResult:
        """Records a task that ended. Returns `result`."""
        self.records.append(Record.of(what, slot, result))
        return result

    def expect(self, condition: bool, what: str) -> None:
        """If `condition` is false, records `what` as a failed check."""
        if not condition:
            self.mismatches.append(what)
            self.progress(f"MISMATCH: {what}")


def report(records: Sequence[Record]) -> str:
    """Returns a table of all tasks with their executors, limits, usage and results."""
    columns = [
        Column("task", lambda each: each.what),
        Column("executor", lambda each: each.executor_id),
        Column("cpu", lambda each: format_cpu(each.cpu_milli), right=True),
        Column("memory", lambda each: format_bytes(each.memory_bytes), right=True),
        Column("peak", lambda each: _peak(each.result), right=True),
        Column("cpu time", lambda each: f"{each.result.cpu_time_s:.2f}s", right=True),
        Column("ended", lambda each: _ended(each.result)),
    ]
    return "\n".join(table_lines(columns, records))


def _peak(result: TaskResult) -> str:
    return format_bytes(result.peak_memory_bytes) if result.peak_memory_bytes else "unknown"


def _ended(result: TaskResult) -> str:
    if result.oom_killed:
        return "out of memory, killed"
    if result.signal:
        return f"signal {result.signal}"
    return "ok" if result.ok else f"exit code {result.exit_code}"
