"""Who stands in line, and who cannot have a host because an older slot of his is still there."""

from __future__ import annotations

from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Gang, Slot
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.queue.gangs import living
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def queue_gang(state: State, gang: Gang, *, tried: bool = False) -> None:
    """Puts a gang into the line, at its place."""
    members = list(living(state.requests, gang))
    state.gangs.begin_to_wait(gang, members, state.queue.singles, tried=tried)
    if gang.waiting_until_ms is not None:
        state.timers.arm(Timer.GANG, gang.gang_id, gang.waiting_until_ms)


def leave_behind(requests: Requests, slots: Slots, slot: Slot) -> None:
    """A slot is being taken down; its request, if it lives on, is to have another one."""
    request = requests.get(slot.allocation_id)
    if request is not None and request.state not in ENDED_REQUEST_STATES:
        slots.leave_behind(slot)


def no_longer_behind(state: State, slot: Slot) -> None:
    """A slot that may have been left behind is gone, or its request's again."""
    if not state.slots.no_longer_behind(slot):
        return
    request = state.requests.get(slot.allocation_id)  # none: a member that has ended
    gang = state.gangs.of(request) if request is not None else None
    if gang is not None:
        state.queue.singles.wake(gang.arrival_number)  # it may go there now
