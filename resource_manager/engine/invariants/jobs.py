"""Checks each job's counters against its requests, slots and queues. `all.py` runs these checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.groups import is_live
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.invariants.sweep import Finding, add_up
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, JobState, SlotKey
from resource_manager.engine.queue.dependencies import JobDependencies
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import INACTIVE
from resource_manager.engine.state import State


def job_problems(state: State, job_id: str) -> Iterator[Finding]:
    """Yields problems of a job."""
    job = state.jobs.get(job_id)
    if job is None:
        return
    # If all events were trimmed, both numbers are equal.
    if not job.trimmed_sequence <= job.last_sequence:
        yield (
            f"job {job_id} trimmed events up to {job.trimmed_sequence},"
            f" but its last event is {job.last_sequence}"
        )
    flow = state.flows.jobs.get(job_id)
    if (flow is not None) != is_live(job):
        yield f"job {job_id} is live: {is_live(job)}; has a flow: {flow is not None}"
    if flow is not None and flow.parent is not state.flows.groups.get(job.group):
        yield f"{flow.id} is below {flow.parent}, but its group is {job.group}"
    yield from _queued(state.queue, state.gangs, job, flow)
    if state.settings.fairness.order == "fair":
        yield from _active(state.queue, job, flow)
    yield from _requests(state.requests, state.queue, job, flow, over=job_id in state.endings)
    yield from _slots(state.slots, job, flow)
    yield from _dependencies(state.dependencies, job, flow)
    yield from _awaited(state.dependencies, state.jobs, state.endings, job)


def _dependencies(dependencies: JobDependencies, job: Job, flow: Flow | None) -> Iterator[str]:
    """Checks that a job has no slots while it waits for other jobs."""
    awaited = sorted(dependencies.awaited(job.job_id))
    if awaited and (job.state is JobState.ENDED or job.slot_keys):
        yield f"job {job.job_id} is {job.state} with slots {job.slot_keys}, but waits for {awaited}"
    if flow is not None and bool(flow.maximum) != bool(awaited):
        yield f"{flow.id} has the maximum {flow.maximum}, but waits for {awaited}"


def _awaited(
    dependencies: JobDependencies, jobs: dict[str, Job], endings: Container[str], job: Job
) -> Iterator[str]:
    """Checks the jobs for which `job` waits: each of them exists, and either has not ended or its
    end was not handled yet.
    """
    for awaited_id in dependencies.awaited(job.job_id):
        other = jobs.get(awaited_id)
        if other is None:
            yield f"job {job.job_id} waits for job {awaited_id}, which does not exist"
        elif other.state is JobState.ENDED and not (
            awaited_id in endings or awaited_id in dependencies.ended
        ):
            yield f"job {job.job_id} waits for job {awaited_id}, which has ended"


def job_sums(jobs: dict[str, Job], live_jobs: int, requests: Requests) -> Iterator[str]:
    """Yields problems of the counters over all jobs."""
    if (there := sum(len(job.arrivals) for job in jobs.values())) != len(requests.by_arrival):
        yield f"jobs have {there} arrival numbers, but {len(requests.by_arrival)} requests exist"
    numbers = len(requests.by_arrival) + len(requests.ranges.members)
    if numbers != len(requests):
        yield f"{numbers} arrival numbers for {len(requests)} requests"
    if (living := sum(job.live_requests for job in jobs.values())) != requests.live:
        yield f"the counter of live requests is {requests.live}, expected {living}"
    if (active := sum(job.state is JobState.ACTIVE for job in jobs.values())) != live_jobs:
        yield f"the counter of live jobs is {live_jobs}, expected {active}"


def unknown_jobs(
    jobs: dict[str, Job], flows: FlowTree, queue: WaitingQueue, gangs: GangLedger
) -> Iterator[str]:
    """Yields the ids of jobs that have a flow, a queue or a gang, but do not exist."""
    for owners, what in ((flows.jobs, "flow"), (queue.by_job, "queue"), (gangs.by_job, "gang")):
        if unknown := owners.keys() - jobs.keys():
            yield f"jobs {sorted(unknown)} have a {what}, but do not exist"


def _queued(queue: WaitingQueue, gangs: GangLedger, job: Job, flow: Flow | None) -> Iterator[str]:
    """Compares the counters of a job with its queues, gangs and waiting resizes."""
    job_queues = queue.by_job.get(job.job_id, {})
    items = queue.non_batchables.of_job(job.job_id)
    waiting = sum(len(each.numbers) for each in job_queues) + sum(item.count for item in items)
    if flow is not None and flow.waiting != waiting:
        yield f"{flow.id} counts {flow.waiting} waiting requests, expected {waiting}"
    for each in job_queues:
        if each.scheduling_class.job_queues.get(job.job_id) is not each:
            yield f"job {job.job_id} has a queue that its scheduling class does not know"
    kinds = sum(
        len(gangs.waiting[item.name].kind.member_requests)
        for item in items
        if item.kind is Kind.GANG and item.name in gangs.waiting
    )
    if (have := gangs.by_job.get(job.job_id, 0)) != kinds:
        yield f"gangs of job {job.job_id} have {kinds} member requests, but {have} are counted"


def _active(queue: WaitingQueue, job: Job, flow: Flow | None) -> Iterator[str]:
    """Compares the counts of active queues with the queues of the job."""
    job_queues = queue.by_job.get(job.job_id, {})
    active = sum(each.position != INACTIVE for each in job_queues)
    # All queues of a job share one counter, so it is enough to check one queue.
    for each in list(job_queues)[:1]:
        if each.active_queues.active_count != active:
            counted = each.active_queues.active_count
            yield f"job {job.job_id} counts {counted} active queues, expected {active}"
    if flow is not None and flow.active != (active > 0):
        yield f"{flow.id} is active: {flow.active}; it has {active} active queues"


def _requests(
    requests: Requests, queue: WaitingQueue, job: Job, flow: Flow | None, *, over: bool
) -> Iterator[Finding]:
    """Compares the counters of a job with the states of its requests."""
    living = pending = 0
    missing = False

    def add_request(number: int) -> None:
        nonlocal living, pending, missing
        request = requests.by_arrival.get(number)
        # `_requests` reports missing requests after the sum, because this inner function cannot
        # yield findings for it.
        missing |= request is None
        if request is not None and request.state not in ENDED_REQUEST_STATES:
            living += 1
            pending += request.state is RequestState.PENDING and not request.spec.gang_id

    def add_part(part: Part) -> None:
        nonlocal living, pending
        living += part.live
        job_queue = queue.queue_of(part.spec.request, job.job_id)
        if job_queue is not None:  # `part_problems` compares the queue with the members
            pending += job_queue.numbers.count_within(
                part.row.arrival_number, part.last_arrival + 1
            )

    def version() -> object:
        # When a job ends, its requests first leave the queue, which changes `moves`. The requests
        # end later, which changes `live_requests`.
        return flow and flow.moves, job.live_requests, len(job.arrivals)

    # The sweep can pause within these sums. The sums are compared only if `version` shows that
    # nothing changed during the pauses.
    complete = yield from add_up(job.arrivals, add_request, version)
    if missing:
        yield f"job {job.job_id} has the arrival number of a request that does not exist"
    if not complete:
        return
    parts = requests.ranges.by_job.get(job.job_id, [])
    if not (yield from add_up(parts, add_part, version)):
        return
    if living != job.live_requests:
        yield f"job {job.job_id} counts {job.live_requests} live requests, expected {living}"
    queued = sum(len(each.numbers) for each in queue.by_job.get(job.job_id, ()))
    if queued != pending and not over:  # requests of an ending job leave the queue first
        yield f"job {job.job_id} has {queued} requests in queues, but {pending} are PENDING"


def _slots(slots: Slots, job: Job, flow: Flow | None) -> Iterator[Finding]:
    """Compares the counters of a job with its slots."""
    used: Counter[str] = Counter()
    running, rate = 0, 0.0
    unknown: list[SlotKey] = []

    def add(key: SlotKey) -> None:
        nonlocal running, rate
        slot = slots.get(key)
        if slot is None or slot.job_id != job.job_id:
            unknown.append(key)
            return
        running += 1
        used.update(slot.booked)
        rate += slot.cost if slot.state is not SlotState.FREEING else 0.0

    if not (yield from add_up(list(job.slot_keys), add, lambda: flow and flow.moves)):
        return
    if unknown:
        yield f"job {job.job_id} lists slots {sorted(unknown)}, which are not its slots"
    if flow is None:
        return
    have, expected = (flow.running, flow.rate, flow.used), (running, rate, dict(used))
    if have != expected:
        yield f"{flow.id} has (running, rate, used) {have}, expected {expected}"
