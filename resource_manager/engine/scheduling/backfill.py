"""Implements EASY backfilling: plans the start of the first waiter, and places other waiters on the
reserved hosts before this start. A waiter is a gang, or the waiting requests of one job and
scheduling class.

Source: D. A. Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995). If the engine knows when slots
will end (`lifecycle/run_times.py`), it can reserve capacity for a later moment, and use the
capacity until this moment:

1. *Plan.* If the first waiter in order has declared a run time, it gets a *planned* reservation at
   once. The start is the first moment at which enough hosts will have room for this waiter, if
   slots end as expected. If more hosts than needed will have room by then, the hosts that will
   have room last are reserved, so that the other hosts can be used for any length of time. When
   slots have ended or the order has changed, the plan is made again.
2. *Backfill.* If the slots of a waiter will probably end before the planned start, the waiter can
   use all free capacity of the reserved hosts. The hosts that are reserved for starved owners are
   included. All other waiters can use only the capacity that the owner does not need
   (`ReservedCapacity.spare`).

Example: a gang needs 4 hosts. Two hosts are free, and the slots on two other hosts will end in 60
minutes. The gang reserves these 4 hosts for a start in 60 minutes. A request with an expected run
time of 50 minutes is placed on one of the free hosts. A request with an expected run time of 70
minutes is not placed there.

If a slot runs longer than expected, the owner starts later than planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from finegrain.resources import Amounts, add, subtract
from finegrain.values.states import GangPlacement
from resource_manager.engine.fairness.choice import order_key_of
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.model.scheduling_key import in_grains
from resource_manager.engine.placement.gangs import seek
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.queue.gangs import Where
from resource_manager.engine.queue.non_batchable import Kind, OrderKey
from resource_manager.engine.queue.starvation import Waiter
from resource_manager.engine.scheduling.owners import first_specs, has_declared, owner_of
from resource_manager.engine.scheduling.reservation_search import ReservationSearch
from resource_manager.engine.scheduling.reservations import end, make
from resource_manager.engine.scheduling.starved import CHECK_INTERVAL_MS
from resource_manager.engine.state import State

COMPARED_MAX = 256
"""Maximum number of waiters that are compared. The waiters that have waited longest are compared,
and the first of them in order becomes the owner of the plan.
"""

TRIED_MAX = 64
"""Maximum number of waiters that are tried in one cycle."""


class Candidate(NamedTuple):
    """A waiter that can be placed before the owner of a reservation starts, and the expected run
    time of the waiter's slots.
    """

    waiter: Waiter
    expected_ms: int


class Backfill:
    """Plans and backfills in one scheduling cycle."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._times = state.run_times
        self._ledgers = state.requests, state.queue, state.gangs

    def plan(self) -> None:
        """Plans the start of the first waiter in order, if it has declared a run time. Replaces the
        plan of the last check. If the first waiter fits now, places it, and continues with the next
        waiter.
        """
        state, reservations = self._state, self._state.reservations
        planned, now_ms = reservations.planned, state.journal.now_ms
        # The plan is valid while its owner waits. If the owner was placed or has ended, another
        # waiter is first now.
        is_valid = planned is not None and planned.owner.waits_in(state.queue)
        none = not state.settings.fairness.reservations_max
        if none or (is_valid and now_ms < reservations.plan_ms):
            return
        # The number of slots that have ended plus the number of reuses.
        freed = state.flows.placements - len(state.slots)
        for _ in range(TRIED_MAX):
            # A waiter that a maximum blocks has no owner.
            owners = (owner_of(state, waiter) for waiter in in_order(self._state))
            owner = next((each for each in owners if each is not None), None)
            kept = reservations.planned
            # If no slot has ended since the plan was made, no other hosts can have room earlier.
            if kept is not None:
                if kept is planned and kept.owner == owner and reservations.plan_freed == freed:
                    return
                end(state, kept, "it is planned again")
            if owner is None or not has_declared(*self._ledgers, owner.waiter):
                return
            most = state.settings.fairness.reservations_max
            if reservations.of_job(owner.job_id) or len(reservations) >= most:
                return
            reservations.plan_ms, reservations.plan_freed = now_ms + CHECK_INTERVAL_MS, freed
            # The search reads the indexes, so they must be current.
            state.hosts.refresh(state.queue)
            _reserve_planned(ReservationSearch(state, owner, self._times))
            again = reservations.planned
            # If the new plan has the owner of the earlier plan, the promise to this owner stays
            # valid. The owner can be different in between, when another waiter was first and was
            # placed at once. But if another waiter has a plan in between, the promise ends.
            if planned is not None and again is not None and again.owner == planned.owner:
                again.promised_ms = planned.promised_ms
            if owner.waits_in(state.queue):
                return

    def fill(self) -> None:
        """Places waiters on reserved hosts, if the slots of these waiters will probably end before
        the owners of the hosts start.
        """
        state, now_ms = self._state, self._times.now_ms
        later = [
            (at_ms, each)
            for each in state.reservations.by_number.values()
            if (at_ms := self._promised(each)) is not None and at_ms > now_ms
        ]
        later.sort(key=lambda each: each[0], reverse=True)
        room = self._room(each for _, each in later)
        candidates = list(self._candidates(later[0][0], room)) if later else []
        if not candidates:
            return
        placer = Placer(state.hosts)
        opened: list[tuple[Host, ReservedCapacity | None]] = []
        # Go through the reservations in the order of their starts, the latest start first. In each
        # step, open the hosts of one more reservation. Then place candidates that end before the
        # start of this reservation. The hosts of the later starts are already open.
        for at_ms, reservation in later:
            here = [state.hosts[name] for name in reservation.hosts]
            for host in here:
                opened.append((host, host.reserved))
                host.reserved = None
            placer.follow(here)
            candidates = [each for each in candidates if now_ms + each.expected_ms <= at_ms]
            candidates = [each for each in candidates if not self._try(placer, each.waiter)]
        for host, reserved in opened:
            host.reserved = reserved
        placer.follow([host for host, _ in opened])
        placer.finish()

    def _promised(self, each: Reservation) -> int | None:
        """Returns the moment before which backfilled slots must end, or None if this moment is not
        known.
        """
        expected_ms = self._times.start_ms(self._state.hosts, each.hosts)
        # While the start is not known, no waiter is backfilled, but the promised start does not
        # change.
        if expected_ms is None:
            return None
        known_ms = each.promised_ms
        each.promised_ms = expected_ms if known_ms is None else min(known_ms, expected_ms)
        return each.promised_ms

    def _room(self, opened: Iterable[Reservation]) -> Amounts:
        """Returns the amounts that are free in the whole cluster, in the units of the index. They
        include the free amounts of opened reservations.
        """
        hosts = self._state.hosts
        room: Amounts = hosts.indexes.main.sums
        for each in opened:
            for host in (hosts[name] for name in each.hosts):
                room = add(room, in_grains(subtract(host.free(), host.spare())))
        return room

    def _candidates(self, latest_ms: int, room: Amounts) -> Iterator[Candidate]:
        """Yields in order the waiters whose slots will probably end before a given moment.

        Args:
            latest_ms: the moment (monotonic).
            room: the amounts that are free in the whole cluster. Waiters that need more than these
                amounts are left out.
        """
        state = self._state
        owners = {each.owner.waiter for each in state.reservations.by_number.values()}
        found = 0
        for waiter in in_order(self._state):
            if waiter in owners or not self._may_fit(waiter, room):
                continue
            expected_ms = self._expected_ms(waiter)
            if expected_ms is None or self._times.now_ms + expected_ms > latest_ms:
                continue
            yield Candidate(waiter, expected_ms)
            found += 1
            if found == TRIED_MAX:
                return

    def _may_fit(self, waiter: Waiter, room: Amounts) -> bool:
        """Returns False if a waiter needs more than is free in the whole cluster."""
        state = self._state
        if not isinstance(waiter, int):
            need = state.quotas.largest_booking(waiter[0])
        else:
            item = state.queue.non_batchables.get(waiter)
            if item is None or item.kind is not Kind.GANG:
                return False
            need = state.quotas.gang_need(state.gangs.waiting[item.name])
        return all(amount <= room.get(name, 0) for name, amount in in_grains(need).items())

    def _expected_ms(self, waiter: Waiter) -> int | None:
        """Returns the expected run time of a waiter: the run time of its first request, or of the
        longest member of its gang. Returns None if the run time is not known.
        """
        longest_ms = 0
        # Equal members have equal run times, so the run time is read once for each kind of member.
        specs = {
            (spec.profile, spec.time_limit_ms, spec.expected_run_time_ms): (spec, job_id)
            for spec, job_id in first_specs(*self._ledgers, waiter)
        }
        for spec, job_id in specs.values():
            expected_ms = self._times.expected_ms(spec, job_id)
            if expected_ms is None:
                return None
            longest_ms = max(longest_ms, expected_ms)
        return longest_ms

    def _try(self, placer: Placer, waiter: Waiter) -> bool:
        """Places a waiter, if all its slots fit now and no maximum blocks it."""
        state = self._state
        owner = owner_of(state, waiter)
        if owner is None:
            return False
        requests = ReservationSearch(state, owner).requests
        waiting = state.gangs.waiting[owner.gang_id] if owner.gang_id else None
        where = Where(GangPlacement.ANYWHERE) if waiting is None else waiting.kind.where
        found = seek(state.hosts, where, requests)
        if found is None:
            return False
        if waiting is not None:
            state.gang_moves.place_together(waiting, requests, found)
        elif not isinstance(waiter, int):
            request = state.requests.at(owner.number)
            state.moves.place([request], state.hosts[found[0].host_id])
            state.queue.served(waiter[0], [request])
        placer.follow([state.hosts[name] for name in dict.fromkeys(each.host_id for each in found)])
        return True


def _reserve_planned(search: ReservationSearch) -> None:
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
        make(search, shares, clock, clock.since, planned=True)


def in_order(state: State) -> Sequence[Waiter]:
    """Returns the `COMPARED_MAX` waiters that have waited longest, in the order in which they are
    served.
    """
    flows = state.flows
    fair = state.settings.fairness.order == "fair"
    keys: dict[str, OrderKey] = {}
    found: list[tuple[OrderKey, int, Waiter]] = []
    for waiter in islice(state.queue.starvation.waiters(), COMPARED_MAX):
        if isinstance(waiter, int):
            item = state.queue.non_batchables.get(waiter)
            place, job_id = (item.place, item.job_id) if item is not None else (0, "")
        else:
            job_queue = waiter[0].job_queues.get(waiter[1])
            place = job_queue.place if job_queue is not None else 0
            job_id = waiter[1] if job_queue is not None else ""
        if not job_id:
            continue
        if fair and job_id not in keys:
            keys[job_id] = order_key_of(flows, flows.jobs[job_id])
        found.append((keys.get(job_id, ()), place, waiter))
    return [waiter for *_, waiter in sorted(found, key=lambda each: each[:2])]
