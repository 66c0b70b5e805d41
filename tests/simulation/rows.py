"""All rows on disk. They are in the store's own tables in memory, and transactions are atomic.

A write returns the problems that it finds: a request whose arrival number changed, a gap in an
event log, or rows that contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from finegrain.errors import InvariantBroken
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import JobEvent
from resource_manager.storage import memory_store, tables
from resource_manager.storage.memory_store import STATEMENTS
from resource_manager.storage.memory_tables import MemoryTables
from resource_manager.storage.prepared import PreparedChanges
from resource_manager.storage.rows import JOB_EVENTS, JOBS


class Rows(MemoryTables):
    """The tables.

    Attributes:
        arrivals: arrival number of every request that was stored and not deleted individually.
        last_events: number of the newest event of each job, stored or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: dict[str, int] = {}
        self.last_events: dict[str, int] = {}

    def copy(self) -> Self:
        """Returns a copy, as a backup."""
        found = super().copy()
        found.arrivals, found.last_events = dict(self.arrivals), dict(self.last_events)
        return found

    def has(self, allocation_id: str) -> bool:
        """Returns whether a request is known, even a member of a range without a separate row."""
        if self.row(tables.requests, (allocation_id,)) is not None:
            return True
        range_id, _, index = allocation_id.rpartition(".")
        return index.isdecimal() and any(
            name == range_id and first <= int(index) < first + row[2]
            for (name, first), row in self.keyed(tables.request_ranges).items()
        )

    def events_after(self, job_id: str, sequence: int) -> list[JobEvent]:
        """Returns the stored entries of a job's log after `sequence`."""
        rows = self.rows_of_job(tables.job_events, job_id)
        events = [JOB_EVENTS.decode(row) for row in rows if row[1] > sequence]
        return sorted(events, key=lambda each: each.sequence)

    def leave_lost_history(self) -> None:
        """Skips numbers in the same way as `finegrain db restore`. So no number means two
        things.
        """
        memory_store.leave_lost_history(self)
        jobs = [JOBS.decode(row) for row in self.rows(tables.jobs)]
        self.last_events = {job.job_id: job.last_sequence for job in jobs}

    @staticmethod
    def write_of(changes: Changes) -> Callable[[Rows], list[str]]:
        """Returns a function that writes the rows as they are now, in one transaction."""
        prepared = PreparedChanges(changes)
        arrivals = {
            each.allocation_id: each.arrival_number
            for each in (*changes.requests, *changes.moved_requests)
        }
        deleted, jobs = changes.deleted_requests, changes.deleted_jobs
        events = [(each.job_id, each.sequence) for each in changes.job_events]

        def write(rows: Rows) -> list[str]:
            for job_id in jobs:
                for row in rows.rows_of_job(tables.requests, job_id):
                    rows.arrivals.pop(row[0], None)
                rows.last_events.pop(job_id, None)
            for name in deleted:
                rows.arrivals.pop(name, None)
            try:
                with rows.transaction():
                    prepared.apply(rows, STATEMENTS)
            except InvariantBroken as error:
                return [error.message]
            return [*rows._in_line(arrivals), *rows._log(events)]

        return write

    def _in_line(self, arrivals: dict[str, int]) -> list[str]:
        moved = [k for k, place in arrivals.items() if self.arrivals.get(k, place) != place]
        self.arrivals.update(arrivals)
        return [f"request {name} changed its place in line" for name in moved]

    def _log(self, events: Iterable[tuple[str, int]]) -> list[str]:
        wrong = []
        for job_id, sequence in events:
            last = self.last_events.get(job_id, 0)
            if sequence != last + 1:
                wrong.append(f"log of {job_id} goes from {last} to {sequence}")
            self.last_events[job_id] = sequence
        return wrong
