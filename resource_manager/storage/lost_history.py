# ruff: noqa: S608  (only constants are put together)
"""Raises counters after a restore. So no number is used twice.

After a copy of the database was made, more numbers were used. These are sequence numbers of events
that job masters have received, and generations of slots that executors still have. The copy does
not contain these numbers. This module skips them. The caller raises the epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from resource_manager.engine.model.changes import GENERATION_FLOOR

SEQUENCE_STEP = 1 << 32
"""Number of events to skip. A job writes fewer events between a backup and its restore."""

GENERATION_STEP = 1_000_000
"""With --all-users, users that were allowed by name can still use the group."""

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
    """Raises event sequences and generations above all numbers that were used after the backup.

    A job master that continues its stream receives OUT_OF_RANGE, and starts again with a snapshot.
    The resource manager does not know a slot that was placed after the backup. The executor frees
    such a slot, and no new slot gets the same generation.

    Args:
        execute: runs one statement in a transaction that the caller commits.
    """
    execute(_SKIP_EVENTS)
    execute("DELETE FROM job_events")
    execute(_SKIP_GENERATIONS)
