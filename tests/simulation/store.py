"""A database in a dict: rows exactly as the real stores keep them, applied whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resource_manager.engine.effects import Changes, Snapshot
from resource_manager.engine.entities import JobEvent
from resource_manager.storage.rows import (
    EXECUTORS,
    JOBS,
    REQUEST_MOVES,
    REQUESTS,
    SLOT_MOVES,
    SLOTS,
    MoveCodec,
)

Row = tuple[Any, ...]


class DictStore:
    """What survives a resource manager."""

    def __init__(self) -> None:
        self.rm_epoch = 0
        self.jobs: dict[str, Row] = {}
        self.requests: dict[str, Row] = {}
        self.slots: dict[tuple[str, int], Row] = {}
        self.executors: dict[str, Row] = {}
        self.counters: dict[str, int] = {}
        self.job_events: dict[str, list[JobEvent]] = {}
        self.arrivals: dict[str, int] = {}  # of every request ever stored

    def commit_of(self, changes: Changes) -> Callable[[], list[str]]:
        """The transaction, with the rows as they are now. It answers with what is wrong with it."""
        jobs = {job.job_id: JOBS.encode(job) for job in changes.jobs}
        requests = {each.allocation_id: REQUESTS.encode(each) for each in changes.requests}
        slots = {(s.allocation_id, s.generation): SLOTS.encode(s) for s in changes.slots}
        executors = {each.executor_id: EXECUTORS.encode(each) for each in changes.executors}
        moved_requests = {r.allocation_id: REQUEST_MOVES.encode(r) for r in changes.moved_requests}
        moved_slots = {
            (s.allocation_id, s.generation): SLOT_MOVES.encode(s) for s in changes.moved_slots
        }
        arrivals = {each.allocation_id: each.arrival_number for each in changes.requests}

        def commit() -> list[str]:
            self._delete(changes)
            self.jobs.update(jobs)
            self.requests.update(requests)
            self.slots.update(slots)
            for allocation_id, now in moved_requests.items():
                self.requests[allocation_id] = _moved(
                    self.requests[allocation_id], REQUEST_MOVES, now
                )
            for key, now in moved_slots.items():
                self.slots[key] = _moved(self.slots[key], SLOT_MOVES, now)
            self.executors.update(executors)
            self.counters.update(changes.counters)
            return [*self._in_line(arrivals), *self._log(changes)]

        return commit

    def _delete(self, changes: Changes) -> None:
        for key in changes.deleted_slots:
            self.slots.pop(key, None)
        for executor_id in changes.deleted_executors:
            self.executors.pop(executor_id, None)
        for job_id in changes.deleted_jobs:
            self.jobs.pop(job_id, None)
            self.job_events.pop(job_id, None)
            gone = [k for k, row in self.requests.items() if REQUESTS.decode(row).job_id == job_id]
            for allocation_id in gone:
                del self.requests[allocation_id]
                self.arrivals.pop(allocation_id, None)

    def _in_line(self, arrivals: dict[str, int]) -> list[str]:
        moved = [k for k, place in arrivals.items() if self.arrivals.get(k, place) != place]
        self.arrivals.update(arrivals)
        return [f"request {name} changed its place in line" for name in moved]

    def _log(self, changes: Changes) -> list[str]:
        wrong = []
        for event in changes.job_events:
            log = self.job_events.setdefault(event.job_id, [])
            if event.sequence != (log[-1].sequence + 1 if log else 1):
                wrong.append(f"log of job {event.job_id} has a gap before {event.sequence}")
            log.append(event)
        return wrong

    def load(self) -> Snapshot:
        """What the next incarnation begins with, at a higher epoch."""
        self.rm_epoch += 1
        return Snapshot(
            rm_epoch=self.rm_epoch,
            jobs=[JOBS.decode(row) for row in self.jobs.values()],
            requests=[REQUESTS.decode(row) for row in self.requests.values()],
            slots=[SLOTS.decode(row) for row in self.slots.values()],
            executors=[EXECUTORS.decode(row) for row in self.executors.values()],
            counters=dict(self.counters),
        )


def _moved(row: Row, codec: MoveCodec[Any], now: Row) -> Row:
    """A row with the columns that a move writes."""
    written = dict(zip(codec.key + codec.changed, now, strict=True))
    columns = codec.table.columns.keys()
    return tuple(written.get(name, was) for name, was in zip(columns, row, strict=True))
