"""Checks each host against its slots, including their cpus and resizes. Also checks the capacity
indexes against the hosts. `all.py` runs these checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from finegrain.neighbors import Level
from finegrain.resources import CPU_MILLI, larger_of, total_of
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.neighbors import broken_rules
from resource_manager.engine.hosts.cpu_allocator import cpus_booked
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Slot, SlotKey
from resource_manager.engine.model.scheduling_key import Labels
from resource_manager.engine.placement.columns import columns_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State

MILLI_PER_CPU = 1_000


def cpu_problems(host: Host) -> Iterator[str]:
    """Yields problems of the cpus of a host: its ledger, settings, and assignments to slots."""
    title, ledger = f"executor {host.host_id}", host.cpus
    # Without a ledger, the host has not reported its topology, and only `aligning` can be checked.
    if ledger is None:
        if host.aligning:
            yield f"{title} aligns all slots, but its cpus are unknown"
        return
    if host.aligning != host.present.policy.alignment.aligns:
        yield f"{title} aligns all slots: {host.aligning}; its settings say: {not host.aligning}"
    if ledger.policy != host.present.policy:
        yield f"the cpu ledger of {title} has settings {ledger.policy}, not {host.present.policy}"
    for problem in ledger.problems():
        yield f"{title}: {problem}"
    yield from _holdings(host, ledger)
    for key, rule in broken_rules(ledger):
        # Only rules of the level HOST always hold. A host that registers with another topology can
        # break rules of lower levels.
        if rule.level is Level.HOST:
            yield f"{title}: slot {key} must be {rule}, but such a slot is on the same host"


def _labeled_slots(hosts: Hosts) -> Iterator[str]:
    """Yields problems of the table of slots with labels or rules about neighbors."""
    found = Counter(
        (host.host_id, slot.policy)
        for host in hosts.values()
        for slot in host.slots.values()
        if slot.policy is not None and not slot.revoked_for
    )
    if found != hosts.labeled.counts():
        yield f"the table of labeled slots has {hosts.labeled.counts()}, expected {dict(found)}"


def _holdings(host: Host, ledger: CpuLedger) -> Iterator[str]:
    """Compares the cpus in the ledger with the assignments of slots."""
    assigned: dict[SlotKey, object] = dict(ledger.holdings)
    for key, slot in host.slots.items():
        if slot.revoked_for:  # it has ended when other slots start
            continue
        if key not in assigned:
            yield f"slot {key} is not in the cpu ledger of its executor {host.host_id}"
            continue
        if ledger.neighbors.get(key) != slot.policy:
            yield f"slot {key} has other labels or rules in the cpu ledger than its request"
        if assigned.pop(key) != cpus_booked(slot):
            yield f"slot {key} has other cpus or NUMA nodes in the cpu ledger than in its row"
        assignment = slot.assignment
        # While a resize is in flight, the slot books the larger amounts of both sizes.
        if assignment is None or not assignment.cpus or slot.ordered:
            continue
        booked = slot.booked.get(CPU_MILLI, 0)
        if booked != len(assignment.cpus) * MILLI_PER_CPU:
            yield f"slot {key} has dedicated cpus {assignment.cpus}, but books {booked} cpu_milli"
    for key in assigned:
        yield f"the cpu ledger of executor {host.host_id} has slot {key}, which has ended"


def size_problems(host: Host) -> Iterator[str]:
    """Yields problems of the bookings and the resizes of a host's slots.

    Each ordered resize must be queued for a command, be part of the command in flight, or be in
    back-off.
    """
    for key, slot in host.slots.items():
        yield from _booking(host, key, slot)
        yield from _numbers(key, slot)
        if host.executor.state is ExecutorState.ACTIVE:
            yield from _resize_order(host, key, slot)
    for key in (*host.to_resize, *host.resize_backoffs):
        if key not in host.slots:
            yield f"executor {host.host_id} has a resize of slot {key}, which does not exist"


def is_waiting_in_queue(host: Host, slot: Slot) -> bool:
    """Returns True if the waiting resize of a slot must be in the queue: the slot is ALLOCATED, no
    other resize of the slot is ordered, and its resizes are not in back-off.
    """
    key = (slot.allocation_id, slot.generation)
    backoff = host.resize_backoffs.get(key)
    pauses = backoff is not None and backoff.active
    return slot.state is SlotState.ALLOCATED and slot.ordered is None and not pauses


def _booking(host: Host, key: SlotKey, slot: Slot) -> Iterator[str]:
    best_effort = slot.best_effort
    booked = host.booking_of(slot.profile, best_effort=best_effort)
    booked = host.without_vanished(booked, slot.assignment)
    if slot.ordered is not None:
        ordered = host.booking_of(slot.ordered.profile, best_effort=best_effort)
        assignment = slot.ordered.assignment or slot.assignment
        booked = larger_of(booked, host.without_vanished(ordered, assignment))
    if slot.revoked_for:
        booked = {}
    if slot.booked != booked:
        yield f"slot {key} books {slot.booked}, expected {booked} by its size"


def _numbers(key: SlotKey, slot: Slot) -> Iterator[str]:
    ordered, wanted = slot.ordered, slot.wanted
    numbers = [each.number for each in (ordered, wanted) if each is not None]
    # The ordered resize was requested before the waiting resize, so the ordered resize must have
    # the lower number.
    if numbers != sorted(set(numbers)) or any(n > slot.resize_number or n < 1 for n in numbers):
        yield f"slot {key} has resizes {numbers}, but its last number is {slot.resize_number}"


def _resize_order(host: Host, key: SlotKey, slot: Slot) -> Iterator[str]:
    command = host.in_flight
    queued = key in host.to_resize
    sent = command is not None and command.resizes and key in command.keys
    backoff = host.resize_backoffs.get(key)
    pauses = backoff is not None and backoff.active
    # `slot.ordered` stays set while the slot is being freed, but the resize is not sent again.
    due = slot.ordered is not None and slot.state is SlotState.ALLOCATED
    if due and not (queued or sent or pauses):
        yield f"the ordered resize of slot {key} is not queued, in flight or in back-off"
    if queued and not due:
        yield f"slot {key} is {slot.state} and queued for a resize that was not ordered"


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
    yield from _revoked(host, slot)
    yield from _slot(state.requests, state.slots, key, slot)
    job = state.jobs.get(slot.job_id)
    if job is not None and key not in job.slot_keys:
        yield f"slot {key} is not known to its job {slot.job_id}"
    if slot.wanted is not None:
        waits = is_waiting_in_queue(host, slot)
        is_queued = slot.wanted.arrival_number in state.queue.non_batchables
        if is_queued != waits:
            yield f"slot {key} waits for a resize: {waits}; in the queue: {is_queued}"


def _revoked(host: Host, slot: Slot) -> Iterator[str]:
    """Compares a slot with the lists of revocable and revoked slots of its host."""
    key = (slot.allocation_id, slot.generation)
    if (key in host.revocable) != slot.revocable or host.revoked.get(key, "") != slot.revoked_for:
        yield f"executor {host.host_id} does not list slot {key} as revocable or revoked"
    if not slot.revoked_for:
        return
    # The slot for which this slot is revoked can be FREEING, until its executor reports that the
    # slot does not exist.
    own = next((each for key, each in host.slots.items() if key[0] == slot.revoked_for), None)
    if slot.state is not SlotState.FREEING or not slot.revocable:
        yield f"slot {key} is {slot.state}, revocable: {slot.revocable}, and it is being revoked"
    if own is None:
        yield f"slot {key} is revoked for {slot.revoked_for}, which has no slot on its executor"


def superseded_problems(slots: Slots, allocation_id: str) -> Iterator[str]:
    """Yields the superseded slots of a request that are listed, but do not exist."""
    for slot in slots.superseded.get(allocation_id, ()):
        if (slot.allocation_id, slot.generation) not in slots:
            yield f"superseded slot {slot.allocation_id}/{slot.generation} does not exist"


def host_sums(hosts: Hosts, slots: Slots) -> Iterator[str]:
    """Yields problems of the counters over all hosts."""
    on_hosts = [len(host.slots) for host in hosts.values()]
    if sum(on_hosts) != len(slots):
        yield f"executors have {sum(on_hosts)} slots, but there are {len(slots)}"
    in_use = sum(map(bool, on_hosts))
    if hosts.in_use != in_use:
        yield f"the counter of hosts in use is {hosts.in_use}, expected {in_use}"
    yield from _labeled_slots(hosts)


def index_problems(hosts: Hosts, labels: Labels) -> Iterator[str]:
    """Yields problems within the index of hosts with these labels."""
    index = hosts.indexes.all().get(labels)
    yield from index.problems() if index is not None else ()


def indexed_problems(hosts: Hosts, host_id: str) -> Iterator[str]:
    """Compares a host with its entries in the capacity indexes."""
    host = hosts.get(host_id)
    # Skip touched hosts: they have changed since the last update of the indexes.
    if host is None or host_id in hosts.touched:
        return
    # The index stores no zeros.
    vector = {k: v for k, v in columns_of(host, hosts.settings.strategy).items() if v}
    for labels, index in hosts.indexes.all().items():
        if index.knows(host_id) != host.carries(labels):
            yield f"index {labels}: has {host_id}: {index.knows(host_id)}; its labels differ"
        elif index.knows(host_id) and index.vector(host_id) != vector:
            yield f"index {labels}: {host_id} has {index.vector(host_id)}, expected {vector}"


def _sums(host: Host) -> Iterator[str]:
    """Compares sums of a host with its slots."""
    title = f"executor {host.host_id}"
    executor = host.executor
    if executor.lost != (executor.state is ExecutorState.LOST):
        yield f"{title} is {executor.state} with lost={executor.lost}"
    if host.booked != total_of(slot.booked for slot in host.slots.values()):
        yield f"{title} has booked {host.booked}, which is not the sum over its slots"
    unreported = total_of(host.unreported_of(key, slot) for key, slot in host.slots.items())
    if host.unreported != unreported:
        yield f"{title} counts {host.unreported} as not reported, expected {unreported}"
    if host.known_free is not None and host.known_free != host.compute_free():
        yield f"{title} has {host.compute_free()} free, but counts {host.known_free}"
    total = host.total
    over = {name for name, amount in host.booked.items() if amount > total.get(name, 0)}
    # The slots of a host that has become smaller (`shrunk`) are allowed to have booked more than
    # its total.
    if over and not host.shrunk:
        yield f"{title} has booked more than its total of {sorted(over)}"
    limit = executor.registration.slots_max
    if limit and host.slot_count > limit and not host.shrunk:
        yield f"{title} has {host.slot_count} slots, but at most {limit} are allowed"
    in_flight = host.in_flight
    if in_flight is not None and in_flight.number != executor.command_number:
        yield (
            f"{title} has command {in_flight.number} in flight,"
            f" but the last number sent is {executor.command_number}"
        )


def _slot(requests: Requests, slots: Slots, key: SlotKey, slot: Slot) -> Iterator[str]:
    """Compares a slot with its request."""
    if slot.state is not SlotState.FREEING and requests.served_by(slot) is None:
        yield f"slot {key} is {slot.state}, but serves no live request"
    request = requests.get(slot.allocation_id)
    lives = request is not None and request.state not in ENDED_REQUEST_STATES
    superseded = slot in slots.superseded.get(slot.allocation_id, [])
    if lives and (slot.state is SlotState.FREEING) != superseded:
        yield f"slot {key} is {slot.state}; superseded: {superseded}"


def _order(host: Host, key: SlotKey, slot: Slot) -> Iterator[str]:
    """Checks the order for a slot that starts or is being freed: the order must be queued or in
    flight.
    """
    if (slot.allocation_id, slot.generation) != key:
        yield f"slot {slot.allocation_id}/{slot.generation} is stored under {key}"
    # If the executor is not active, nothing is checked: the orders are created again when the
    # executor registers.
    if host.executor.state is not ExecutorState.ACTIVE:
        return
    command = host.in_flight
    if slot.state is SlotState.PENDING:
        queued = key in host.to_allocate
        sent = command is not None and command.number == slot.placed_with_command
        # The executor already frees the slot. The next report or answer of the executor shows that
        # the slot has ended.
        ends = host.reported.get(key) is SlotState.FREEING
        if queued == sent and not (ends and not queued):
            yield f"slot {key} is PENDING; its order queued: {queued}, in flight: {sent}"
    # Three things lead to the deletion of the slot: a queued order, a command in flight, or a
    # report of the executor that the slot is FREEING. If none of these three exists, the slot is
    # never deleted.
    if slot.state is SlotState.FREEING and not (
        key in host.to_free
        or (command is not None and key in command.keys)
        or host.reported.get(key) is SlotState.FREEING
    ):
        yield f"slot {key} is FREEING, but has no order or report that frees it"
    if slot.state is not SlotState.FREEING and key in host.to_free:
        yield f"slot {key} is {slot.state}, but has an order that frees it"
