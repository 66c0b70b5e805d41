"""Checks each host against its slots, and the capacity indexes against the hosts; part of
`all.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import total_of
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.invariants.cpus import cpu_problems
from resource_manager.engine.invariants.resizes import is_waiting_in_queue, size_problems
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Slot, SlotKey
from resource_manager.engine.model.scheduling_key import Labels
from resource_manager.engine.placement.columns import columns_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def host_problems(hosts: Hosts, host_id: str) -> Iterator[str]:
    """Yields problems of a host: sums, sizes of slots, and cpus."""
    host = hosts.get(host_id)
    if host is None:
        return
    yield from _sums(host)
    yield from size_problems(host)
    yield from cpu_problems(host)


def slot_problems(state: State, key: SlotKey) -> Iterator[str]:
    """Yields problems of a slot: its order, host, request, job, and waiting resize."""
    slot = state.slots.get(key)
    if slot is None:
        return
    host = state.hosts.get(slot.executor_id)
    if host is None or host.slots.get(key) is not slot:
        yield f"slot {key} is not known to its executor {slot.executor_id}"
        return
    yield from _order(host, key, slot)
    yield from _slot(state.requests, state.slots, key, slot)
    job = state.jobs.get(slot.job_id)
    if job is not None and key not in job.slot_keys:
        yield f"slot {key} is not known to its job {slot.job_id}"
    if slot.wanted is not None:
        waits = is_waiting_in_queue(host, slot)
        is_queued = slot.wanted.arrival_number in state.queue.non_batchables
        if is_queued != waits:
            yield f"slot {key} waits for another size: {waits}; in the queue: {is_queued}"


def superseded_problems(slots: Slots, allocation_id: str) -> Iterator[str]:
    """Yields superseded slots of a request that do not exist."""
    for slot in slots.superseded.get(allocation_id, ()):
        if (slot.allocation_id, slot.generation) not in slots:
            yield f"slot {slot.allocation_id}/{slot.generation} was left behind, and is gone"


def host_sums(hosts: Hosts, slots: Slots) -> Iterator[str]:
    """Yields problems of the counters over all hosts."""
    on_hosts = [len(host.slots) for host in hosts.values()]
    if sum(on_hosts) != len(slots):
        yield f"executors hold {sum(on_hosts)} slots, there are {len(slots)}"
    in_use = sum(map(bool, on_hosts))
    if hosts.in_use != in_use:
        yield f"{hosts.in_use} hosts in use counted, there are {in_use}"


def index_problems(hosts: Hosts, labels: Labels) -> Iterator[str]:
    """Yields problems within the index of hosts with these labels."""
    index = hosts.indexes.all().get(labels)
    yield from index.problems() if index is not None else ()


def indexed_problems(hosts: Hosts, host_id: str) -> Iterator[str]:
    """Compares a host with its entries in the capacity indexes."""
    host = hosts.get(host_id)
    # A touched host has changed after the last update of the indexes.
    if host is None or host_id in hosts.touched:
        return
    # The index stores no zeros.
    vector = {k: v for k, v in columns_of(host, hosts.settings.strategy).items() if v}
    for labels, index in hosts.indexes.all().items():
        if index.knows(host_id) != host.carries(labels):
            yield f"index {labels}: holds {host_id} against its labels, or lacks it"
        elif index.knows(host_id) and index.vector(host_id) != vector:
            yield f"index {labels}: {host_id} is {index.vector(host_id)}, should be {vector}"


def _sums(host: Host) -> Iterator[str]:
    """Compares sums of a host with its slots."""
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
    # A host that has become smaller may have booked more than its total.
    if over and not host.shrunk:
        yield f"{title} has promised more than it has of {sorted(over)}"
    limit = executor.registration.slots_max
    if limit and len(host.slots) > limit and not host.shrunk:
        yield f"{title} has {len(host.slots)} slots, at most {limit} are allowed"
    in_flight = host.in_flight
    if in_flight is not None and in_flight.number != executor.command_number:
        yield (
            f"{title} has command {in_flight.number} in flight,"
            f" the last one sent is {executor.command_number}"
        )


def _slot(requests: Requests, slots: Slots, key: SlotKey, slot: Slot) -> Iterator[str]:
    """Compares a slot with its request."""
    if slot.state is not SlotState.FREEING and requests.served_by(slot) is None:
        yield f"slot {key} is {slot.state} without a living request"
    request = requests.get(slot.allocation_id)
    lives = request is not None and request.state not in ENDED_REQUEST_STATES
    superseded = slot in slots.superseded.get(slot.allocation_id, [])
    if lives and (slot.state is SlotState.FREEING) != superseded:
        yield f"slot {key} is {slot.state}, counted as left behind: {superseded}"


def _order(host: Host, key: SlotKey, slot: Slot) -> Iterator[str]:
    """Checks that an order is queued or in flight for a slot that starts or is being freed."""
    if (slot.allocation_id, slot.generation) != key:
        yield f"slot {slot.allocation_id}/{slot.generation} is filed under {key}"
    # Orders for an executor that is not active are created again when it registers.
    if host.executor.state is not ExecutorState.ACTIVE:
        return
    command = host.in_flight
    if slot.state is SlotState.PENDING:
        queued = key in host.to_allocate
        sent = command is not None and command.number == slot.placed_with_command
        # the executor already ends the slot, and the next report or answer will say so
        ends = host.reported.get(key) is SlotState.FREEING
        if queued == sent and not (ends and not queued):
            yield f"slot {key} is PENDING; its order queued: {queued}, in flight: {sent}"
    # Each of these leads to the deletion of the slot. Without one, the slot would never be deleted.
    if slot.state is SlotState.FREEING and not (
        key in host.to_free
        or (command is not None and key in command.keys)
        or host.reported.get(key) is SlotState.FREEING
    ):
        yield f"slot {key} is FREEING, and no order or report says so"
    if slot.state is not SlotState.FREEING and key in host.to_free:
        yield f"slot {key} is {slot.state}, but to be freed"
