"""How far the end of a job has come; `jobs/lifecycle.py` does the steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """Progress of a job that ends. A job with very many requests ends in several steps.

    Attributes:
        grace_ms: time that its slots have to stop; None: the default.
        dequeued: number of its arrivals that were removed from the queue.
        parts: number of parts of its ranges whose members were removed from the queue.
        given_up: number of its arrivals that have ended.
        parts_ended: number of parts of its ranges whose members have ended.
    """

    grace_ms: int | None = None
    dequeued: int = 0
    parts: int = 0
    given_up: int = 0
    parts_ended: int = 0
