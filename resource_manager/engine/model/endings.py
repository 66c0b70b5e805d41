"""How far ending jobs have come. Knows positions; `jobs/lifecycle.py` says what is done at each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ending:
    """How far the end of a job has come; one with very many requests ends in several steps."""

    grace_ms: int | None = None
    dequeued: int = 0  # of its arrivals: they do not wait any more
    parts: int = 0  # of its ranges: their members do not wait any more
    given_up: int = 0  # of its arrivals: they have ended
    parts_ended: int = 0  # of its ranges: their members have
