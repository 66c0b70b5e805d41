"""Checks the gang ledger against requests, slots and queue; part of `all.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import Gang, Request
from resource_manager.engine.queue.gangs import GangLedger, living, member_requests_of
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def gang_problems(state: State) -> Iterator[str]:
    """Yields what is wrong with gangs."""
    ledger = state.gangs
    members = Counter(r.spec.gang_id for r in state.requests.values() if r.spec.gang_id)
    if members != Counter({name: len(gang.members) for name, gang in ledger.by_id.items()}):
        yield f"gangs have members {ledger.by_id.keys()}, requests belong to {dict(members)}"
    for gang in ledger.by_id.values():
        yield from _gang(state.requests, state.slots, state.gangs, state.endings, gang)
    for name in ledger.waiting.keys() | ledger.unconfirmed.keys():
        if name not in ledger.by_id:
            yield f"gang {name} is not known, and waits or is being confirmed"
    in_order = {
        item.name: item.arrival_number
        for item in state.queue.non_batchables.all()
        if item.kind is Kind.GANG
    }
    waiting = {name: each.gang.arrival_number for name, each in ledger.waiting.items()}
    if in_order != waiting:
        yield f"gangs {in_order} stand in line, {waiting} wait"
    by_job: Counter[str] = Counter()
    for each in ledger.waiting.values():
        by_job[each.gang.job_id] += len(each.kind.member_requests)
    if by_job != ledger.by_job:
        yield f"what gangs of a job wait with is counted as {ledger.by_job}, there is {by_job}"


def _gang(
    requests: Requests, slots: Slots, gangs: GangLedger, endings: dict[str, Ending], gang: Gang
) -> Iterator[str]:
    """Compares a gang with its members: one state, one place in the queue, confirmations."""
    title, ledger = f"gang {gang.gang_id}", gangs
    first = requests.get(gang.members[0])
    if first is None or first.arrival_number != gang.arrival_number:
        yield f"{title} does not stand at the place of its first member"
    members = list(living(requests, gang))
    if any(each.job_id != gang.job_id or each.spec.gang_id != gang.gang_id for each in members):
        yield f"{title} has members that are not its own"
    states = {each.state for each in members}
    over = gang.job_id in endings  # some of its members may have left the queue already
    if len(states) > 1:
        yield f"{title} has members that are {sorted(states)}; expected all alike"
    waiting = ledger.waiting.get(gang.gang_id)
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
