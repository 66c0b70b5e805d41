"""The tables of a batch's state file, and how its rows become values.

Decides what is kept of a batch. Refuses to know who writes it when.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from finegrain_client.batch.values import ThreadResult, ThreadState

APPLICATION_ID = 0x66674261
"""Tells the state file of a batch from other SQLite files."""

SCHEMA_VERSION = 1

TABLES = """
create table meta (key text primary key, value text not null) without rowid;
create table jobs (
    number integer primary key,
    job_id text not null,
    secret text not null,
    range_id text not null,
    ended integer not null default 0
);
create table asked (
    job integer not null references jobs,
    first_index integer not null,
    count integer not null,
    taken_in integer not null default 0,
    primary key (job, first_index)
) without rowid;
create table attempts (
    thread integer not null,
    attempt integer not null,
    job integer not null,
    allocation_id text not null,
    generation integer not null,
    executor_id text not null,
    start_time real not null,
    outcome text not null default '',
    message text not null default '',
    primary key (thread, attempt)
) without rowid;
create index open_attempts on attempts (outcome) where outcome = '';
create table results (
    thread integer primary key,
    state text not null,
    attempts integer not null,
    attempt integer not null,
    exit_code integer not null,
    signal integer not null,
    oom_killed integer not null,
    timed_out integer not null,
    reason text not null,
    message text not null,
    executor_id text not null,
    start_time real,
    end_time real,
    duration_s real not null,
    cpu_time_s real not null,
    peak_memory_bytes integer not null,
    stdout_bytes integer not null,
    stderr_bytes integer not null,
    dropped_bytes integer not null,
    stdout_tail blob not null,
    stderr_tail blob not null
);
create index failed_results on results (state) where state = 'FAILED';
"""

RESULT_COLUMNS = (
    "thread, state, attempts, attempt, exit_code, signal, oom_killed, timed_out, reason, message, "
    "executor_id, start_time, end_time, duration_s, cpu_time_s, peak_memory_bytes, stdout_bytes, "
    "stderr_bytes, dropped_bytes, stdout_tail, stderr_tail"
)


def result_row(result: ThreadResult) -> tuple[object, ...]:
    """The row of a result, in the order of `RESULT_COLUMNS`."""
    return (
        result.index,
        result.state.value,
        result.attempts,
        result.attempt,
        result.exit_code,
        result.signal,
        int(result.oom_killed),
        int(result.timed_out),
        result.reason,
        result.message,
        result.executor_id,
        result.start_time.timestamp() if result.start_time else None,
        result.end_time.timestamp() if result.end_time else None,
        result.duration_s,
        result.cpu_time_s,
        result.peak_memory_bytes,
        result.stdout_bytes,
        result.stderr_bytes,
        result.dropped_bytes,
        result.stdout_tail,
        result.stderr_tail,
    )


def result_of(row: sqlite3.Row) -> ThreadResult:
    """The result in a row."""
    return ThreadResult(
        index=row["thread"],
        state=ThreadState(row["state"]),
        attempts=row["attempts"],
        attempt=row["attempt"],
        exit_code=row["exit_code"],
        signal=row["signal"],
        oom_killed=bool(row["oom_killed"]),
        timed_out=bool(row["timed_out"]),
        reason=row["reason"],
        message=row["message"],
        executor_id=row["executor_id"],
        start_time=moment(row["start_time"]),
        end_time=moment(row["end_time"]),
        duration_s=row["duration_s"],
        cpu_time_s=row["cpu_time_s"],
        peak_memory_bytes=row["peak_memory_bytes"],
        stdout_bytes=row["stdout_bytes"],
        stderr_bytes=row["stderr_bytes"],
        dropped_bytes=row["dropped_bytes"],
        stdout_tail=bytes(row["stdout_tail"]),
        stderr_tail=bytes(row["stderr_tail"]),
    )


def moment(seconds: float | None) -> datetime | None:
    """The time of a row."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
