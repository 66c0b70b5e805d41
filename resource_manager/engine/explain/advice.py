"""Into how many threads a job's work should be split, asked of the books. Changes nothing."""

from __future__ import annotations

from resource_manager.engine.fairness import threads
from resource_manager.engine.fairness.advice import Advice, advise
from resource_manager.engine.lifecycle.known import known_job
from resource_manager.engine.state import State


def advise_threads(
    state: State, job_id: str, target_ms: int, quantile: float, now_ms: int
) -> Advice:
    """See `fairness/advice.py`; an ended job is advised as long as it is kept.

    Raises:
        NotFound: no such job.
    """
    job = known_job(state.jobs, job_id)
    slots = [state.slots[key] for key in job.slot_keys]
    serving = [slot for slot in slots if state.requests.served_by(slot) is not None]
    waiting = max(0, job.live_requests - len(serving))
    return advise(threads.observed(job, serving, waiting, now_ms), target_ms, quantile)
