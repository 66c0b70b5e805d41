"""Restores the state from the stored rows after a restart.

Rows become linked entities. The queue, the free capacity, the indexes and the timers are not
stored, but derived again. The row of a request does not show whether the request was placed or
granted. So the state of a request is derived from its row and the rows of its slots.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from finegrain.errors import InvariantBroken
from finegrain.values.states import ExecutorState, RequestState, SlotState
from resource_manager.engine.fairness import threads
from resource_manager.engine.fairness.groups import adopt_groups
from resource_manager.engine.hosts.allowed_cpus import cluster_policy, cordons_for, policy_for
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.run_times import declares
from resource_manager.engine.model.changes import (
    FORGOTTEN,
    GENERATION_FLOOR,
    HOST_SETTING_NUMBER,
    REGISTERED_WITH,
)
from resource_manager.engine.model.effects import Snapshot
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Executor,
    Instant,
    Job,
    JobState,
    Request,
    RequestRange,
    Slot,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.elastic import NUMBER
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part, enqueue_members
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.starvation import Waiter
from resource_manager.engine.state import State

# Python 3.11 needs 0.1 µs to find a member of an enum, and some lines below run for each slot.
_PENDING, _ALLOCATING, _GRANTED = (
    RequestState.PENDING,
    RequestState.ALLOCATING,
    RequestState.GRANTED,
)
_ALLOCATED, _FREEING = SlotState.ALLOCATED, SlotState.FREEING


def restore(snapshot: Snapshot, settings: EngineSettings, at: Instant) -> State:
    """Returns the state as it was stored. An executor must register again before new slots are
    placed on it.

    While the resource manager was down, it could not receive reports and keep-alives. So the
    timeouts of all executors and all leases start again at `at`.

    Args:
        snapshot: all stored rows.
        settings: settings of the engine.
        at: the current time.

    Raises:
        InvariantBroken: the rows contradict each other.
    """
    # The order of the steps matters, because each step links its rows to rows of earlier steps.
    state = State(settings, snapshot.rm_epoch, at)
    _read_counters(state, snapshot)
    # Rows become linked entities: hosts, jobs, gangs, ranges, requests, slots.
    state.host_settings.update({each.executor_id: each for each in snapshot.host_settings})
    for executor in snapshot.executors:
        _restore_executor(state, executor)
        executor.report_number = snapshot.counters.get(REGISTERED_WITH + executor.executor_id, 0)
    state.awaited.restore(snapshot.counters, state.started)
    for job in sorted(snapshot.jobs, key=lambda job: job.arrival_number):
        _restore_job(state, job)
    # Gangs and ranges come before requests, because requests can be members of gangs and ranges.
    state.gangs.restore(snapshot.gangs)
    for row in sorted(snapshot.ranges, key=lambda row: row.arrival_number):
        _restore_range(state, row)
    single = [
        request.allocation_id
        for request in sorted(snapshot.requests, key=lambda request: request.arrival_number)
        if _restore_request(state, request)
    ]
    # The id of a request outside ranges can have the form of a range member's id. So the id is
    # reserved, and no range member can get it.
    state.ranges.reserve_all(single)
    specs = chain(
        (each.spec for each in snapshot.requests), (each.spec.request for each in snapshot.ranges)
    )
    state.run_times.declared = any(map(declares, specs))
    # Slots are sorted by generation, because `_match` expects the older slots of a request first.
    for slot in sorted(snapshot.slots, key=lambda slot: (slot.allocation_id, slot.generation)):
        _restore_slot(state, slot)
    # Groups and jobs become flows, and the slots of a flow count in its usage.
    threads.restore(state.jobs, state.slots.values(), snapshot.usage_records, at)
    state.groups.update(
        adopt_groups(
            snapshot.groups,
            state.jobs.values(),
            snapshot.counters,
            state.changes,
            time_ms=at.time_ms,
        )
    )
    for limits in snapshot.user_limits:
        state.flows.users.set_limits(limits.user_id, limits.maximum)
    for host in state.hosts.values():
        # All hosts have their slots now. The registration determines the capacity that the slots
        # book.
        host.adopt_registration()
        state.usage.total_changed(host)
        state.hosts.in_use += bool(host.slots)
    state.usage.register()
    for job in state.jobs.values():
        if job.depends_on and job.state is JobState.ACTIVE:
            state.dependency_moves.adopt(job)
    # This step comes after all bookings are final and all flows exist, because it counts bookings
    # in the usage of flows.
    state.usage.adopt()
    _enqueue(state, at)
    # This step comes after all requests are queued: queueing can increase a flow's usage, and this
    # step sets the usage back to the stored value.
    state.usage_checkpoints.restore(snapshot.usage_records, at)
    # Arm the timer even if provisioning is off now, because executors of an older configuration
    # must still be given back.
    if state.settings.provisioning or state.provisions:
        state.timers.arm(Timer.PLAN, "", at.monotonic_ms)
    state.timers.arm(Timer.HISTORY, "", at.monotonic_ms + state.history.mark_interval_ms)
    state.hosts.refresh(state.queue)
    state.considered_arrival = state.numbers.arrival
    return state


def fresh(settings: EngineSettings, rm_epoch: int, at: Instant) -> State:
    """Returns an empty state.

    Args:
        settings: settings of the engine.
        rm_epoch: epoch of this process as the leader.
        at: the current time.
    """
    return restore(Snapshot(rm_epoch=rm_epoch), settings, at)


def _read_counters(state: State, snapshot: Snapshot) -> None:
    state.numbers.arrival = snapshot.counters.get("arrival_number", 0)
    state.numbers.forgotten_registration = snapshot.counters.get(FORGOTTEN, 0)
    state.numbers.generation_floor = snapshot.counters.get(GENERATION_FLOOR, 0)
    state.elastic.number = snapshot.counters.get(NUMBER, 0)
    state.numbers.host_setting = snapshot.counters.get(HOST_SETTING_NUMBER, 0)
    state.elastic.resumes = bool(snapshot.provisions)
    state.provisions.update(
        (each.executor_id, each)
        for each in sorted(snapshot.provisions, key=lambda each: (each.ask_time_ms, each.number))
    )
    state.history.restore(snapshot.counters)


def _enqueue(state: State, at: Instant) -> None:
    """Queues all pending requests, gangs and resizes. All of them are marked as tried, so that the
    first scheduling pass does not treat them as new.
    """
    for slot in state.slots.values():
        # While a resize order is in flight to the executor (`ordered`), the slot's next resize is
        # not queued. The next resize is queued after the executor has confirmed or refused the
        # order.
        if slot.state is _ALLOCATED and slot.wanted is not None and slot.ordered is None:
            state.queue.add_resize(slot)
    for gang in state.gangs.derive_states(state.requests, state.transitions, at):
        # Jobs that are ending get no more slots. `continue_ending` ends their remaining requests.
        if gang.job_id not in state.endings:
            state.gang_moves.queue_gang(gang, tried=True)
    for request in state.requests.values():
        waits = request.state is _PENDING and request.job_id not in state.endings
        if waits and not request.spec.gang_id:
            state.queue.add(request)
            state.request_timeouts.start(request)
    for part in state.ranges.parts():
        if part.row.job_id not in state.endings:
            state.request_timeouts.start_part(part)
            for run in part.waiting.runs():
                enqueue_members(state.queue, part, *run)
    for scheduling_class in state.queue.classes():
        scheduling_class.tried = True
    waiting_since_ms = partial(
        _waiting_since_ms, state.started, state.queue, state.gangs, state.requests
    )
    state.queue.starvation.restart(waiting_since_ms)


def _waiting_since_ms(
    started: Instant, queue: WaitingQueue, gangs: GangLedger, requests: Requests, waiter: Waiter
) -> int:
    """Returns when the starvation clock of a waiter started. The result is never in the future.

    The result is computed from the stored wall time. No time is stored for a resize and for a
    request that has had a slot before, so their clocks start at the restart.
    """
    since_time_ms = started.time_ms
    if isinstance(waiter, int):
        item = queue.non_batchables.get(waiter)
        gang = gangs.waiting.get(item.name) if item is not None else None
        if gang is not None:
            since_time_ms = gang.gang.waiting_since_time_ms
    else:
        scheduling_class, job_id = waiter
        # A job's requests of one class are served in order, so the first request has waited
        # longest.
        first = requests.at(scheduling_class.job_queues[job_id].numbers.first)
        if not first.generation:
            since_time_ms = first.create_time_ms
    # Use 0 if the wall clock was set back in the meantime, because no starvation clock must start
    # in the future.
    return started.monotonic_ms - max(0, started.time_ms - since_time_ms)


def _restore_executor(state: State, executor: Executor) -> None:
    now = state.started.monotonic_ms
    state.transitions.restore_executor(
        executor, ExecutorState.LOST if executor.lost else ExecutorState.UNCONFIRMED
    )
    executor.report_at_ms = now
    if executor.drain_deadline_time_ms is not None:
        # The deadline is stored as wall time, because each process has its own monotonic clock.
        # This line converts the deadline to the monotonic clock of this process.
        left = executor.drain_deadline_time_ms - state.started.time_ms
        executor.drain_deadline_at_ms = now + max(0, left)
        state.timers.arm(Timer.DRAIN, executor.executor_id, executor.drain_deadline_at_ms)
    host = Host.unprepared(
        executor,
        policy_for(state.host_settings, executor.executor_id),
        cluster_policy(state.host_settings, state.settings.cluster_policy),
        cordons_for(state.host_settings, executor.executor_id),
    )
    state.hosts[executor.executor_id] = host
    # Arm the timer for a lost executor, too, because the previous process possibly stopped before
    # it had freed all slots of the executor. The timer frees the remaining slots.
    state.timers.arm(Timer.SILENCE, executor.executor_id, now + state.settings.lost_timeout_ms)


def _restore_job(state: State, job: Job) -> None:
    now = state.started.monotonic_ms
    state.jobs[job.job_id] = job
    if job.state is JobState.ENDED:
        kept = state.started.time_ms - (job.end_time_ms or 0)
        # If the wall clock was set back, `kept` can be negative. In this case, the job is kept for
        # one full retention.
        left = min(
            max(0, state.settings.ended_retention_ms - kept), state.settings.ended_retention_ms
        )
        state.timers.arm(Timer.RETENTION, job.job_id, now + left)
        return
    state.live_jobs += 1
    if job.lease_ms is not None:
        job.lease_until_ms = now + job.lease_ms
        state.timers.arm(Timer.LEASE, job.job_id, job.lease_until_ms)


def _restore_request(state: State, request: Request) -> bool:
    """Restores a request. Returns False if the request is a member of a range."""
    job = state.jobs.get(request.job_id)
    if job is None:
        raise InvariantBroken(
            f"request {request.allocation_id} belongs to job {request.job_id}, which is not stored"
        )
    request.job_id = job.job_id  # all requests of a job share one string for the job's id
    state.requests[request.allocation_id] = request
    if (part := state.ranges.at(request.arrival_number)) is not None:
        state.ranges.materialize(part, request)
        part.stored.add(part.index_of(request.arrival_number))
        return False  # live requests of a range are counted with the part of the range
    state.requests.by_arrival.add(request)
    state.gangs.restore_member(request)
    job.arrivals.append(request.arrival_number)
    _count_live(state, job, request.state not in ENDED_REQUEST_STATES)
    return True


def _restore_range(state: State, row: RequestRange) -> None:
    job = state.jobs.get(row.job_id)
    if job is None:
        raise InvariantBroken(
            f"range {row.spec.range_id} belongs to job {row.job_id}, which is not stored"
        )
    row.job_id = job.job_id
    part = Part.of(row)
    state.ranges.add(part)
    _count_live(state, job, part.live)


def _count_live(state: State, job: Job, count: int) -> None:
    job.live_requests += count
    state.requests.live += count
    # If an ended job still has live requests, the previous process stopped before it had ended all
    # of them. The next `Decide` events end the remaining requests.
    if count and job.state is JobState.ENDED:
        state.endings.setdefault(job.job_id, Ending())


def _member_of(state: State, slot: Slot) -> Request | None:
    """Returns the range member to which this slot belongs, or None if there is no such member.

    The member must be waiting in the stored range, and must have no row of its own.
    """
    found = state.ranges.named(slot.allocation_id)
    if found is None or found[1] not in found[0].waiting or found[0].row.job_id != slot.job_id:
        return None
    request = found[0].member(found[1])
    if slot.state is _FREEING:
        request.generation = slot.generation
    state.ranges.materialize(found[0], request)
    state.requests[request.allocation_id] = request
    return request


def _restore_slot(state: State, slot: Slot) -> None:
    host = state.hosts.get(slot.executor_id)
    if host is None:
        raise InvariantBroken(
            f"slot {slot.allocation_id}/{slot.generation} is on executor {slot.executor_id},"
            " which is not stored"
        )
    request = state.requests.get(slot.allocation_id) or _member_of(state, slot)
    if request is not None:
        slot.allocation_id = request.spec.allocation_id
    _match(state.transitions, request, slot)
    if slot.state is _FREEING:
        # a request of this slot that has not ended waits for another slot
        state.moves.mark_superseded(slot)
    slot.executor_id = host.host_id
    key = slot.allocation_id, slot.generation
    state.slots[key] = slot
    host.slots[key] = slot
    if request is not None and request.spec.cpu_policy.neighbor_job:
        slot.policy = request.spec.cpu_policy
        if not slot.revoked_for:  # other slots start after its end
            host.labeled.add(host.host_id, slot.policy)
    job = state.jobs.get(slot.job_id)
    if job is not None:
        slot.job_id = job.job_id
        job.slot_keys.add(key)


def _match(transitions: Transitions, request: Request | None, slot: Slot) -> None:
    """Computes the states of a request and of one of its slots from the rows of both. The caller
    must pass older slots first.

    The row of a request is not written when the request is placed or granted. The row has the state
    and generation from the time when the request was last pending or ended. Example: the row is
    pending with generation 2, and a slot has generation 3. So the slot with generation 3 is the
    request's current slot. A slot that is not the current slot of a live request is being freed.
    """
    lives = request is not None and (
        request.generation < slot.generation
        if request.state is _PENDING
        else request.generation == slot.generation
        and (request.state is _GRANTED or request.state is _ALLOCATING)
    )
    if request is None or not lives or slot.state is _FREEING:
        transitions.restore_slot(slot, _FREEING)
        return
    granted = slot.state is _ALLOCATED
    transitions.restore_request(request, _GRANTED if granted else _ALLOCATING)
    request.generation = slot.generation
    # The row possibly still has the reason why the request was pending, but the request is no
    # longer pending.
    request.reason = request.message = ""
