# ruff: noqa: S608  (only constants are put together)
"""Raises counters after a restore, so that no number names two different things.

An older copy of the database does not know what was used after it was made: events that job masters
have received, and generations of slots that executors still have. Both must be skipped. (The epoch,
by which executors order all messages, is raised by the caller.)
"""

from __future__ import annotations

from collections.abc import Callable

from resource_manager.engine.model.changes import GENERATION_FLOOR

SEQUENCE_STEP = 1 << 32
"""More events than one job writes between a backup and its restore."""

GENERATION_STEP = 1_000_000
"""More generations than one request uses in that time."""

_SKIP_EVENTS = f"""
    UPDATE jobs SET last_sequence = last_sequence + {SEQUENCE_STEP},
        trimmed_sequence = last_sequence + {SEQUENCE_STEP}
    """

_SKIP_GENERATIONS = f"""
    INSERT INTO counters (name, value)
    SELECT '{GENERATION_FLOOR}', {GENERATION_STEP} + max(floor) FROM (
        SELECT 0 AS floor
        UNION ALL SELECT max(generation) FROM requests
        UNION ALL SELECT max(generation) FROM slots
        UNION ALL SELECT value FROM counters WHERE name = '{GENERATION_FLOOR}'
    ) AS floors WHERE true
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
    """


def leave_lost_history(execute: Callable[[str], object]) -> None:
    """Raises event sequences and generations above what the lost newer copy may have used.

    A job master that resumes its stream receives OUT_OF_RANGE and begins again with a snapshot. A
    slot that this database does not know is freed, and is never mistaken for one that it knows.

    Args:
        execute: runs one statement in a transaction that the caller commits.
    """
    execute(_SKIP_EVENTS)
    execute("DELETE FROM job_events")
    execute(_SKIP_GENERATIONS)
