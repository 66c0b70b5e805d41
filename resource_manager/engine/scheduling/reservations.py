"""Makes and ends reservations. A reservation is capacity that hosts keep for a starved request,
gang or resize.

The scheduler places every request that fits, so small requests could delay a large request
indefinitely. To prevent this, the longest starved request, gang or resize becomes the owner of a
reservation. Candidates are the hosts that could serve the owner if all other slots on them ended.
The candidates with the smallest missing part (see `reservation_search.py`) are reserved. Other
requests can use the capacity of the reserved hosts that the owner does not need
(`ReservedCapacity.spare`). The owner is placed on its reserved hosts, at the latest when all slots
that existed at the time of the reservation have ended. If the owner fits on other hosts earlier, it
is placed on these other hosts.

Example: a request for 8 cpus is starved. Host a has 10 cpus and three slots of 2 cpus, so 4 cpus
are free, and half of the need is missing. Host b has 10 cpus and five slots of 2 cpus, so all of
the need is missing. Host a is reserved. Other requests can use 2 of its 4 free cpus, because 2 + 8
<= 10. Suppose that a new slot gets these 2 cpus. When the three old slots have ended, 2 + 3 * 2 = 8
cpus are free, and the owner is placed.

- A job has at most one reservation, a host keeps capacity for at most one owner, and at most
  `reservations_max` reservations exist.
- A job gets no reservation if it has received more than its fair share. This share is computed
  among the jobs that were served after the job's starvation clock started.
- Reserved capacity is idle for a while. So only the longest starved owner can reserve all capacity
  that it needs. All other owners together can reserve at most `reserved_part_max` of each resource.
- If all hosts that are suitable for an owner are reserved, the owner claims these hosts: owners
  that have been starved for a shorter time must not reserve them.
- A reservation ends when its owner is placed or is no longer pending. A reservation also ends when
  its hosts cannot serve the owner any more, and when a quota blocks the owner.
- Slots that do not end for a very long time are possibly services, which never end. So a
  reservation that waits for such slots expires. The owner's next reservation lasts twice as long.

If run times of slots are known, other requests can use the reserved capacity until the owner needs
it. The first waiter in order gets a planned reservation at once: see `backfill.py`. A waiter that
has declared its run time gets only planned reservations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from finegrain.cpu_policy import QosClass
from finegrain.resources import BEST_EFFORT_CPU_MILLI, subtract, total_of
from finegrain.values.states import SlotState
from resource_manager.engine.fairness.choice import SharesSince, order_key_of
from resource_manager.engine.fairness.flows import limited_title
from resource_manager.engine.fairness.quotas import QuotaBlock
from resource_manager.engine.hosts.host import ONLINE
from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.lifecycle.growth import growth
from resource_manager.engine.lifecycle.run_times import declares
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.scheduling_key import SLOTS, in_grains
from resource_manager.engine.model.settings import SECOND_MS
from resource_manager.engine.model.texts import amounts_text
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservation, ReservationOwner
from resource_manager.engine.queue.gangs import GangLedger, Share
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.starvation import Mark, StarvationClock, Waiter
from resource_manager.engine.scheduling.reservation_search import ReservationSearch, own_job_of
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

EXPIRES_AFTER = 48
"""A reservation expires after this time, given as a multiple of the starvation timeout."""

DOUBLED_MAX = 20
"""The lifetime of a reservation is doubled at most this many times. With the longest lifetime, a
reservation lasts for years.
"""

EARLIER_MAX = 64
"""An owner is compared with at most this many jobs that have earlier requests of the same class."""

RIVALS_MAX = 256
"""A waiter's job is compared with at most this many jobs that have smaller pending requests."""


def serve_owners(state: State) -> None:
    """Places owners whose hosts have room. Ends reservations that are not valid any more. The
    scheduling cycle must call this function before it places other requests.
    """
    for each in list(state.reservations.by_number.values()):
        why = _void(state, each) or _expired(state, each)
        if not why and has_room(state, each):
            ReservationSearch(state, each.owner).place(each)
            why = "placed there"
        # An owner that passes `_may_replace` only replaces an ended slot of its own job, so the job
        # gets no more capacity than before. The reservation stays for the job's next request.
        elif not why and _may_replace(search := ReservationSearch(state, each.owner), each):
            search.place(each)
            state.hosts.touch(state.hosts[next(iter(each.hosts))])
            why = "" if _passed_on(search, each) else "placed there"
        if why:
            end(state, each, why)


def end_served(state: State) -> bool:
    """Ends reservations whose owners were placed on other hosts. Returns whether a reservation
    ended, so that other requests can use its capacity.
    """
    reservations = state.reservations.by_number.values()
    served = [each for each in reservations if not each.owner.waits_in(state.queue)]
    ended = [
        each
        for each in served
        # After a gang or a resize was placed, there is no next request of the same class.
        if isinstance(each.owner.waiter, int)
        or not _passed_on(ReservationSearch(state, each.owner), each)
    ]
    for each in ended:
        end(state, each, "placed elsewhere")
    return bool(ended)


