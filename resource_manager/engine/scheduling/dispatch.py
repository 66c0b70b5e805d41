"""Sends numbered commands to executors.

An executor has at most one command in flight. There are three kinds of commands. FreeSlots frees
many slots, AllocateSlots allocates many slots, and ResizeSlot resizes one slot.

- FreeSlots is sent first, because it makes room on the executor. FreeSlots delays other commands
  only for a limited time: an executor can free only slots that were allocated before.
- ResizeSlot and AllocateSlots alternate. So even if many orders of one kind wait, they delay an
  order of the other kind by only one command. The sequence does not affect capacity, because the
  capacity for all these orders is already booked. Both wait until slots that are being revoked have
  ended.
"""

from __future__ import annotations

from itertools import islice

from finegrain.errors import InvariantBroken
from finegrain.mapping.copies import copier
from finegrain.values.states import ExecutorState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import Command
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize, SlotOrder
from resource_manager.engine.model.entities import Executor, Job, Slot
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def dispatch(state: State) -> None:
    """Sends the next command to each executor in the outbox that has no command in flight. Repeats
    commands whose retry is due.
    """
    executor_ids = sorted(state.outbox)
    # An answer to a command adds the executor to the outbox again, and so does the retry timer.
    state.outbox.clear()
    for executor_id in executor_ids:
        host = state.hosts.get(executor_id)
        if host is None or host.executor.state is not ExecutorState.ACTIVE:
            continue  # the registration adds the executor to the outbox again
        if host.reach.unreachable:
            continue  # a probe that reaches the executor adds the executor to the outbox again
        command = host.in_flight
        if command is None:
            _send_next(state, host)
        elif command.retry_at_ms is not None and command.retry_at_ms <= state.journal.now_ms:
            command.retry_at_ms = None
            # The repeated command has the same number and content, so that the executor recognizes
            # it.
            state.journal.effects.append(command.effect)


def _send_next(state: State, host: Host) -> None:
    most = state.settings.command_items_max
    executor = host.executor
    # Send no allocations and no resizes while slots are being revoked. Their capacity is booked for
    # other slots, but the executor still needs it for the revoked slots.
    to_allocate = host.to_allocate if not host.revoked else ()
    to_resize = host.to_resize if not host.revoked else ()
    if host.to_free and host.frees_paused_until_ms <= state.journal.now_ms:
        keys = tuple(islice(host.to_free, most))
        executor.command_number += 1
        free = SendFree(
            executor_id=host.host_id,
            address=executor.registration.address,
            registration_number=executor.registration_number,
            command_number=executor.command_number,
            slots=tuple((key[0], key[1], host.slots[key].grace_ms) for key in keys),
            known_report_number=executor.report_number,
        )
        host.in_flight = Command(free, keys)
        state.journal.effects.append(free)
        # The command that frees these slots is in flight now. If the executor cannot free a slot,
        # `_free_failed` adds the slot to `to_free` again.
        for key in keys:
            del host.to_free[key]
    elif to_resize and not (host.resized_last and to_allocate):
        host.resized_last = True
        _send_resize(state.journal, host)
    elif to_allocate:
        host.resized_last = False
        _send_allocate(state.journal, state.requests, state.jobs, host, most)


def _send_allocate(
    journal: Journal, requests: Requests, jobs: dict[str, Job], host: Host, most: int
) -> None:
    executor = host.executor
    keys = tuple(islice(host.to_allocate, most))
    executor.command_number += 1
    allocate = SendAllocate(
        executor_id=host.host_id,
        address=executor.registration.address,
        registration_number=executor.registration_number,
        command_number=executor.command_number,
        orders=tuple(_order(requests, jobs, host.slots[key], executor) for key in keys),
        known_report_number=executor.report_number,
    )
    host.in_flight = Command(allocate, keys)
    journal.effects.append(allocate)
    for key in keys:
        del host.to_allocate[key]


def _send_resize(journal: Journal, host: Host) -> None:
    executor, key = host.executor, next(iter(host.to_resize))
    del host.to_resize[key]
    ordered = host.slots[key].ordered
    if ordered is None:
        raise InvariantBroken(f"slot {key} is queued for a resize, but no resize is ordered")
    executor.command_number += 1
    resize = SendResize(
        executor_id=host.host_id,
        address=executor.registration.address,
        registration_number=executor.registration_number,
        command_number=executor.command_number,
        allocation_id=key[0],
        generation=key[1],
        resize=ordered,
    )
    host.in_flight = Command(resize, (key,))
    journal.effects.append(resize)


_copy = copier(Slot, Slot)


def _order(requests: Requests, jobs: dict[str, Job], slot: Slot, executor: Executor) -> SlotOrder:
    slot.placed_with_command = executor.command_number
    return SlotOrder(
        # Copy the slot, because it can change before the effect is sent.
        slot=_copy(slot),
        owner=jobs[slot.job_id].owner,
        target_address=requests[slot.allocation_id].spec.target_address,
    )
