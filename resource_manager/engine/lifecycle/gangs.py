"""What becomes of a gang: it is placed, granted, broken up and ended as a whole.

The members of a gang that have not ended stand in one and the same state. While they wait, the gang
has one place in line, that of its first member. It is placed in one decision, or not at all.
Members stay ALLOCATING until the executors have confirmed all of them, then all are granted at
once; whatever undoes one before that sends all back, and frees what the others have. So a job
master never sees half a gang, and no two gangs hold halves. After it was granted each slot goes its
own way, but for one thing: members that ask for another slot when theirs is lost
(`restart_on_loss`) go back into line together.

The moves of `lifecycle/moves.py` that a member cannot make alone stand here under the same names,
and do for requests without a gang what those do. Where there is room, `placement/gang_search.py`
knows; what is accepted, `requests/gang_intake.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from finegrain.errors import Reason
from resource_manager.engine.context import EventContext
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle import moves
from resource_manager.engine.model.entities import Gang, Request, RequestState, Slot
from resource_manager.engine.model.scheduling_key import SchedulingKey, scheduling_key
from resource_manager.engine.model.state_tables import GangInput
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.gang_room import Share
from resource_manager.engine.placement.gang_search import find_together, passed_by
from resource_manager.engine.placement.placement_pass import PlacementPass
from resource_manager.engine.queue.gangs import GangLedger, MemberRequest, WaitingGang, living
from resource_manager.engine.queue.non_batchable import NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.state import State


def waiting_gangs(gangs: GangLedger) -> Iterator[tuple[Gang, list[Request]]]:
    """Gangs that wait, in the order of their places in line, with their living members in order of
    arrival.
    """
    for waiting in gangs.in_line():
        yield waiting.gang, waiting.members


def wishes_now(slots: Slots, waiting: WaitingGang) -> tuple[MemberRequest, ...]:
    """What a gang that waits asks for, with the hosts that its members must not have now."""
    if any(each.allocation_id in slots.left_behind for each in waiting.members):
        return tuple(_by_wish(slots, waiting))
    return waiting.kind.wishes


def begin_to_wait(context: EventContext, gang: Gang) -> None:
    """Puts a new gang into the line."""
    if gang.spec.timeout_ms is not None:
        gang.waiting_until_ms = context.now_ms + gang.spec.timeout_ms
    queue_gang(context.state, gang)


def queue_gang(state: State, gang: Gang, *, tried: bool = False) -> None:
    """Puts a gang into the line, at its place."""
    members = list(living(state.requests, gang))
    state.gangs.begin_to_wait(gang, members, state.queue.singles, tried=tried)
    if gang.waiting_until_ms is not None:
        state.timers.arm(Timer.GANG, gang.gang_id, gang.waiting_until_ms)


def try_gang(context: EventContext, placing: PlacementPass, single: NonBatchable) -> bool:
    """Places all members of a gang that waits, if there is room for all of them."""
    state = context.state
    waiting = state.gangs.waiting[single.name]
    waiting.tried = True
    if passed_by(state.hosts, waiting.kind):
        return False
    wishes = wishes_now(state.slots, waiting)
    found = find_together(state.hosts, waiting, wishes)
    if found is None:
        return False
    place_together(context, waiting, wishes, found)
    placing.follow([state.hosts[name] for name in dict.fromkeys(share.host_id for share in found)])
    return True


def place_together(
    context: EventContext,
    waiting: WaitingGang,
    wishes: Sequence[MemberRequest],
    found: Iterable[Share],
) -> None:
    """Books slots for all members of a gang that waits, on hosts that have room for them; `wishes`
    are `wishes_now`.
    """
    state = context.state
    groups = _by_wish(state.slots, waiting)
    members = [iter(groups[wish]) for wish in wishes]
    for share in found:
        some = list(islice(members[share.wish], share.count))
        moves.place(context, some, state.hosts[share.host_id])
    state.transitions.move_gang(waiting.gang, GangInput.PLACE)
    state.gangs.unconfirmed[waiting.gang.gang_id] = len(waiting.members)
    state.gangs.stop_waiting(waiting.gang, state.queue.singles)


def confirm(
    context: EventContext, slot: Slot, *, isolation: dict[str, object] | None = None, cpus: str = ""
) -> None:
    """The executor carved the slot. The last one of a gang lets all of them be granted."""
    state = context.state
    gang = state.gangs.of(state.requests[slot.allocation_id])
    if gang is None:
        moves.confirm(context, slot, isolation=isolation, cpus=cpus)
        return
    moves.carve(context, slot, isolation=isolation, cpus=cpus)
    state.gangs.unconfirmed[gang.gang_id] -= 1
    if state.gangs.unconfirmed[gang.gang_id]:
        return
    del state.gangs.unconfirmed[gang.gang_id]
    state.transitions.move_gang(gang, GangInput.GRANT)
    gang.waiting_until_ms = None
    for request in living(state.requests, gang):
        moves.grant(context, state.slots[request.allocation_id, request.generation])


def requeue(context: EventContext, request: Request, slot: Slot, reason: str, message: str) -> None:
    """Back to the old place in line; a gang goes back as a whole.

    What becomes of the slot itself is the caller's next move.
    """
    gang = context.state.gangs.of(request)
    if gang is None:
        moves.requeue(context, request, slot, reason, message)
    else:
        _break_up(context, gang, request, reason, message)


def lose(context: EventContext, slot: Slot, reason: str, message: str) -> None:
    """The slot's request has lost it; likewise."""
    request = context.state.requests.served_by(slot)
    gang = context.state.gangs.of(request) if request is not None else None
    if request is None or gang is None:
        moves.lose(context, slot, reason, message)
        return
    if request.state is RequestState.GRANTED and not request.spec.restart_on_loss:
        moves.lose(context, slot, reason, message)
        return
    context.slot_event("slot_lost", slot, reason=reason, message=message)
    _break_up(context, gang, request, reason, message)


