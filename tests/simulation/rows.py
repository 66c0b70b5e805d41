"""Everything that is durable: rows as the real stores encode them, written whole or not at all.

A write answers with what is wrong with it: a request that changed its place in line, an event log
with a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from resource_manager.engine.model.counter_names import GENERATION_FLOOR
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import JobEvent
from resource_manager.storage.codecs import MoveCodec
from resource_manager.storage.fair_rows import GROUPS, RANGES, TALLIES
from resource_manager.storage.host_rows import HOST_SETTINGS
from resource_manager.storage.lost_history import GENERATION_STEP, SEQUENCE_STEP
from resource_manager.storage.rows import (
    EXECUTORS,
    GANGS,
    JOBS,
    PROVISIONS,
    REQUEST_MOVES,
    REQUESTS,
    SLOT_MOVES,
    SLOTS,
)

Row = tuple[Any, ...]


@dataclass
class Log:
    """A job's events; those up to `trimmed` are no longer kept."""

    events: list[JobEvent] = field(default_factory=list)
    trimmed: int = 0

    @property
    def last(self) -> int:
        """Number of the newest event."""
        return self.events[-1].sequence if self.events else self.trimmed

    def after(self, sequence: int) -> list[JobEvent]:
        """Events that follow."""
        first = self.last - len(self.events) + 1
        return self.events[max(0, sequence + 1 - first) :]


