"""The progress of ending a job; `jobs/lifecycle.py` ends the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """The progress of ending one job. A job with very many requests ends in several steps.

    Attributes:
        grace_ms: the time that tasks in the job's slots have until they must end; None means the
            executor's default.
        given_up: number of entries of `Job.arrivals`, from the first, whose requests have ended.
        parts_ended: number of parts of the job's ranges whose members have ended.
    """

    grace_ms: int | None = None
    given_up: int = 0
    parts_ended: int = 0