def _passed_on(search: ReservationSearch, each: Reservation) -> bool:
    """Passes a reservation on to the next request of the same job and class, if the job has still
    received less than its share. Returns False if there is no such request.

    The reservation stays, because the job probably has no more capacity than before: the last owner
    was probably placed on capacity that the job itself had given back.
    """
    state, waiter = search.state, each.owner.waiter
    if isinstance(waiter, int) or state.settings.fairness.order != "fair" or each.planned:
        return False
    owner = owner_of(state, waiter)
    if owner is None or owner.number in state.reservations.by_number:
        return False
    if not SharesSince(state.flows).is_owed(owner.job_id, each.starved_since.ms):
        return False
    del state.reservations.by_number[each.owner.number]
    each.owner = owner
    state.reservations.by_number[owner.number] = each
    return True


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


def reserve_planned(search: ReservationSearch) -> None:
    """Reserves the hosts on which an owner will have room first, if it is known when they will have
    room. If the owner fits there now, places the owner.
    """
    state, times = search.state, search.state.run_times
    clock = state.queue.starvation.get(search.owner.waiter)
    shares = search.choose(state.reservations.on_host)
    if shares is None or clock is None:
        return
    # If it is not known when the hosts will have room, the owner gets no plan, but a reservation
    # when the owner is starved.
    ready = (
        times.ready_ms(state.hosts[name], search.booked(state.hosts[name], some))
        for name, some in shares.items()
    )
    if all(each is not None for each in ready):
        _make(search, shares, clock, clock.since, planned=True)


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
    _make(search, shares, clock, since)


def _make(
    search: ReservationSearch,
    shares: dict[str, list[Share]],
    clock: StarvationClock,
    since: Mark,
    *,
    planned: bool = False,
) -> None:
    """Makes a reservation on these hosts. If the owner fits on these hosts now, places the owner
    instead.
    """
    state, owner = search.state, search.owner
    reservations = state.reservations
    # Best-effort slots run on all cpus that no LSE slot has. New best-effort slots, one after
    # another, could keep the last cpu from an LSE slot indefinitely. So the host must get no new
    # best-effort slots.
    exclusive = any(each.cpus and each.cpus[0].qos is QosClass.LSE for each in search.requests)
    barred = frozenset({BEST_EFFORT_CPU_MILLI} if exclusive else ())
    hosts = {}
    for name, some in shares.items():
        amounts = search.booked(state.hosts[name], some)
        slots = amounts.pop(SLOTS, 0)
        # The owner waits only for the end of the slots in `before`. Slots that are booked later
        # must leave room for the owner.
        here, own_job = state.hosts[name].slots, own_job_of(owner)
        before = {key: each.booked for key, each in here.items() if each.job_id != own_job}
        own = total_of(each.booked for each in here.values() if each.job_id == own_job)
        hosts[name] = ReservedCapacity(amounts, slots, before, barred, own_job, own)
    doubled = min(clock.expired, DOUBLED_MAX)
    lasts_ms = EXPIRES_AFTER * state.settings.fairness.starvation_timeout_ms * 2**doubled
    made = Reservation(
        owner=owner,
        requests=search.requests,
        shares=shares,
        hosts=hosts,
        starved_since=since,
        since_time_ms=state.journal.at.time_ms,
        until_ms=state.journal.now_ms + lasts_ms,
        version=state.hosts.version,
        lacking=next(iter(hosts)),
        planned=planned,
    )
    # The search for reservations finds placements that the search of `Placer` does not find. So the
    # owner possibly fits now.
    if has_room(state, made):
        search.place(made)
        for name in hosts:
            state.hosts.touch(state.hosts[name])
        return
    reservations.by_number[owner.number] = made
    for name, kept in hosts.items():
        state.hosts[name].reserved = kept
        # Update the index at once, because the search for the next owner reads the index.
        state.hosts.indexes.follow(state.hosts[name])
    what = f"{len(hosts)} executors are reserved for it"
    if len(hosts) == 1:
        ((name, kept),) = hosts.items()
        what = f"{amounts_text(kept.amounts)} are reserved for it on {name}"
    # A plan is made again at every check, so plans get no entry in the history.
    if not planned:
        _record(state, "reservation_made", made, f"{owner.title} waited too long: {what}")


def end(state: State, ended: Reservation, why: str) -> None:
    state.reservations.remove(ended)
    for host in (state.hosts[name] for name in ended.hosts if name in state.hosts):
        host.reserved = None
        state.hosts.touch(host)
        # A reserved host has no room for topology-constrained classes even if amounts are free. So
        # these classes must be tried again when the reservation has ended.
        state.hosts.indexes.log_growth(host, state.queue)
    if not ended.planned:
        _record(state, "reservation_ended", ended, f"{ended.owner.title}: {why}")


