"""Defines the advice on splitting a job's work into threads. `status.py` describes the form of all
values.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class ThreadAdvice(Value):
    """The recommended number of threads for a job's work, and the measurements from which it was
    computed.
    """

    job_id: str
    threads_recommended: int  # 0 if too little is known
    # number of finished threads, each counted once; durations are from grant to release of the slot
    threads_observed: int
    threads_running: int
    threads_waiting: int
    median_s: float
    at_quantile_s: float  # the fraction `quantile` of the observed threads took at most this time
    longest_s: float
    share_within_target: float  # fraction of the observed threads that took at most `target_s`
    target_s: float
    quantile: float
    remarks: tuple[str, ...]  # meaning and assumptions of the numbers, for people
    attempts_unfinished: int = 0  # ended attempts that finished no thread; not counted elsewhere
    # number of observed threads of which some are possibly repeated attempts, because the job
    # master did not report whether a thread has finished
    attempts_unmatched: int = 0
