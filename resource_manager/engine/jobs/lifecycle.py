"""Registers jobs, keeps jobs alive, ends jobs and deletes jobs.

A job ends on request, or when its lease expires. The requests of a large job end in several steps
(`Journal.is_full`), so that other jobs do not have to wait.
"""

from __future__ import annotations

from finegrain.errors import (
    AlreadyExists,
    Reason,
    ResourceExhausted,
)
from finegrain.values.states import JobOutcome
from resource_manager.engine.fairness.flows import JOB
from resource_manager.engine.jobs.group_rules import group_of
from resource_manager.engine.jobs.group_users import check_may_use
from resource_manager.engine.jobs.groups import known_group
from resource_manager.engine.lifecycle.known import active_job, known_job
from resource_manager.engine.lifecycle.range_ends import Why
from resource_manager.engine.lifecycle.user_limits import check_jobs
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, JobState
from resource_manager.engine.model.events import JobEndRequested, JobKeptAlive, JobRegistered
from resource_manager.engine.model.state_tables import JobInput
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.state import State

DEQUEUED_AT_ONCE = 250
"""One step removes at most this many job queues and gangs of ended jobs from the queue."""

EXAMINED_AT_ONCE = 10_000
"""One step examines at most this many requests of an ended job to find live requests."""

_RETENTION_RETRY_MS = 1_000


def register_job(state: State, event: JobRegistered) -> Job:
    """Registers a job. Repeating the same call renews the lease.

    Raises:
        AlreadyExists: a job with this id exists, with other values or another owner.
        InvalidArgument: a dependency of the job is not allowed.
        NotFound: the job's resource group, or a job on which it depends, does not exist.
        PermissionDenied: the owner is not allowed to use the group.
        ResourceExhausted: the maximum number of live jobs, or of the owner's jobs, is reached.
    """
    known = state.jobs.get(event.job_id)
    # The job is known: the caller repeats the call, because it did not receive the answer.
    if known is not None:
        if not _same(known, event):
            raise AlreadyExists(f"job {event.job_id} exists with other content or another owner")
        _renew(state.timers, known, state.journal.now_ms)
        return known
    # The group is checked only for new jobs, because a group with live jobs cannot be deleted.
    group = group_of(state.groups, event)
    known_group(state.groups, group)
    check_may_use(state.groups, group, event.owner)
    state.dependency_moves.check(event.job_id, event.depends_on)
    check_jobs(state.flows.users, event.owner)
    if state.live_jobs >= state.settings.jobs_max:
        raise ResourceExhausted(
            f"there are {state.live_jobs} live jobs, but at most {state.settings.jobs_max} are"
            " allowed; end some, or raise jobs_max",
            details={"jobs": state.live_jobs, "jobs_max": state.settings.jobs_max},
            retry_after_s=5.0,
        )
    job = Job(
        job_id=event.job_id,
        name=event.name,
        group=group,
        lease_ms=event.lease_ms,
        owner=event.owner,
        request_id_sha256=event.request_id_sha256,
        # Jobs and requests share one counter, so that jobs and requests have one common order.
        arrival_number=state.numbers.next_arrival(),
        create_time_ms=state.journal.at.time_ms,
        depends_on=event.depends_on,
        priority=event.priority,
    )
    state.jobs[job.job_id] = job
    state.flows.add_job(job.job_id, job.group, job.owner, priority=job.priority)
    state.live_jobs += 1
    _renew(state.timers, job, state.journal.now_ms)
    state.changes.job(job)
    state.journal.cluster_event("job_registered", job_id=job.job_id, message=job.name)
    state.dependency_moves.adopt(job)
    return job


def keep_alive(state: State, event: JobKeptAlive) -> Job:
    """Renews the lease of a job, and records which of its events the job master has processed.

    Raises:
        NotFound, FailedPrecondition: see `active_job`.
    """
    job = active_job(state.jobs, event.job_id)
    _renew(state.timers, job, state.journal.now_ms)
    state.journal.acknowledge(job, event.acknowledged_sequence)
    return job