def _record(state: State, kind: str, about: Reservation, message: str) -> None:
    state.journal.cluster_event(
        kind,
        executor_id=next(iter(about.hosts)) if len(about.hosts) == 1 else "",
        job_id=about.owner.job_id,
        allocation_id=about.owner.allocation_id,
        message=message,
    )


def _void(state: State, each: Reservation) -> str:
    """Returns the reason why a reservation is no longer valid. The reason is empty if the
    reservation is valid.
    """
    if not each.owner.waits_in(state.queue):
        return "it no longer waits"
    # While `hosts.version` is unchanged, every reserved host would still be suitable if it were
    # empty. But refusals and reports do not change the version. So always check hosts that refused
    # a slot, and the host that lacked capacity at the last check.
    names = [each.lacking, *(name for name in state.hosts.refusing if name in each.hosts)]
    if each.version != state.hosts.version:
        each.version, names = state.hosts.version, list(each.hosts)
    if not ReservationSearch(state, each.owner).suits(each, names):
        return "its executors could no longer serve it, even when empty"
    block = _quota_block_of(state, each.owner.waiter)
    return f"a maximum of {limited_title(block.group_id)} blocks it" if block else ""


def _expired(state: State, each: Reservation) -> str:
    """Returns the reason why a reservation has expired. The reason is empty if the reservation has
    not expired. Adds the slots that did not end in time to `outlasting`, so that other reservations
    do not wait for their end.
    """
    # If the hosts have room, `serve_owners` places the owner in this cycle. A plan waits only for
    # slots whose end is known.
    if each.planned or state.journal.now_ms < each.until_ms or has_room(state, each):
        return ""
    lasting = [
        (name, key)
        for name, kept in each.hosts.items()
        if _lacks(state.hosts, each, name)
        for key, slot in state.hosts[name].slots.items()
        if key in kept.before and slot.state is not SlotState.FREEING and key != each.owner.slot
    ]
    # All slots of `before` have ended or are being freed, so the missing capacity is possibly free
    # soon.
    if not lasting:
        each.until_ms = state.journal.now_ms + state.settings.fairness.starvation_timeout_ms
        return ""
    outlasting = state.reservations.outlasting
    # Forget slots that have ended.
    outlasting.intersection_update(state.slots)
    outlasting.update(key for _, key in lasting)
    clock = state.queue.starvation.get(each.owner.waiter)
    if clock is not None:
        # The owner's next reservation lasts twice as long, so that a long slot does not outlast
        # every reservation.
        clock.expired += 1
    where, (allocation_id, _) = lasting[0]
    more = f" and {len(lasting) - 1} more" if len(lasting) > 1 else ""
    return f"slot {allocation_id}{more} on executor {where} did not end for too long"


def has_room(state: State, each: Reservation) -> bool:
    """Returns whether the owner fits on its reserved hosts now."""
    # Check the host that lacked capacity at the last check first, because it probably still lacks
    # capacity.
    for name in (each.lacking, *each.hosts):
        if _lacks(state.hosts, each, name):
            each.lacking = name
            return False
    return ReservationSearch(state, each.owner).fits_now(each)


def _lacks(hosts: Hosts, each: Reservation, name: str) -> bool:
    host, kept = hosts[name], each.hosts[name]
    # Do not count the capacity that the owner's job itself has given back.
    free = subtract(host.free(), kept.given_back(host.slots)) if kept.own else host.free()
    return any(kept.missing(free, host.slots_left()))


def _may_replace(search: ReservationSearch, each: Reservation) -> bool:
    """Returns whether the owner can replace ended slots of its own job on the reserved host."""
    (name, kept), *others = each.hosts.items()
    host = search.state.hosts[name]
    if others or not kept.own or any(kept.missing(host.free(), host.slots_left())):
        return False
    return search.fits_now(each)


def owner_of(state: State, waiter: Waiter) -> ReservationOwner | None:
    """Returns the owner that a reservation for a waiter would have. If the waiter stands for a
    job's requests of one class, the owner is the oldest of these requests.

    Returns None if the waiter is not pending any more, or if a maximum blocks the waiter. Such a
    block ends only by an event, such as the end of a slot, and not because time passes.
    """
    if _quota_block_of(state, waiter) is not None:
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


def _quota_block_of(state: State, waiter: Waiter) -> QuotaBlock | None:
    """Returns the maximum that blocks a waiter, or None if no maximum blocks the waiter."""
    if not isinstance(waiter, int):
        return state.quotas.request_block(*waiter)
    item = state.queue.non_batchables.get(waiter)
    return state.quotas.non_batchable_block(item) if item is not None else None