def decline(context: EventContext, slot: Slot) -> None:
    """Nobody accepted the executor's direct offer. (Members of a gang are not offered directly; if
    an executor does so all the same, a gang that is not granted yet goes back.)
    """
    request = context.state.requests.served_by(slot)
    if request is None or not request.spec.gang_id or request.state is not RequestState.ALLOCATING:
        moves.decline(context, slot)
        return
    lose(context, slot, Reason.OFFER_NOT_ACCEPTED, "its executor says that nobody accepted it")
    moves.vanish(context, slot)


def give_up(
    context: EventContext,
    request: Request,
    *,
    alone: bool = False,
    reason: str = "",
    message: str = "",
    grace_ms: int | None = None,
) -> None:
    """Ends a living request on somebody's wish, and with one of a gang that is not granted all of
    them.

    `alone`: the wish is about a slot that was granted. Its gang may have gone back into line while
    the wish was on its way; the others are waited with as before.
    """
    state = context.state
    gang = state.gangs.of(request)
    if gang is None or request.state is RequestState.GRANTED:
        moves.give_up(context, request, reason=reason, message=message, grace_ms=grace_ms)
        return
    waiting = state.gangs.waiting.get(gang.gang_id)
    if alone and waiting is not None and len(waiting.members) > 1:
        state.gangs.stop_waiting(gang, state.queue.singles)
        moves.give_up(context, request, reason=reason, message=message, grace_ms=grace_ms)
        queue_gang(state, gang, tried=waiting.tried)
        return
    _leave(state, gang, GangInput.END)
    gang.waiting_until_ms = None
    for member in list(living(state.requests, gang)):
        moves.give_up(context, member, reason=reason, message=message, grace_ms=grace_ms)


def take_out(gangs: GangLedger, queue: WaitingQueue, request: Request) -> None:
    """A request that waits shall not be placed any more: it is about to end."""
    gang = gangs.of(request)
    if gang is None:
        queue.remove(request)
    else:
        gangs.stop_waiting(gang, queue.singles)


def gang_rang(context: EventContext, gang_id: str) -> int:
    """Ends a gang that has waited for too long; answers with how many requests ended."""
    state = context.state
    waiting = state.gangs.waiting.get(gang_id)
    if waiting is None or waiting.gang.waiting_until_ms is None:
        return 0
    gang = waiting.gang
    if context.now_ms < (gang.waiting_until_ms or 0):
        state.timers.arm(Timer.GANG, gang_id, gang.waiting_until_ms or 0)
        return 0
    message = f"gang {gang_id} could not be placed as a whole within {gang.spec.timeout_ms} ms"
    why = (Reason.GANG_TIMEOUT, message)
    reject_gang(context, waiting, {member.allocation_id: why for member in waiting.members})
    return len(waiting.members)


def reject_gang(
    context: EventContext, waiting: WaitingGang, outcomes: Mapping[str, tuple[str, str]]
) -> None:
    """Ends a gang that may not wait any longer.

    Args:
        outcomes: reason and message by allocation id, for every member; the job master is told in
            this order.
    """
    state = context.state
    _leave(state, waiting.gang, GangInput.END)
    waiting.gang.waiting_until_ms = None
    for allocation_id, (reason, message) in outcomes.items():
        moves.reject(context, state.requests[allocation_id], reason, message)


def _leave(state: State, gang: Gang, what: GangInput) -> None:
    """It is not to be placed, nor are confirmations waited for."""
    state.transitions.move_gang(gang, what)
    state.gangs.stop_waiting(gang, state.queue.singles)
    state.gangs.unconfirmed.pop(gang.gang_id, None)


def _by_wish(slots: Slots, waiting: WaitingGang) -> dict[MemberRequest, list[Request]]:
    """The members, by what they ask for and which hosts they must not have."""
    alike: dict[tuple[SchedulingKey, frozenset[str]], list[Request]] = {}
    for request in waiting.members:
        holders = slots.left_behind.get(request.allocation_id, ())
        elsewhere = frozenset(slot.executor_id for slot in holders)
        alike.setdefault((scheduling_key(request.spec), elsewhere), []).append(request)
    return {
        MemberRequest(profile, labels, len(some), elsewhere, cpus): some
        for ((profile, labels, cpus), elsewhere), some in alike.items()
    }


def _break_up(
    context: EventContext, gang: Gang, culprit: Request, reason: str, message: str
) -> None:
    """All living members go back to their place in line. The slots of all but the culprit are
    taken down.
    """
    state = context.state
    was_granted = culprit.state is RequestState.GRANTED
    members = list(living(state.requests, gang))
    others = f"{culprit.allocation_id} of the same gang was lost: {message}"
    context.cluster_event(
        "gang_broken",
        job_id=gang.job_id,
        allocation_id=culprit.allocation_id,
        reason=reason,
        message=f"gang {gang.gang_id} goes back into line: {message}",
    )
    _leave(state, gang, GangInput.BREAK)
    for member in members:
        slot = state.slots[member.allocation_id, member.generation]
        if member is culprit:
            moves.requeue(context, member, slot, reason, message)
        else:
            moves.requeue(context, member, slot, Reason.GANG_BROKEN, others)
            moves.free(context, slot)
    if was_granted:
        gang.waiting_since_time_ms = context.at.time_ms
        state.changes.gang(gang)
        if gang.spec.timeout_ms is not None:
            gang.waiting_until_ms = context.now_ms + gang.spec.timeout_ms
    if gang.job_id not in state.endings:
        queue_gang(state, gang)
        state.rejection_clock.gang_requeued(gang.gang_id, context.now_ms)