def request_job_end(state: State, event: JobEndRequested) -> Job:
    """Ends a job. If the job has already ended, nothing happens.

    Raises:
        NotFound: no job has this id.
    """
    job = known_job(state.jobs, event.job_id)
    # If an administrator ends a job, the job has failed, because its work is not done.
    outcome = event.outcome if event.reason == Reason.ENDED else JobOutcome.FAILED
    end_job(state, job, event.reason, event.grace_ms, outcome=outcome)
    return job


def end_job(
    state: State,
    job: Job,
    reason: str,
    grace_ms: int | None = None,
    *,
    outcome: JobOutcome = JobOutcome.FAILED,
) -> None:
    """Ends a job: cancels queued requests and releases slots. The ids of the job and of its
    requests cannot be used again during the retention time.

    If the step becomes full, the next scheduling cycles end the remaining requests
    (`continue_ending`).

    Args:
        state: the state.
        job: the job.
        reason: the reason why the job ends. It is shown in the job's events and in the history.
        grace_ms: the time that tasks in the job's slots have until they must end; None means the
            executor's default.
        outcome: whether the work of the job succeeded.
    """
    if job.state is JobState.ENDED:  # the job's requests are being ended, or have ended
        return
    state.transitions.move_job(job, JobInput.END)
    state.live_jobs -= 1
    job.end_reason = reason
    job.end_time_ms = state.journal.at.time_ms
    job.outcome = outcome
    state.dependency_moves.job_ended(job.job_id)
    # The job is stored as ENDED now. After a restart, `endings` is derived from its row.
    state.changes.job(job)
    state.endings[job.job_id] = Ending(grace_ms)
    # The first requests end now. So a small job is finished within this step.
    _continue_ending(state, job)


def continue_ending(state: State) -> None:
    """Ends some of the remaining requests of ended jobs.

    First, this function removes the job queues of these jobs, so that no request of these jobs can
    be placed. The cost of this removal depends on the number of scheduling classes and not on the
    number of requests. At the end, this function handles jobs that wait for an ended job.
    """
    left = DEQUEUED_AT_ONCE
    for job_id in state.endings:
        left -= _dequeue(state, job_id, left)
        if left <= 0:
            break
    for job_id in list(state.endings):  # a copy, because finished jobs are removed in the loop
        if state.journal.is_full:
            return
        _continue_ending(state, state.jobs[job_id])
    state.dependency_moves.handle_ended(lambda job: end_job(state, job, Reason.DEPENDENCY_FAILED))


def _continue_ending(state: State, job: Job) -> None:
    """Ends requests of an ended job until the step is full.

    After the end of the last request, the usage of the job is stored, and the retention timer
    starts.
    """
    ending = state.endings[job.job_id]
    message = f"its job ended: {job.end_reason}"
    # If most requests have already ended, examining them changes no rows, so the step would never
    # become full. Therefore the number of examined requests has a separate limit.
    until = min(ending.given_up + EXAMINED_AT_ONCE, len(job.arrivals))
    while job.live_requests and ending.given_up < until and not state.journal.is_full:
        request = state.requests.by_arrival[job.arrivals[ending.given_up]]
        ending.given_up += 1
        if request.state not in ENDED_REQUEST_STATES:
            reason, grace_ms = Reason.JOB_OVER, ending.grace_ms
            state.gang_moves.give_up(request, reason=reason, message=message, grace_ms=grace_ms)
    why = Why(Reason.JOB_OVER, message, ending.grace_ms)
    # Ranges end after all requests outside of ranges.
    parts = state.ranges.by_job.get(job.job_id, ())
    while ending.given_up == len(job.arrivals) and ending.parts_ended < len(parts):
        if not state.range_moves.end_members([parts[ending.parts_ended]], why):
            return
        ending.parts_ended += 1
    if job.live_requests:  # the limit of examined requests was reached, or the step is full
        return
    del state.endings[job.job_id]
    # The usage is stored first, because `retire` can remove the flow.
    state.usage_checkpoints.keep_ended(job.job_id)
    state.usage.retire(job.job_id)
    state.timers.arm(
        Timer.RETENTION, job.job_id, state.journal.now_ms + state.settings.ended_retention_ms
    )
    state.journal.cluster_event(
        "job_ended", job_id=job.job_id, reason=job.end_reason, message=job.name
    )
    # The jobs that wait for this job can form a long chain. So the next `Decide` handles them.
    state.dependencies.note_end(job.job_id)


