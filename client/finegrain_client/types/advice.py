"""What the client returns about how to split a job's work; see `status.py` for the shape of all
values.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class ThreadAdvice(Value):
    """Into how many threads to split a job's work, and what that goes by."""

    job_id: str
    threads_recommended: int  # 0: too little is known
    threads_observed: int  # that are done: from being granted a slot until that was given back
    threads_running: int
    threads_waiting: int
    median_s: float
    at_quantile_s: float  # the duration that the wanted part of them kept to
    longest_s: float
    share_within_target: float  # of those observed, 0 to 1
    target_s: float
    quantile: float
    remarks: tuple[str, ...]  # what it means and assumes, for people
