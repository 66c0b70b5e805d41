"""Defines the tables of a batch's state file, and converts their rows to values."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from finegrain.mapping.rows import RowCodec, Text
from finegrain_client.batch.values import ThreadResult

APPLICATION_ID = 0x66674261
"""SQLite's application id, by which the state file of a batch differs from other SQLite files."""

SCHEMA_VERSION = 2
OLDEST_VERSION = 1
"""Oldest version that can be read. A runner upgrades a file that is older than `SCHEMA_VERSION`."""
UPGRADE_FROM_1 = "alter table jobs drop column secret"
"""Upgrade from version 1: a job no longer has a secret, because it has an owner."""

TABLES = """
create table meta (key text primary key, value text not null) without rowid;
create table jobs (
    number integer primary key,
    job_id text not null,
    range_id text not null,
    ended integer not null default 0
);
create table asked (
    job integer not null references jobs,
    first_index integer not null,
    count integer not null,
    taken_in integer not null default 0, -- runners of version 0.2 write this column
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

RESULTS = RowCodec(
    ThreadResult,
    tuple(RESULT_COLUMNS.split(", ")),
    texts={datetime: Text(datetime.timestamp, partial(datetime.fromtimestamp, tz=UTC))},
    exceptions={"thread": "index"},
)
"""Conversion of results to and from rows of their table."""
