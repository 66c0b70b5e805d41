"""Decides which starved requests, gangs and resizes get reservations (see `reservations.py`).

Waiters are examined in the order of their waits, the longest wait first:

- A job gets no reservation if it has received more than its fair share. This share is computed
  among the jobs that were served after the job's starvation clock started.
- Reserved capacity is idle for a while. So only the longest starved owner can reserve all capacity
  that it needs. All other owners together can reserve at most `reserved_part_max` of each resource.
- If all hosts that are suitable for an owner are reserved, the owner claims these hosts: owners
  that have been starved for a shorter time must not reserve them.
- A waiter that has declared its run time gets only planned reservations (see `backfill.py`).
"""

from __future__ import annotations

from itertools import islice

from finegrain.resources import total_of
from resource_manager.engine.fairness.choice import SharesSince, order_key_of
from resource_manager.engine.hosts.host import ONLINE
from resource_manager.engine.lifecycle.growth import growth
from resource_manager.engine.model.scheduling_key import in_grains
from resource_manager.engine.model.settings import SECOND_MS
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.reserved import ReservationOwner
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.starvation import Mark, StarvationClock, Waiter
from resource_manager.engine.scheduling.owners import has_declared, owner_of
from resource_manager.engine.scheduling.reservation_search import ReservationSearch
from resource_manager.engine.scheduling.reservations import make
from resource_manager.engine.state import State

CHECK_INTERVAL_MS = SECOND_MS
"""The shortest time between two examinations of starved waiters."""

EXAMINED_MAX = 250
"""The limit for examined waiters in one check. The next check continues where this check
stopped.
"""

SEARCH_COST = 125
"""A search for hosts counts as at least this number of examined waiters."""

HOSTS_PER_WAITER = 20
"""A search of this number of hosts counts as one examined waiter."""

SEARCHED_FOR_MS = 60 * SECOND_MS
"""After this time, a failed search is repeated even if no host has changed."""

EARLIER_MAX = 64
"""An owner is compared with at most this many jobs that have earlier requests of the same class."""

RIVALS_MAX = 256
"""A waiter's job is compared with at most this many jobs that have smaller pending requests."""


def reserve_for_starved(state: State) -> None:
    """Makes reservations for starved waiters. The indexes must be up to date."""
    reservations = state.reservations
    if not state.settings.fairness.reservations_max:
        return
    # If a starvation clock has run long enough since the last check, the next check is due at once.
    more = state.queue.starvation.is_over(reservations.next_since, state.settings.fairness)
    if more or state.journal.now_ms >= reservations.due_ms:
        _check(state)
    # Set the timer for the next moment at which a check can have a new result without another
    # event: a starvation clock has run long enough, or a reservation expires.
    next_ms = reservations.next_since.ms + state.settings.fairness.starvation_timeout_ms
    wake_ms = [next_ms, *(each.until_ms for each in reservations.by_number.values())]
    # A further check can make a reservation only if passing time can change its result, or if a
    # request was placed.
    if reservations.stuck or state.flows.placements > reservations.placements:
        wake_ms.append(reservations.due_ms)
    wake_ms = [each for each in wake_ms if each > state.journal.now_ms]
    if wake_ms:
        state.timers.arm(Timer.STARVATION, "", min(wake_ms))


