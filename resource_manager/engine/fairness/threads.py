"""When a thread of work begins and ends, as far as the books can see: a slot is granted, and it is
given back, or handed on to the next request of its job. How long that took goes into the durations
of its job.

A slot that is lost, taken away, or left to the end of its job says nothing about how long its
thread needs; neither does one of which it is not known when its thread began: that of a slot that
came back with a lost executor, or that had been handed on before a restart.
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
    """The slot was granted."""
    slot.thread_since_ms = now_ms


def end(job: Job, slot: Slot, now_ms: int) -> None:
    """The job master gave the slot back: its thread is done."""
    if slot.thread_since_ms is None:
        return
    if job.durations is None:
        job.durations = Durations()
    job.durations.add(now_ms - slot.thread_since_ms)
    slot.thread_since_ms = None


def note_reuse(job: Job, slot: Slot, now_ms: int) -> None:
    """The slot's thread is done, and it goes on with the next one."""
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
    """Takes up where the last incarnation stopped. What runs has run since its slot was carved, by
    wall time; a clock that was set back makes that 0.
    """
    for record in usage_records:
        job = jobs.get(record.flow_id.removeprefix(JOB_FLOW))
        if job is not None and record.durations and record.flow_id.startswith(JOB_FLOW):
            job.durations = Durations.from_text(record.durations)
    for slot in slots:
        job = jobs.get(slot.job_id)
        if slot.state is not SlotState.ALLOCATED or slot.allocated_time_ms is None or job is None:
            continue
        if job.durations is None or not job.durations.handed_on:
            ran_ms = max(0, at.time_ms - slot.allocated_time_ms)
            slot.thread_since_ms = at.monotonic_ms - ran_ms


def observed(job: Job, slots: Iterable[Slot], waiting: int, now_ms: int) -> Observed:
    """What is known of the threads of a job.

    Args:
        slots: those that serve its requests.
        waiting: how many requests wait.
    """
    since_ms = [slot.thread_since_ms for slot in slots]
    oldest_ms = min((each for each in since_ms if each is not None), default=now_ms)
    return Observed(
        finished=job.durations or Durations(),
        running=len(since_ms),
        waiting=waiting,
        running_longest_ms=now_ms - oldest_ms,
    )