@dataclass
class Rows:
    """The tables."""

    jobs: dict[str, Row] = field(default_factory=dict)
    requests: dict[str, Row] = field(default_factory=dict)
    slots: dict[tuple[str, int], Row] = field(default_factory=dict)
    executors: dict[str, Row] = field(default_factory=dict)
    gangs: dict[str, Row] = field(default_factory=dict)
    provisions: dict[str, Row] = field(default_factory=dict)
    ranges: dict[tuple[str, int], Row] = field(default_factory=dict)
    groups: dict[str, Row] = field(default_factory=dict)
    tallies: dict[str, Row] = field(default_factory=dict)
    host_settings: dict[str, Row] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    arrivals: dict[str, int] = field(default_factory=dict)  # of every request that is stored
    requests_of: dict[str, set[str]] = field(default_factory=dict)  # of every job

    def copy(self) -> Rows:
        """A backup."""
        return Rows(
            dict(self.jobs),
            dict(self.requests),
            dict(self.slots),
            dict(self.executors),
            dict(self.gangs),
            dict(self.provisions),
            dict(self.ranges),
            dict(self.groups),
            dict(self.tallies),
            dict(self.host_settings),
            dict(self.counters),
            {name: Log(list(log.events), log.trimmed) for name, log in self.logs.items()},
            dict(self.arrivals),
            {job_id: set(names) for job_id, names in self.requests_of.items()},
        )

    def has(self, allocation_id: str) -> bool:
        """Whether a request is known, be it a member of a range without a row of its own."""
        if allocation_id in self.requests:
            return True
        range_id, _, index = allocation_id.rpartition(".")
        return index.isdecimal() and any(
            name == range_id and first <= int(index) < first + row[2]
            for (name, first), row in self.ranges.items()
        )

    def leave_lost_history(self) -> None:
        """What `finegrain db restore` does so that no number names two things; see
        `resource_manager/storage/lost_history.py`.
        """
        for job_id, row in list(self.jobs.items()):
            job = JOBS.decode(row)
            job.last_sequence += SEQUENCE_STEP
            job.trimmed_sequence = job.last_sequence
            self.jobs[job_id] = JOBS.encode(job)
            self.logs[job_id] = Log([], job.last_sequence)
        highest = max(
            (REQUESTS.decode(row).generation for row in self.requests.values()), default=0
        )
        floor = max(self.counters.get(GENERATION_FLOOR, 0), highest)
        self.counters[GENERATION_FLOOR] = floor + GENERATION_STEP

    @staticmethod
    def write_of(changes: Changes) -> Callable[[Rows], list[str]]:
        """A transaction that writes the rows as they are now."""
        jobs = {job.job_id: JOBS.encode(job) for job in changes.jobs}
        requests = {each.allocation_id: REQUESTS.encode(each) for each in changes.requests}
        owners = [(each.job_id, each.allocation_id) for each in changes.requests]
        slots = {(s.allocation_id, s.generation): SLOTS.encode(s) for s in changes.slots}
        executors = {each.executor_id: EXECUTORS.encode(each) for each in changes.executors}
        gangs = {each.gang_id: GANGS.encode(each) for each in changes.gangs}
        provisions = {each.executor_id: PROVISIONS.encode(each) for each in changes.provisions}
        ranges = {
            (each.spec.range_id, each.spec.first_index): RANGES.encode(each)
            for each in changes.ranges
        }
        groups = {each.name: GROUPS.encode(each) for each in changes.groups}
        tallies = {each.flow_id: TALLIES.encode(each) for each in changes.tallies}
        settings = {each.executor_id: HOST_SETTINGS.encode(each) for each in changes.host_settings}
        arrivals = {
            each.allocation_id: each.arrival_number
            for each in (*changes.requests, *changes.moved_requests)
        }
        moves = [REQUEST_MOVES.encode(each) for each in changes.moved_requests]
        slot_moves = [SLOT_MOVES.encode(each) for each in changes.moved_slots]

        def write(rows: Rows) -> list[str]:
            rows._delete(changes)
            rows.jobs.update(jobs)
            rows.requests.update(requests)
            wrong = [
                *_move(rows.requests, REQUEST_MOVES, moves),
                *_move(rows.slots, SLOT_MOVES, slot_moves),
            ]
            for job_id, name in owners:
                rows.requests_of.setdefault(job_id, set()).add(name)
            rows.slots.update(slots)
            rows.executors.update(executors)
            rows.gangs.update(gangs)
            rows.provisions.update(provisions)
            rows.ranges.update(ranges)
            rows.groups.update(groups)
            rows.tallies.update(tallies)
            rows.host_settings.update(settings)
            rows.counters.update(changes.counters)
            return [*wrong, *rows._in_line(arrivals), *rows._log(changes)]

        return write

    def _delete(self, changes: Changes) -> None:
        for name in changes.deleted_requests:
            if (request := self.requests.pop(name, None)) is not None:
                del self.arrivals[name]
                self.requests_of[request[1]].discard(name)
        for key in changes.deleted_slots:
            self.slots.pop(key, None)
        for executor_id in changes.deleted_executors:
            self.executors.pop(executor_id, None)
        for gang_id in changes.deleted_gangs:
            self.gangs.pop(gang_id, None)
        for executor_id in changes.deleted_provisions:
            self.provisions.pop(executor_id, None)
        for part in changes.deleted_ranges:
            self.ranges.pop(part, None)
        for group in changes.deleted_groups:
            self.groups.pop(group, None)
        for flow_id in changes.deleted_tallies:
            self.tallies.pop(flow_id, None)
        for executor_id in changes.deleted_host_settings:
            self.host_settings.pop(executor_id, None)
        for job_id in changes.deleted_jobs:
            self._delete_job(job_id)

    def _delete_job(self, job_id: str) -> None:
        self.jobs.pop(job_id, None)
        for gang_id in [name for name, row in self.gangs.items() if row[1] == job_id]:
            del self.gangs[gang_id]
        for part in [key for key, row in self.ranges.items() if row[3] == job_id]:
            del self.ranges[part]
        self.logs.pop(job_id, None)
        for name in self.requests_of.pop(job_id, ()):
            del self.requests[name], self.arrivals[name]

    def _in_line(self, arrivals: dict[str, int]) -> list[str]:
        moved = [k for k, place in arrivals.items() if self.arrivals.get(k, place) != place]
        self.arrivals.update(arrivals)
        return [f"request {name} changed its place in line" for name in moved]

    def _log(self, changes: Changes) -> list[str]:
        wrong = []
        for event in changes.job_events:
            log = self.logs.setdefault(event.job_id, Log())
            if event.sequence != log.last + 1:
                wrong.append(f"log of {event.job_id} goes from {log.last} to {event.sequence}")
            log.events.append(event)
        for job_id, sequence in changes.trimmed_job_events:
            log = self.logs.setdefault(job_id, Log())
            log.events = [each for each in log.events if each.sequence > sequence]
            log.trimmed = max(log.trimmed, sequence)
        return wrong


def _move(table: dict[Any, Row], codec: MoveCodec[Any], moves: list[Row]) -> list[str]:
    """Writes where things stand now; what has moved was stored before."""
    places = [list(codec.table.columns.keys()).index(name) for name in codec.changed]
    keys = len(codec.key)
    wrong = []
    for move in moves:
        key = move[0] if keys == 1 else move[:keys]
        known = table.get(key)
        if known is None:
            wrong.append(f"{key} has moved, and is not stored")
            continue
        row = list(known)
        for place, value in zip(places, move[keys:], strict=True):
            row[place] = value
        table[key] = tuple(row)
    return wrong
