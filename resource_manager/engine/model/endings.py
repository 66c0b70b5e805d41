"""How far the end of a job has come; `jobs/lifecycle.py` does the steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """Progress of a job that ends. A job with very many requests ends in several steps.

    Attributes:
        grace_ms: time that its slots have to stop; None: the default.
        given_up: number of its arrivals that have ended.
        parts_ended: number of parts of its ranges whose members have ended.
    """

    grace_ms: int | None = None
    given_up: int = 0
    parts_ended: int = 0
