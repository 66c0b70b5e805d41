"""Makes reservations, places their owners, and ends reservations. A reservation is capacity that
hosts keep for a starved request, gang or resize.

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

- `starved.py` decides which starved waiters get reservations.
- A job has at most one reservation, a host keeps capacity for at most one owner, and at most
  `reservations_max` reservations exist.
- A reservation ends when its owner is placed or is no longer pending. A reservation also ends when
  its hosts cannot serve the owner any more, and when a quota blocks the owner.
- Slots that do not end for a very long time are possibly services, which never end. So a
  reservation that waits for such slots expires. The owner's next reservation lasts twice as long.

If run times of slots are known, other requests can use the reserved capacity until the owner needs
it. The first waiter in order gets a planned reservation at once: see `backfill.py`. A waiter that
has declared its run time gets only planned reservations.
"""

from __future__ import annotations

from finegrain.cpu_policy import QosClass
from finegrain.resources import BEST_EFFORT_CPU_MILLI, subtract, total_of
from finegrain.values.states import SlotState
from resource_manager.engine.fairness.choice import SharesSince
from resource_manager.engine.fairness.flows import limited_title
from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.model.scheduling_key import SLOTS
from resource_manager.engine.model.texts import amounts_text
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.queue.gangs import Share
from resource_manager.engine.queue.starvation import Mark, StarvationClock
from resource_manager.engine.scheduling.owners import owner_of, quota_block_of
from resource_manager.engine.scheduling.reservation_search import ReservationSearch, own_job_of
from resource_manager.engine.state import State

EXPIRES_AFTER = 48
"""A reservation expires after this time, given as a multiple of the starvation timeout."""

DOUBLED_MAX = 20
"""The lifetime of a reservation is doubled at most this many times. With the longest lifetime, a
reservation lasts for years.
"""


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


def make(
    search: ReservationSearch,
    shares: dict[str, list[Share]],
    clock: StarvationClock,
    since: Mark,
    *,
    planned: bool = False,
) -> None:
    """Makes a reservation on these hosts. If the owner fits on these hosts now, places the owner
    instead.

    Args:
        search: the search that has found the hosts for the owner.
        shares: the hosts, each with the members that it gets.
        clock: the starvation clock of the owner.
        since: the mark from which the owner's wait counts.
        planned: True if the owner is not starved, but is the first in order.
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
    block = quota_block_of(state, each.owner.waiter)
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