def _check(state: State) -> None:
    """Examines starved waiters in the order of their waits, the longest wait first. Reserves hosts
    for some of them.
    """
    reservations = state.reservations
    fairness, now_ms = state.settings.fairness, state.journal.now_ms
    # Only when all waiters have been examined, the examination starts again with the longest
    # starved waiter.
    waiting, reservations.next_since = state.queue.starvation.starved(fairness)
    if not reservations.unexamined:
        # The list is reversed, because `pop` takes from its end.
        reservations.unexamined = list(waiting)[::-1]
        # The examination starts again, so waiters claim hosts again.
        reservations.claimed = set()
    # Drop the results of failed searches when hosts have changed, or when `SEARCHED_FOR_MS` are
    # over.
    version, until_ms = reservations.searched_as_of
    if not reservations.searched or version != state.hosts.version or now_ms >= until_ms:
        reservations.searched_as_of = state.hosts.version, now_ms + SEARCHED_FOR_MS
        reservations.searched.clear()
    # Examine waiters until the budget of one check is used up.
    shares = SharesSince(state.flows)
    budget, time_may_help = EXAMINED_MAX, False
    while reservations.unexamined and budget > 0:
        # No further reservation is possible. When a reservation has ended, the examination starts
        # again with all waiters.
        if len(reservations) >= fairness.reservations_max:
            reservations.unexamined.clear()
            break
        waiter = reservations.unexamined.pop()
        budget -= 1
        owner, clock = owner_of(state, waiter), state.queue.starvation.get(waiter)
        # A waiter that has declared its run time is skipped below: it gets a plan when it is the
        # first in order.
        if owner is None or clock is None:
            continue
        if has_declared(state.requests, state.queue, state.gangs, waiter):
            continue
        if reservations.of_job(owner.job_id):
            continue
        since = _starved_since(state, waiter, clock)
        if (
            since is None
            or not _is_owed(state, shares, owner, clock.since)
            or not _may_reserve(state, owner, since)
        ):
            # Each of the three conditions above can change as time passes, or when other requests
            # are placed.
            time_may_help = True
        elif waiter in reservations.searched:
            # Waiters that have been starved for a shorter time must not get hosts that are suitable
            # for this waiter.
            reservations.claimed |= reservations.searched[waiter]
        else:
            _reserve(ReservationSearch(state, owner), clock, since)
            budget -= max(SEARCH_COST, len(state.hosts) // HOSTS_PER_WAITER)
    reservations.stuck = time_may_help or bool(reservations.unexamined)
    reservations.placements = state.flows.placements
    reservations.due_ms = now_ms + CHECK_INTERVAL_MS


def _starved_since(state: State, waiter: Waiter, clock: StarvationClock) -> Mark | None:
    """Returns the mark from which the wait of a starved waiter counts: the last placement of one of
    its requests or, without a placement, the start of its starvation clock. Returns None if the
    waiter is not starved.

    In one case, a waiter counts as starved before the timeout: the order is fair, and the waiter's
    job comes before a running job with smaller pending requests. When a small slot of the running
    job ends, the free capacity is too small for the waiter, and the running job gets it again. So
    without a reservation, requests of the waiter would be placed only by chance.
    """
    mark, flows = clock.served or clock.since, state.flows
    if state.queue.starvation.is_over(mark, state.settings.fairness):
        return mark
    if isinstance(waiter, int) or state.settings.fairness.order != "fair":
        return None
    need, own = needs_of(waiter[0]).pooled, order_key_of(flows, flows.jobs[waiter[1]])
    smaller = (
        flows.jobs[job_id]
        for other in state.queue.classes()
        if any(needs_of(other).pooled.get(name, 0) < amount for name, amount in need.items())
        for job_id in other.job_queues
    )
    rivals = islice(smaller, RIVALS_MAX)
    ahead = any(flow.running and order_key_of(flows, flow) > own for flow in rivals)
    return mark if ahead else None


def _comes_first_in_job(queue: WaitingQueue, owner: ReservationOwner, since: Mark) -> bool:
    """Returns False if the job has waiting requests with a higher priority than the owner, and
    requests of their class were placed since `since`.
    """
    waiter = owner.waiter
    if isinstance(waiter, int):
        item = queue.non_batchables.get(waiter)
        priority = item.priority if item is not None else 0
    else:
        priority = waiter[0].lane.priority
    for each in queue.by_job.get(owner.job_id, ()):
        if each.priority > priority:
            clock = queue.starvation.get((each.scheduling_class, owner.job_id))
            if clock is not None and clock.served is not None and clock.served >= since:
                return False
    return True


def _is_owed(state: State, shares: SharesSince, owner: ReservationOwner, since: Mark) -> bool:
    """Returns whether the owner's job has received at most its share since `since`."""
    if state.settings.fairness.order == "fair":
        return _comes_first_in_job(state.queue, owner, since) and shares.is_owed(
            owner.job_id, since.ms
        )
    if isinstance(owner.waiter, int):
        return True
    # Requests are served in order of arrival, so an owner must not overtake earlier requests of its
    # class.
    scheduling_class, _ = owner.waiter
    # An earlier request that a quota blocks does not count, because it would not be served first.
    return all(
        state.quotas.request_block(scheduling_class, earlier.job_id) is not None
        for earlier in scheduling_class.first_queues(EARLIER_MAX)
        if earlier.numbers.first < owner.number
    )


def _may_reserve(state: State, owner: ReservationOwner, since: Mark) -> bool:
    """Returns whether an owner is allowed to reserve capacity.

    The longest starved owner is always allowed to reserve capacity. For any other owner, the sum of
    its need and all reservations must stay within `reserved_part_max`. This sum does not include
    the reservation of the longest starved owner.
    """
    starved = (each for each in state.reservations.by_number.values() if not each.planned)
    in_order = sorted(starved, key=lambda each: each.order)
    if not in_order or (since.ms, owner.number) < in_order[0].order:
        return True
    # `in_order[0]` is the reservation of the longest starved owner, which does not count in the
    # sum.
    kept = (kept.amounts for each in in_order[1:] for kept in each.hosts.values())
    if not isinstance(owner.waiter, int):
        need = state.quotas.largest_booking(owner.waiter[0])
    elif owner.slot is not None:
        need = growth(state.hosts.of(state.slots[owner.slot]), state.slots[owner.slot])
    else:
        need = state.quotas.gang_need(state.gangs.waiting[owner.gang_id])
    whole = in_grains(total_of((need, *kept)))
    part, sums = state.settings.fairness.reserved_part_max, state.hosts.indexes.main.sums
    return all(amount <= part * sums.get(ONLINE + name, 0) for name, amount in whole.items())


def _reserve(search: ReservationSearch, clock: StarvationClock, since: Mark) -> None:
    """Reserves the best hosts for an owner. If the owner fits on these hosts now, places the owner
    instead. If all suitable hosts are reserved or claimed, the owner claims these hosts, too.
    """
    reservations, owner = search.state.reservations, search.owner
    taken = reservations.claimed.union(reservations.on_host)
    shares = search.choose(taken)
    if shares is None:
        # Search again without regard to reservations and claims, to find the hosts that the owner
        # can get later.
        found = frozenset((search.choose(()) or ()) if taken else ())
        reservations.searched[owner.waiter] = found
        reservations.claimed |= found
        return
    make(search, shares, clock, since)