def _dequeue(state: State, job_id: str, most: int) -> int:
    """Removes up to `most` job queues and gangs of an ended job from the queue. Returns the number
    of removed job queues and gangs.
    """
    taken = state.queue.remove_job(job_id, most)
    items = state.queue.non_batchables.of_job(job_id)
    # This function does not remove resizes, because they end with their slots.
    gangs = [state.gangs.by_id[item.name] for item in items if item.kind is Kind.GANG]
    for gang in gangs[: most - taken]:
        state.gangs.stop_waiting(gang, state.queue.non_batchables)
        taken += 1
    return taken


def lease_timer_fired(state: State, job_id: str) -> None:
    """Ends a job whose lease has expired."""
    timers = state.timers
    job = state.jobs.get(job_id)
    # Nothing expires if the job has ended meanwhile, or has no lease.
    if job is None or job.state is JobState.ENDED or job.lease_ms is None:
        return
    # While this process was stopped, it could receive no keep-alives. So the job gets a full lease
    # from the time when the process continued.
    until_ms = max(job.lease_until_ms, timers.listening_since_ms + job.lease_ms)
    if not job.owner:
        # The job master has an earlier version and no certificate. So it cannot renew the lease
        # until the wait for executors without certificates ends.
        until_ms = max(until_ms, state.awaited.until_ms)
    if state.journal.now_ms < until_ms:
        timers.arm(Timer.LEASE, job_id, until_ms)
        return
    end_job(state, job, Reason.LEASE_EXPIRED)


def retention_timer_fired(state: State, job_id: str) -> None:
    """Deletes an ended job with its requests after the retention time.

    The job is kept until all its slots are deleted, which can take long on a lost executor. If the
    job were deleted earlier, a new request with the same id could seem to be the owner of an old
    slot. The job is also kept while another job waits for its outcome.
    """
    job = state.jobs.get(job_id)
    if job is None or job.state is not JobState.ENDED:
        return
    # The timer is armed again, because the deletion of the last slot does not call this function.
    if job.slot_keys or job_id in state.endings or state.dependencies.is_awaited(job_id):
        state.timers.arm(Timer.RETENTION, job_id, state.journal.now_ms + _RETENTION_RETRY_MS)
        return
    # Ranges and requests are deleted from the end. Removing the last entry is cheap, and the job
    # stays consistent if the step becomes full.
    while (parts := state.ranges.by_job.get(job_id)) and not state.journal.is_full:
        part = parts[-1]
        state.ranges.forget(part)
        state.changes.delete_range(part.row)
    while job.arrivals and not state.journal.is_full:
        request = state.requests.by_arrival.pop(job.arrivals.pop())
        state.requests.discard(request.spec.allocation_id)
        state.ranges.give_back(request.spec.allocation_id)
        state.changes.delete_request(request)
        if (gang := state.gangs.forget(request)) is not None:
            state.changes.delete_gang(gang)
    # If requests or ranges are left, the next `Decide` continues. The job's row is deleted last,
    # because other rows refer to this row.
    if job.arrivals or job_id in state.ranges.by_job:
        state.timers.put_off(Timer.RETENTION, job_id)
        return
    del state.jobs[job_id]
    state.changes.delete_job(job)
    state.changes.delete_usage(JOB + job_id)


def _renew(timers: Timers, job: Job, now_ms: int) -> None:
    if job.lease_ms is not None and job.state is JobState.ACTIVE:
        # An earlier timer stays armed. When the earlier timer fires, its handler compares the time
        # with `lease_until_ms`.
        job.lease_until_ms = now_ms + job.lease_ms
        timers.arm(Timer.LEASE, job.job_id, job.lease_until_ms)


def _same(job: Job, event: JobRegistered) -> bool:
    return (
        job.name == event.name
        # The rules have possibly changed since the first call, so an empty group is not compared.
        and event.group in ("", job.group)
        and job.lease_ms == event.lease_ms
        and job.owner == event.owner
        and job.request_id_sha256 == event.request_id_sha256
        and job.depends_on == event.depends_on
        and job.priority == event.priority
    )
