"""The progress of ending a job; `jobs/lifecycle.py` does the work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """The progress of ending one job. A job with very many requests ends in several steps.

    Attributes:
        grace_ms: how long the tasks in its slots have to end; None: the default.
        given_up: number of entries of `Job.arrivals`, from the first, whose requests have ended.
        parts_ended: number of parts of its ranges whose members have ended.
    """

    grace_ms: int | None = None
    given_up: int = 0
    parts_ended: int = 0
