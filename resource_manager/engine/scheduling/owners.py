"""Looks up what a waiter would be as the owner of a reservation: its request, gang or resize, the
run time that it has declared, and the maximum that blocks it.
"""

from __future__ import annotations

from collections.abc import Iterator

from resource_manager.engine.fairness.quotas import QuotaBlock
from resource_manager.engine.lifecycle.run_times import declares
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.placement.reserved import ReservationOwner
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.starvation import Waiter
from resource_manager.engine.state import State


def owner_of(state: State, waiter: Waiter) -> ReservationOwner | None:
    """Returns the owner that a reservation for a waiter would have. If the waiter stands for a
    job's requests of one class, the owner is the oldest of these requests.

    Returns None if the waiter is not pending any more, or if a maximum blocks the waiter. Such a
    block ends only by an event, such as the end of a slot, and not because time passes.
    """
    if quota_block_of(state, waiter) is not None:
        return None
    if not isinstance(waiter, int):
        scheduling_class, job_id = waiter
        job_queue = scheduling_class.job_queues.get(job_id)
        if job_queue is None:
            return None
        number = job_queue.numbers.first
        return ReservationOwner(number, job_id, state.requests.at(number).allocation_id, waiter)
    item = state.queue.non_batchables.get(waiter)
    if item is None:
        return None
    if item.kind is Kind.RESIZE:
        slot = item.name, item.generation
        return ReservationOwner(waiter, item.job_id, item.name, waiter, slot=slot)
    first = state.gangs.waiting[item.name].members[0].allocation_id
    return ReservationOwner(waiter, item.job_id, first, waiter, item.name)


def first_specs(
    requests: Requests, queue: WaitingQueue, gangs: GangLedger, waiter: Waiter
) -> Iterator[tuple[RequestSpec, str]]:
    """Yields the spec of a waiter's first request, or of all members of its gang, with the id of
    the job. For a resize, yields nothing.
    """
    if not isinstance(waiter, int):
        if (job_queue := waiter[0].job_queues.get(waiter[1])) is not None:
            yield requests.at(job_queue.numbers.first).spec, waiter[1]
        return
    item = queue.non_batchables.get(waiter)
    if item is not None and item.kind is Kind.GANG:
        for member in gangs.waiting[item.name].members:
            yield member.spec, item.job_id


def has_declared(
    requests: Requests, queue: WaitingQueue, gangs: GangLedger, waiter: Waiter
) -> bool:
    """Returns whether a waiter's first request has an expected run time or a time limit."""
    spec, _ = next(first_specs(requests, queue, gangs, waiter), (None, ""))
    return spec is not None and declares(spec)


def quota_block_of(state: State, waiter: Waiter) -> QuotaBlock | None:
    """Returns the maximum that blocks a waiter, or None if no maximum blocks the waiter."""
    if not isinstance(waiter, int):
        return state.quotas.request_block(*waiter)
    item = state.queue.non_batchables.get(waiter)
    return state.quotas.non_batchable_block(item) if item is not None else None
