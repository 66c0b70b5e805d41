"""Capacity that is held for those who were passed over for too long.

Decides who gets a *reservation*, on which hosts, and when it ends. While one stands, its hosts show
everybody else only what is free beyond it (`Host.spare`): they backfill with that, and nothing they
take can delay the holder. So he is placed at the latest when everything has ended that was on his
hosts when the reservation was made. He is placed there as soon as there is room, or elsewhere if
that comes first.

Nothing is held for whoever has received more than his share beside those who were served meanwhile:
he is not passed over, it is not his turn.

It moves to other hosts when one of its own is lost, drained, cannot be dialled, has become too
small or refuses him. It ends when he is placed or waits no more, and while a maximum of his group
stops him. A host holds for one at a time, a job is held for once at a time, and there are
`reservations_max` at most, for those passed over longest. Nothing here is durable: after a restart
those who still starve get theirs anew.

Nobody knows when a slot ends. Whoever waits for very long for one, which may be a service and never
end at all, gives up what is held for him and tries other hosts; from then on nobody waits for that
slot. He is more patient each time, so that he is placed in the end if slots end at all.

What is held stands idle for a while. So only whoever was passed over longest has as much held as he
needs; the others together hold no more than `reserved_part_max` of anything. And where somebody
finds no hosts only because they are held for others, those that would do are held for nobody who
was passed over for less, until he has his. So everybody is the one who was passed over longest in
the end.

Refuses to know what the holders are (`reservation_owners.py`), who is passed over
(`fairness/starvation.py`), whether it is somebody's turn (`passed_over.py`), which hosts are best
(`reservation_search.py`) and whether what is held can stay (`reservation_upkeep.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from enum import Enum, auto

from finegrain.cpu_policy import QosClass
from finegrain.resources import BEST_EFFORT_CPU_MILLI, add, total_of
from resource_manager.engine.context import EventContext
from resource_manager.engine.fairness.starvation import Blocked, Mark, StarvationRecord
from resource_manager.engine.hosts.host import ONLINE
from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks
from resource_manager.engine.model.scheduling_key import in_grains
from resource_manager.engine.model.settings import SECOND_MS
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.reserved import Place, Reservation
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.scheduling.passed_over import Turns, needs_help, since_served
from resource_manager.engine.scheduling.reservation_owners import (
    RequestOwner,
    ReservationOwner,
    owner_of,
    owner_waiting_as,
)
from resource_manager.engine.scheduling.reservation_upkeep import has_room, outlasted, stop_of, void
from resource_manager.engine.state import State

HEADS_LOOKED_AT_MAX = 64
"""Jobs that wait with the same, those who came first, of which one is chosen in one look."""

TRIED_MAX = 4
"""Searches for hosts in vain that one look makes; the others have to wait for the next one."""

LOOKED_AT_MAX = 1_000
"""Jobs that one look goes through, counted once for each of the shapes that they starve with."""

PATIENCE = 48
"""So many times the starvation timeout it is waited for the slots on hosts that are held to end;
and twice as long each time that it was in vain.
"""

DOUBLED_MAX = 20
"""That is years."""

HOPELESS_MS = 60 * SECOND_MS
"""Whoever no hosts would do for is searched for again after this, if they have not changed."""


class _Help(Enum):
    """What came of trying to help somebody who starves."""

    DONE = auto()  # something is held for him now; or nobody of them waits any more
    NOT_NOW = auto()  # he comes later, or what he needs is more than may be held beside others
    HOPELESS = auto()  # no hosts would do, whatever ended
    BLOCKED = auto()  # hosts would do that others have or come before


def serve_holders(context: EventContext) -> None:
    """Places holders whose hosts have room, ends what is void. To be called before anybody else is
    served.
    """
    for each in list(context.state.reservations.all()):
        why = void(context.state, each) or outlasted(context, each)
        if why:
            _end(context, each, why)
        elif has_room(context.state, each):
            owner_of(each).settle(context, each.place)
            _end(context, each, "placed there")


def end_served(context: EventContext) -> bool:
    """Ends what is held for those who were placed elsewhere; True if there was anybody. To be
    called after others were served: what is free now is theirs.
    """
    over = [
        each for each in context.state.reservations.all() if not owner_of(each).waits(context.state)
    ]
    for each in over:
        _end(context, each, "placed elsewhere")
    return bool(over)


def hold_for_starving(context: EventContext) -> None:
    """Makes reservations for those who starve. The indexes must be fresh."""
    state, starvation = context.state, context.state.starvation
    if starvation.is_due(context.now_ms):
        starvation.checked(context.now_ms, stuck=_look(context))
    due_ms = [each.until_ms for each in state.reservations.all()]
    if (next_ms := starvation.next_due_ms()) is not None:
        due_ms.append(next_ms)
    if due_ms:
        state.timers.arm(Timer.STARVATION, "", min(due_ms))


def _look(context: EventContext) -> bool:
    """Helps those who starve, who were passed over longest first, as far as may be; True: for some
    that may be right later though nothing happens but that time passes.
    """
    state, starvation, books = context.state, context.state.starvation, context.state.reservations
    turns = Turns(state)
    hopeless: list[StarvationRecord] = []
    stuck, looked, blocked = False, 0, 0
    taken = set(books.on_host)  # and what those blocked come first at
    those = starvation.starved(context.now_ms, state.numbers.arrival)
    first, starvation.resume_at = starvation.resume_at, 0
    for at, passed in enumerate(those[first:], first):
        if len(books) >= state.settings.fairness.reservations_max:
            break
        if looked >= LOOKED_AT_MAX or len(hopeless) == TRIED_MAX:
            starvation.resume_at, stuck = at - len(hopeless), True
            break
        if passed.is_hopeless(state.hosts.version, context.now_ms):
            continue
        looked += _weight(passed)
        help_ = _help(context, passed, turns, taken)
        taken.update(books.on_host)
        if help_ is _Help.BLOCKED and passed.blocked is not None:
            taken |= passed.blocked.hosts
            blocked += 1
            if blocked == TRIED_MAX:
                break
        if help_ is _Help.HOPELESS:
            passed.hopeless = state.hosts.version, context.now_ms + HOPELESS_MS
            hopeless.append(passed)
        stuck = stuck or help_ is _Help.NOT_NOW
    starvation.move_last(hopeless)
    return stuck


def _weight(passed: StarvationRecord) -> int:
    """As how many jobs somebody counts."""
    who = passed.waiter
    return min(len(who.job_queues), HEADS_LOOKED_AT_MAX) if isinstance(who, SchedulingClass) else 1


def tried_in_vain(context: EventContext, who: SchedulingClass | int) -> None:
    """Somebody had a turn and did not fit."""
    state = context.state
    if who not in state.starvation:
        state.starvation.start(who, _since_ms(context, who), state.numbers.arrival)


def _help(
    context: EventContext, passed: StarvationRecord, turns: Turns, taken: Collection[str]
) -> _Help:
    """Holds capacity for the first of those who starve together for whom that is right, on none of
    the hosts `taken`.
    """
    state, books = context.state, context.state.reservations
    found = _Help.DONE
    for holder in _holders(state, passed):
        if holder.job_id in books.by_job:
            continue
        found = _Help.NOT_NOW
        mark = passed.of(holder.number)
        if mark is None or not state.starvation.has_starved(mark, context.now_ms):
            continue
        if not turns.is_passed_over(holder.job_id, mark.since_ms):
            continue
        if isinstance(holder, RequestOwner):
            if not needs_help(context, holder.line):
                continue
            mark = since_served(holder.line, mark)
        if not _may_be_held(state, holder, mark):
            continue
        as_of = books.ended, len(taken), context.now_ms // HOPELESS_MS
        if passed.blocked is not None and passed.blocked.as_of == as_of:
            return _Help.BLOCKED
        place = holder.choose(state, taken)
        if place is None:  # nor is there one for others who wait with the same
            return _blocked(state, passed, holder, as_of) if taken else _Help.HOPELESS
        passed.blocked = None
        if stop_of(state.flows, holder, place) is None:
            _hold(context, holder, place, mark, passed.outlasted)
            return _Help.DONE
    return found


def _blocked(
    state: State, passed: StarvationRecord, holder: ReservationOwner, as_of: tuple[int, int, int]
) -> _Help:
    """Notes which hosts would do for a holder that others have. They stay the same, so that there
    are fewer and fewer of them that others have.
    """
    version = state.hosts.version, len(state.reservations.outlasted_by)
    before = passed.blocked
    if before is not None and before.version == version:
        passed.blocked = Blocked(version, as_of, before.hosts)
        return _Help.BLOCKED
    place = holder.choose(state, ())
    passed.blocked = Blocked(version, as_of, frozenset(place.held)) if place is not None else None
    return _Help.BLOCKED if place is not None else _Help.HOPELESS


def _may_be_held(state: State, holder: ReservationOwner, mark: Mark) -> bool:
    """True if a holder was passed over longer than all for whom something is held, or if he may
    have as much beside them.
    """
    marks = {each.holder.number: each.passed_over for each in state.reservations.all()}
    marks[holder.number] = mark
    longest = min(marks, key=lambda number: (marks[number].since_ms, number))
    if longest == holder.number:
        return True
    whole = in_grains(holder.need_at_most(state))
    for each in state.reservations.all():
        if each.holder.number != longest:
            whole = add(whole, in_grains(total_of(h.amounts for h in each.place.held.values())))
    part, sums = state.settings.fairness.reserved_part_max, state.hosts.indexes.main.sums
    return all(amount <= part * sums.get(ONLINE + name, 0) for name, amount in whole.items())


def _hold(
    context: EventContext, holder: ReservationOwner, place: Place, mark: Mark, in_vain: int
) -> None:
    """Makes a reservation; whoever has room at once does not need one."""
    state = context.state
    patience_ms = PATIENCE * state.settings.fairness.starvation_timeout_ms
    made = Reservation(
        holder=holder,
        place=place,
        passed_over=mark,
        since_time_ms=context.at.time_ms,
        lacking=next(iter(place.held)),
        version=state.hosts.version,
        until_ms=context.now_ms + patience_ms * 2 ** min(in_vain, DOUBLED_MAX),
    )
    if has_room(state, made):  # an exact search finds more than the usual one
        holder.settle(context, place)
        for name in place.held:
            state.hosts.touch(state.hosts[name])
        return
    state.reservations.add(made)
    # Best-effort slots run wherever LSE slots do not: one after the other could keep those off the
    # last cpu for ever.
    exclusive = any(wish.cpus and wish.cpus[0].qos is QosClass.LSE for wish in place.wishes)
    barred = frozenset({BEST_EFFORT_CPU_MILLI} if exclusive else ())
    for name, held in place.held.items():
        host = state.hosts[name]
        before = {key: slot.booked for key, slot in host.slots.items()}
        host.reserved = ReservedCapacity(held.amounts, held.slots, before, barred)
        state.hosts.indexes.follow(host)
    _tell(context, "reservation_made", made, _what_is_held(made))


def _holders(state: State, passed: StarvationRecord) -> Iterator[ReservationOwner]:
    """Who they are that are passed over, the longest waiting first: of those who wait with the
    same, the first of each job.
    """
    who = passed.waiter
    if isinstance(who, int):
        item = state.queue.non_batchables.get(who)
        if item is None:
            state.starvation.stop(who)
        elif state.quotas.non_batchable_block(item) is None:
            yield owner_waiting_as(state.slots, state.gangs, item)
    if not isinstance(who, SchedulingClass):
        return
    if not who.waiting:
        state.starvation.stop(who)
        return
    # In order of arrival nobody is passed over by those who came earlier and ask for the same.
    most = HEADS_LOOKED_AT_MAX if state.settings.fairness.order == "fair" else 1
    for job_queue in _first_queues(state.quotas, who, most):
        yield RequestOwner(state.requests.at(job_queue.numbers.first), job_queue)


def _first_queues(
    quotas: QuotaChecks, scheduling_class: SchedulingClass, most: int
) -> list[JobQueue]:
    """The lines of those who wait longest with a shape and whom no maximum stops, so many at most;
    all lines are looked at only where very many of the first are stopped.
    """
    near = scheduling_class.first_queues(2 * most)
    found = [
        job_queue
        for job_queue in near
        if quotas.request_block(scheduling_class, job_queue.job_id) is None
    ]
    if len(found) < most and len(near) == 2 * most:
        every = (
            job_queue
            for job_queue in scheduling_class.job_queues.values()
            if quotas.request_block(scheduling_class, job_queue.job_id) is None
        )
        return heapq.nsmallest(most, every, key=lambda job_queue: job_queue.numbers.first)
    return found[:most]


def _end(context: EventContext, ended: Reservation, why: str) -> None:
    state = context.state
    state.reservations.remove(ended)
    state.starvation.check_at_once()
    for name in ended.place.held:
        host = state.hosts.get(name)
        if host is not None:
            host.reserved = None
            state.hosts.touch(host)
            # Whom it has to be asked about had no room there, whatever amounts were left over.
            state.hosts.indexes.log_growth(host, state.queue)
    _tell(context, "reservation_ended", ended, f"{ended.holder.title}: {why}")


def _what_is_held(made: Reservation) -> str:
    held, title = made.place.held, made.holder.title
    if len(held) > 1:
        return f"{title} was passed over for too long: {len(held)} executors are held for it"
    name, kept = next(iter(held.items()))
    amounts = ", ".join(f"{dim} {amount}" for dim, amount in kept.amounts.items())
    return f"{title} was passed over for too long: {amounts} are held for it on {name}"


def _tell(context: EventContext, kind: str, about: Reservation, message: str) -> None:
    held = about.place.held
    context.journal.cluster_event(
        kind,
        executor_id=next(iter(held)) if len(held) == 1 else "",
        job_id=about.holder.job_id,
        allocation_id=about.holder.allocation_id,
        message=message,
    )


def _since_ms(context: EventContext, who: SchedulingClass | int) -> int:
    """From when it counts that somebody is passed over. Waiting before a restart counts, by wall
    time; that of a slot that is to grow, or of whoever has had a slot before, is not known.
    """
    state = context.state
    waiting_since_ms: int | None = None
    if isinstance(who, SchedulingClass):
        head = who.head()
        if head is not None and head <= state.restored_arrival:
            first = state.requests.at(head)
            waiting_since_ms = None if first.generation else first.create_time_ms
    elif who <= state.restored_arrival:
        item = state.queue.non_batchables.get(who)
        waiting = state.gangs.waiting.get(item.name) if item is not None else None
        if waiting is not None:
            waiting_since_ms = waiting.gang.waiting_since_time_ms
    if waiting_since_ms is None:
        return context.now_ms
    waited_ms = max(0, state.started.time_ms - waiting_since_ms)
    return state.started.monotonic_ms - waited_ms
