"""Observes how long threads of work take, and adds that to the durations of their job.

A thread begins when a slot is granted. It ends when the job master gives the slot back or reuses it
for the next request.

Other ends of a slot do not count: lost, taken away, or kept until the end of its job. Nor does a
thread count whose begin is unknown: of a slot that came back with a lost executor, or that had been
reused before a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrain.values.states import SlotState
from resource_manager.engine.fairness.advice import Observed
from resource_manager.engine.model.durations import Durations
from resource_manager.engine.model.entities import Instant, Job, Slot, UsageRecord

JOB_FLOW = "job/"
"""Prefix of the flow ids of jobs."""


def begin(slot: Slot, now_ms: int) -> None:
    """Notes that the slot was granted."""
    slot.thread_since_ms = now_ms


def end(job: Job, slot: Slot, now_ms: int) -> None:
    """Notes that the job master gave the slot back: its thread is done.

    Args:
        job: the job, whose durations are updated.
        slot: the slot.
        now_ms: now, monotonic.
    """
    # Its begin is unknown, so its duration is, too.
    if slot.thread_since_ms is None:
        return
    if job.durations is None:
        job.durations = Durations()
    job.durations.add(now_ms - slot.thread_since_ms)
    slot.thread_since_ms = None


def note_reuse(job: Job, slot: Slot, now_ms: int) -> None:
    """Notes that the slot's thread is done, and the next one begins in it.

    Args:
        job: the job, whose durations are updated.
        slot: the slot.
        now_ms: now, monotonic.
    """
    end(job, slot, now_ms)
    if job.durations is None:
        job.durations = Durations()
    job.durations.handed_on += 1
    slot.thread_since_ms = now_ms


def restore(
    jobs: Mapping[str, Job],
    slots: Iterable[Slot],
    usage_records: Iterable[UsageRecord],
    at: Instant,
) -> None:
    """Restores durations and running threads after a restart. A running thread counts from when its
    slot was carved, by wall time; if the clock was set back, from now.

    Args:
        jobs: all jobs, by id.
        slots: all slots.
        usage_records: as stored; those of jobs contain the durations.
        at: now.
    """
    for record in usage_records:
        job = jobs.get(record.flow_id.removeprefix(JOB_FLOW))
        if job is not None and record.durations and record.flow_id.startswith(JOB_FLOW):
            job.durations = Durations.from_text(record.durations)
    for slot in slots:
        job = jobs.get(slot.job_id)
        if slot.state is not SlotState.ALLOCATED or slot.allocated_time_ms is None or job is None:
            continue
        # If slots were reused, it is unknown when the thread that runs now began.
        if job.durations is None or not job.durations.handed_on:
            ran_ms = max(0, at.time_ms - slot.allocated_time_ms)
            slot.thread_since_ms = at.monotonic_ms - ran_ms


def observed(job: Job, slots: Iterable[Slot], waiting: int, now_ms: int) -> Observed:
    """Returns what is known of the threads of a job.

    Args:
        job: the job.
        slots: those that serve its requests.
        waiting: number of its pending requests.
        now_ms: now, monotonic.
    """
    since_ms = [slot.thread_since_ms for slot in slots]
    oldest_ms = min((each for each in since_ms if each is not None), default=now_ms)
    return Observed(
        finished=job.durations or Durations(),
        running=len(since_ms),
        waiting=waiting,
        running_longest_ms=now_ms - oldest_ms,
    )
