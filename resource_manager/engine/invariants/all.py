"""Checks that the ledgers agree with each other; the other modules of this package are its parts.

It is meant for tests, for the simulator, and for an occasional check in the service. Each finding
is one sentence that names the entity. The checks look at everything, so the cost grows with the
state, and they never change it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from finegrain.resources import total_of
from finegrain.values.states import ExecutorState, RequestState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.invariants import resizes
from resource_manager.engine.invariants.cpus import cpu_problems
from resource_manager.engine.invariants.fairness import flow_problems
from resource_manager.engine.invariants.gangs import gang_problems
from resource_manager.engine.invariants.provisions import provisions
from resource_manager.engine.invariants.queue import queue_problems
from resource_manager.engine.invariants.ranges import range_problems
from resource_manager.engine.invariants.reservations import reservations
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    JobState,
    Request,
    Slot,
    SlotKey,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.queue.ranges import live
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def check_invariants(state: State, *, ended: bool = True) -> list[str]:
    """Returns everything that is wrong; an empty list means that the state is consistent.

    Indexes are compared only for hosts that were not touched since the last scheduling cycle.

    Args:
        state: the engine's state.
        ended: also check each request that has ended. Most requests have ended and no longer
            change.
    """
    return [
        *_requests(state, ended=ended),
        *_jobs(state),
        *_slots(state.requests, state.slots, state.hosts),
        *queue_problems(state),
        *flow_problems(state),
        *gang_problems(state),
        *range_problems(state),
        *(finding for host in state.hosts.values() for finding in _host(host)),
        *_indexes(state.settings, state.hosts),
        *provisions(state),
        *_sums(state.hosts),
        *resizes.line(state),
        *reservations(state),
    ]


def check_touched(
    state: State, requests: Iterable[Request], executor_ids: Iterable[str]
) -> list[str]:
    """Returns what is wrong with these requests and executors.

    This is cheap enough for every step of a simulation with a large state.

    Args:
        state: the engine's state.
        requests: the requests to check.
        executor_ids: the executors to check; ids that are not known are skipped.
    """
    hosts = [state.hosts[name] for name in executor_ids if name in state.hosts]
    living = [each for each in requests if state.requests.get(each.allocation_id) is each]
    return [
        *(finding for each in living for finding in _request(state, each.allocation_id, each)),
        *(finding for host in hosts for finding in _host(host)),
    ]


def _requests(state: State, *, ended: bool) -> Iterator[str]:
    for name, request in state.requests.items():
        if ended or request.state not in ENDED_REQUEST_STATES:
            yield from _request(state, name, request)
    numbers = len(state.requests.by_arrival) + len(state.ranges.members)
    if numbers != len(state.requests):
        yield f"{numbers} arrival numbers for {len(state.requests)} requests"


def _request(state: State, name: str, request: Request) -> Iterator[str]:
    """Compares a request with its job, its slot and the queue."""
    title = f"request {name}"
    number = request.arrival_number
    if (state.requests.by_arrival.get(number) or state.ranges.members.get(number)) is not request:
        yield f"{title} is not at its arrival number {request.arrival_number}"
    job = state.jobs.get(request.job_id)
    is_member = request.arrival_number in state.ranges.members
    if job is None or not (is_member or _is_among(request.arrival_number, job.arrivals)):
        yield f"{title} is not known to its job {request.job_id}"
    elif (
        job.state is JobState.ENDED
        and request.state not in ENDED_REQUEST_STATES
        and request.job_id not in state.endings
    ):
        yield f"{title} is {request.state}, but its job {job.job_id} has ended"
    if job is not None and job.specified is not (request.spec.profile is not None):
        yield f"{title} is of another kind than its job's other requests"
    slot = state.slots.get((name, request.generation))
    # a gang is granted as a whole, so a carved slot may wait for others
    in_gang = bool(request.spec.gang_id)
    carved = slot is not None and slot.state is SlotState.ALLOCATED and in_gang
    if request.state is RequestState.ALLOCATING and not (
        carved or (slot is not None and slot.state is SlotState.PENDING)
    ):
        yield f"{title} is ALLOCATING, its slot is {slot.state if slot else 'missing'}"
    if request.state is RequestState.GRANTED and (
        slot is None or slot.state is not SlotState.ALLOCATED
    ):
        yield f"{title} is GRANTED, its slot is {slot.state if slot else 'missing'}"
    waits = request in state.queue or state.gangs.waits(request)
    over = request.job_id in state.endings  # some of its requests may have left the queue already
    if waits != (request.state is RequestState.PENDING) and (waits or not over):
        yield f"{title} is {request.state}, in queue: {waits}"
    if request.state in ENDED_REQUEST_STATES and request.end_time_ms is None:
        yield f"{title} ended without a time"


def _is_among(number: int, ordered: Sequence[int]) -> bool:
    at = bisect_left(ordered, number)
    return at < len(ordered) and ordered[at] == number


def _jobs(state: State) -> Iterator[str]:
    """Compares counters of jobs with their requests and slots."""
    slot_keys: dict[str, set[SlotKey]] = {}
    for key, slot in state.slots.items():
        slot_keys.setdefault(slot.job_id, set()).add(key)
    for job in state.jobs.values():
        requests = [state.requests.by_arrival.get(number) for number in job.arrivals]
        if None in requests:
            yield f"job {job.job_id} names a request that does not exist"
        living = sum(
            request is not None and request.state not in ENDED_REQUEST_STATES
            for request in requests
        ) + live(state.ranges.parts_of(job.job_id))
        if living != job.live_requests:
            yield f"job {job.job_id} counts {job.live_requests} live requests, there are {living}"
        keys = slot_keys.get(job.job_id, set())
        if keys != job.slot_keys:
            yield f"job {job.job_id} counts slots {sorted(job.slot_keys)}, there are {sorted(keys)}"
        if not job.trimmed_sequence <= job.last_sequence:
            yield f"job {job.job_id} forgot events that never were"
    live_requests = sum(job.live_requests for job in state.jobs.values())
    if live_requests != state.requests.live:
        yield f"{state.requests.live} live requests counted, there are {live_requests}"
    active = sum(job.state is JobState.ACTIVE for job in state.jobs.values())
    if active != state.live_jobs:
        yield f"{state.live_jobs} live jobs counted, there are {active}"


def _slots(requests: Requests, slots: Slots, hosts: Hosts) -> Iterator[str]:
    """Compares slots with their hosts and requests."""
    for key, slot in slots.items():
        host = hosts.get(slot.executor_id)
        if host is None or host.slots.get(key) is not slot:
            yield f"slot {key} is not in the books of its executor {slot.executor_id}"
        if slot.state is not SlotState.FREEING and requests.served_by(slot) is None:
            yield f"slot {key} is {slot.state} without a living request"
        request = requests.get(slot.allocation_id)
        lives = request is not None and request.state not in ENDED_REQUEST_STATES
        behind = slots.superseded.get(slot.allocation_id, [])
        if lives and (slot.state is SlotState.FREEING) != (slot in behind):
            yield f"slot {key} is {slot.state}, counted as left behind: {slot in behind}"
    for slot in chain.from_iterable(slots.superseded.values()):
        if (slot.allocation_id, slot.generation) not in slots:
            yield f"slot {slot.allocation_id}/{slot.generation} was left behind, and is gone"
    on_hosts = sum(len(host.slots) for host in hosts.values())
    if on_hosts != len(slots):
        yield f"executors hold {on_hosts} slots, the books {len(slots)}"


def _host(host: Host) -> Iterator[str]:
    """Compares sums and orders of a host with its slots."""
    title = f"executor {host.host_id}"
    executor = host.executor
    if executor.lost != (executor.state is ExecutorState.LOST):
        yield f"{title} is {executor.state} with lost={executor.lost}"
    if host.booked != total_of(slot.booked for slot in host.slots.values()):
        yield f"{title} has booked {host.booked}, which is not the sum of its slots"
    unreported = total_of(host.unreported_of(key, slot) for key, slot in host.slots.items())
    if host.unreported != unreported:
        yield f"{title} counts {host.unreported} as not reported, it is {unreported}"
    total = host.total
    over = {name for name, amount in host.booked.items() if amount > total.get(name, 0)}
    if over and not host.shrunk:
        yield f"{title} has promised more than it has of {sorted(over)}"
    limit = executor.registration.slots_max
    if limit and len(host.slots) > limit and not host.shrunk:
        yield f"{title} has {len(host.slots)} slots, at most {limit} are allowed"
    for slot in host.slots.values():
        yield from _order(host, slot)
    yield from resizes.sizes(host)
    yield from cpu_problems(host)
    in_flight = host.in_flight
    if in_flight is not None and in_flight.number != executor.command_number:
        yield (
            f"{title} has command {in_flight.number} in flight,"
            f" the last one sent is {executor.command_number}"
        )


def _sums(hosts: Hosts) -> Iterator[str]:
    in_use = sum(bool(host.slots) for host in hosts.values())
    if hosts.in_use != in_use:
        yield f"{hosts.in_use} hosts in use counted, there are {in_use}"


def _order(host: Host, slot: Slot) -> Iterator[str]:
    """Checks that an order is queued or in flight for each slot that starts or is being freed."""
    key = (slot.allocation_id, slot.generation)
    if slot.executor_id != host.host_id or host.slots.get(key) is not slot:
        yield f"slot {key} is filed under {host.host_id}, but on {slot.executor_id}"
    if host.executor.state is not ExecutorState.ACTIVE:
        return
    command = host.in_flight
    if slot.state is SlotState.PENDING:
        queued = key in host.to_allocate
        sent = command is not None and command.number == slot.placed_with_command
        # the next report or answer will say that it has ended
        ends = host.reported.get(key) is SlotState.FREEING
        if queued == sent and not (ends and not queued):
            yield f"slot {key} is PENDING; its order queued: {queued}, in flight: {sent}"
    if slot.state is SlotState.FREEING and not (
        key in host.to_free
        or (command is not None and key in command.keys)
        or host.reported.get(key) is SlotState.FREEING
    ):
        yield f"slot {key} is FREEING, but nobody was told or says so"
    if slot.state is not SlotState.FREEING and key in host.to_free:
        yield f"slot {key} is {slot.state}, but to be freed"


def _indexes(settings: EngineSettings, hosts: Hosts) -> Iterator[str]:
    """Compares the rows of the capacity indexes with the hosts."""
    for labels, index in hosts.indexes.all().items():
        yield from index.problems()
        for host_id, host in hosts.items():
            if host_id in hosts.touched:
                continue
            if index.knows(host_id) != carries(host, labels):
                yield f"index {labels}: holds {host_id} against its labels, or lacks it"
                continue
            if not index.knows(host_id):
                continue
            vector = {k: v for k, v in host.vector(settings.strategy).items() if v}
            if index.vector(host_id) != vector:
                yield f"index {labels}: {host_id} is {index.vector(host_id)}, should be {vector}"
