"""Checks the gang ledger against requests, slots and queue; part of `all.py`."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import Gang, Request
from resource_manager.engine.queue.gangs import GangLedger, living, member_requests_of
from resource_manager.engine.queue.non_batchable import Kind, NonBatchables
from resource_manager.engine.queue.requests import Requests


def gang_problems(
    gang_id: str,
    *,
    requests: Requests,
    slots: Slots,
    gangs: GangLedger,
    items: NonBatchables,
    endings: dict[str, Ending],
) -> Iterator[str]:
    """Yields problems of a gang.

    Args:
        gang_id: the gang; nothing is checked if it no longer exists.
        requests: all requests.
        slots: all slots.
        gangs: all gangs.
        items: queued gangs and resizes, which are not in job queues.
        endings: jobs that are ending.
    """
    gang = gangs.by_id.get(gang_id)
    if gang is None:  # it was deleted after the sweep began
        return
    for name in gang.members:
        request = requests.get(name)
        if request is None or request.spec.gang_id != gang_id:
            yield f"gang {gang_id} has the member {name}, which is not its own"
            return
    if len(set(gang.members)) != len(gang.members):
        yield f"gang {gang_id} has a member twice"
    item = items.get(gang.arrival_number)
    queued = item is not None and item.kind is Kind.GANG and item.name == gang_id
    if queued != (gang_id in gangs.waiting):
        yield f"gang {gang_id} waits: {gang_id in gangs.waiting}; in the queue: {queued}"
    yield from _gang(requests, slots, gangs, endings, gang)


def gang_ledger_problems(ledger: GangLedger) -> Iterator[str]:
    """Yields gangs that are waiting or unconfirmed in the ledger, but that do not exist in it."""
    for name in (ledger.waiting.keys() | ledger.unconfirmed.keys()) - ledger.by_id.keys():
        yield f"gang {name} is not known, and waits or is being confirmed"


def _gang(
    requests: Requests, slots: Slots, gangs: GangLedger, endings: dict[str, Ending], gang: Gang
) -> Iterator[str]:
    """Compares a gang with its members: their states, their place in the queue, confirmations."""
    title, ledger = f"gang {gang.gang_id}", gangs
    first = requests.get(gang.members[0])
    if first is None or first.arrival_number != gang.arrival_number:
        yield f"{title} does not stand at the place of its first member"
    members = list(living(requests, gang))
    if any(each.job_id != gang.job_id or each.spec.gang_id != gang.gang_id for each in members):
        yield f"{title} has members that are not its own"
    states = {each.state for each in members}
    over = gang.job_id in endings  # then some members may have left the queue already
    # Until the grant, all members change state together. If a member is lost, either only that
    # member ends, or all members change state.
    if len(states) > 1:
        yield f"{title} has members that are {sorted(states)}; expected all alike"
    waiting = ledger.waiting.get(gang.gang_id)
    # If the job is ending, the gang leaves the queue before its members end.
    if (waiting is not None) != (states == {RequestState.PENDING}) and (
        waiting is not None or not over
    ):
        yield f"{title} is {sorted(states)}, waits: {waiting is not None}"
    if waiting is not None and (
        waiting.members != members or waiting.kind.member_requests != member_requests_of(members)
    ):
        yield f"{title} waits with other members than it has"
    missing = sum(_is_unconfirmed(slots, each) for each in members)
    if ledger.unconfirmed.get(gang.gang_id, 0) != missing or (
        states == {RequestState.ALLOCATING} and not missing
    ):
        yield (
            f"{title} is {sorted(states)} and waits for {ledger.unconfirmed.get(gang.gang_id)}"
            f" confirmations, {missing} are missing"
        )


def _is_unconfirmed(slots: Slots, request: Request) -> bool:
    slot = slots.of(request)
    return slot is not None and slot.state is SlotState.PENDING
