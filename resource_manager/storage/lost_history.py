# ruff: noqa: S608  (only constants are put together)
"""Older books in the place of newer ones: no number of theirs may name two things.

Decides what has to skip what was used after the copy was made and is lost with it: the events that
job masters have heard, and the placements that executors still hold. (What executors order all
messages by, the epoch, is raised beside this.) Refuses to know how books are copied.
"""

from __future__ import annotations

from collections.abc import Callable

from resource_manager.engine.model.numbers import GENERATION_FLOOR

SEQUENCE_STEP = 1 << 32
"""More events than one job writes between a backup and its restore."""

GENERATION_STEP = 1_000_000
"""More placements than one request has in that time."""

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
    """Makes restored books go on beyond what those that they replace may have told.

    A job master that resumes its stream is told OUT_OF_RANGE, and begins anew with a snapshot; a
    slot that these books do not know is freed, and never taken for one of theirs.

    Args:
        execute: runs one statement in a transaction that the caller commits.
    """
    execute(_SKIP_EVENTS)
    execute("DELETE FROM job_events")
    execute(_SKIP_GENERATIONS)
