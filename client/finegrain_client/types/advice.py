"""Values about splitting a job's work; see `status.py` for the form of all values."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class ThreadAdvice(Value):
    """Into how many threads to split a job's work, and the measurements behind it."""

    job_id: str
    threads_recommended: int  # 0: too little is known
    threads_observed: int  # finished ones; one lasts from the grant of its slot to its release
    threads_running: int
    threads_waiting: int
    median_s: float
    at_quantile_s: float  # the duration that this fraction of them did not exceed
    longest_s: float
    share_within_target: float  # fraction of the observed ones, 0 to 1
    target_s: float
    quantile: float
    remarks: tuple[str, ...]  # meaning and assumptions, for people
