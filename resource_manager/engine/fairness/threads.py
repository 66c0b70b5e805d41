"""Measures how long threads of work take, and adds these times to the durations of their job.

A thread begins when its slot is granted. The thread ends when the job master gives the slot back or
reuses the slot for the next request.

Each thread counts once. For this, the job master reports for each slot how many threads have
finished in it (`ThreadReport`). An attempt that will be repeated does not count as a thread. If the
job master reports nothing, the attempt counts as a thread, and as unmatched.

A thread is not counted if its slot is lost, is taken away, or is kept until the job ends. A thread
is also not counted if its start is unknown. The start is unknown in two cases: a lost executor has
returned with the slot, or the resource manager was restarted and the job had reused slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import SlotState, ThreadEnd
from resource_manager.engine.fairness.advice import Observed
from resource_manager.engine.model.durations import Durations
from resource_manager.engine.model.entities import Instant, Job, Slot, UsageRecord
from resource_manager.engine.model.run_times import CLASSES_MAX, RecentDurations
from resource_manager.engine.model.scheduling_key import SchedulingKey

JOB_FLOW = "job/"
"""Prefix of the ids of the flows of jobs."""


def begin(slot: Slot, now_ms: int) -> None:
    """Records that the slot was granted, and that a thread begins in it."""
    slot.thread_since_ms = now_ms


def end(job: Job, slot: Slot, key: SchedulingKey, now_ms: int, report: ThreadReport) -> None:
    """Records that the job master gave the slot back. The attempt in the slot has then ended.

    Args:
        job: the job whose durations are updated.
        slot: the slot of the attempt.
        key: the scheduling class of the slot's request.
        now_ms: the present time (monotonic).
        report: the job master's report about the threads that have run in the slot.
    """
    # If the start of the thread is unknown, its duration is unknown, too.
    if slot.thread_since_ms is None:
        return
    if job.durations is None:
        job.durations = Durations()
    # The job master may have run several threads in turn. The duration of each is unknown, so each
    # gets an equal part of the time.
    finished = report.finished_before
    if report.end is ThreadEnd.UNFINISHED:
        job.durations.unfinished += 1
    else:
        finished += 1
        job.durations.unmatched += report.end is None
    each_ms = (now_ms - slot.thread_since_ms) // (report.finished_before + 1)
    job.durations.add(each_ms, finished)
    # Run times of slots include all attempts: the scheduler must know how long slots exist.
    recent = job.run_times.get(key)
    if recent is None:
        if len(job.run_times) >= CLASSES_MAX:
            del job.run_times[next(iter(job.run_times))]
        recent = job.run_times[key] = RecentDurations()
    recent.add(now_ms - slot.thread_since_ms)
    slot.thread_since_ms = None


def note_reuse(job: Job, slot: Slot, key: SchedulingKey, now_ms: int, report: ThreadReport) -> None:
    """Records that an attempt in the slot has ended, and that the next one begins in the slot.

    Args:
        job: the job whose durations are updated.
        slot: the slot of both attempts.
        key: the scheduling class of the slot's request.
        now_ms: the present time (monotonic).
        report: see `end`.
    """
    end(job, slot, key, now_ms, report)
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
    """Restores durations and running threads after a restart.

    A running thread counts from the wall clock time at which its slot was carved. If the wall clock
    was set back, the thread counts from now.

    Args:
        jobs: all jobs, by id.
        slots: all slots.
        usage_records: the stored usage rows. The rows of jobs contain the durations.
        at: the present time.
    """
    for record in usage_records:
        job = jobs.get(record.flow_id.removeprefix(JOB_FLOW))
        if job is not None and record.durations and record.flow_id.startswith(JOB_FLOW):
            job.durations = Durations.from_text(record.durations)
    for slot in slots:
        job = jobs.get(slot.job_id)
        if slot.state is not SlotState.ALLOCATED or slot.allocated_time_ms is None or job is None:
            continue
        # If the job has reused slots, the start of the current thread is unknown.
        if job.durations is None or not job.durations.handed_on:
            ran_ms = max(0, at.time_ms - slot.allocated_time_ms)
            slot.thread_since_ms = at.monotonic_ms - ran_ms


def observed(job: Job, slots: Iterable[Slot], waiting: int, now_ms: int) -> Observed:
    """Returns the known durations of a job's threads, and the numbers of threads that run and that
    wait.

    Args:
        job: the job that the threads belong to.
        slots: the slots that serve requests of the job.
        waiting: the number of pending requests of the job.
        now_ms: the present time (monotonic).
    """
    since_ms = [slot.thread_since_ms for slot in slots]
    oldest_ms = min((each for each in since_ms if each is not None), default=now_ms)
    return Observed(
        finished=job.durations or Durations(),
        running=len(since_ms),
        waiting=waiting,
        running_longest_ms=now_ms - oldest_ms,
    )
