"""Who may have capacity held for himself: a request, a gang, or a slot that is to grow. What each
needs and where, whether it still waits, and how it is placed where its share is kept.

Knows the three kinds; when something is held for whom, `reservations.py` decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from finegrain.errors import InvariantBroken
from finegrain.resources import Amounts, subtract, total_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.context import EventContext
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.resizes import growth
from resource_manager.engine.model.entities import Request, Slot
from resource_manager.engine.placement.gang_exact import Trials, as_if_empty
from resource_manager.engine.placement.gang_room import Share
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import (
    Held,
    Holder,
    Place,
    Reservation,
    Reservations,
)
from resource_manager.engine.queue.gangs import GangLedger, MemberRequest, WaitingGang, Where
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue
from resource_manager.engine.scheduling.reservation_search import where_to_hold
from resource_manager.engine.state import State

_ANYWHERE = Where(GangPlacement.ANYWHERE)


class ReservationOwner(Holder, ABC):
    """Somebody who waits, and for whom capacity may be held."""

    @abstractmethod
    def waits(self, state: State) -> bool:
        """True as long as he does."""

    @abstractmethod
    def choose(self, state: State, taken: Collection[str]) -> Place | None:
        """Where to keep room for him, on none of the hosts `taken`; None: nowhere would it do."""

    @abstractmethod
    def suits(self, state: State, at: Place) -> bool:
        """True if he could still be placed there if everything else on these hosts, which are fit
        to host anything, ended.
        """

    @abstractmethod
    def is_suited(self, state: State, at: Place) -> bool:
        """True if cpus and NUMA nodes of these hosts suit him now, given that amounts are there."""

    @abstractmethod
    def settle(self, context: EventContext, at: Place) -> None:
        """Places him there; there is room."""

    @abstractmethod
    def need_at_most(self, state: State) -> Amounts:
        """What he books in all, wherever he goes."""


class RequestOwner(ReservationOwner):
    """A request."""

    def __init__(self, request: Request, job_queue: JobQueue) -> None:
        self._request = request  # of a member of a range, perhaps made for the occasion
        self._shape = self.who = job_queue.scheduling_class
        self.line = job_queue
        self.number = request.arrival_number
        self.job_id = request.job_id
        self.allocation_id = request.allocation_id

    def waits(self, state: State) -> bool:
        """See `ReservationOwner`."""
        return self._request in state.queue

    def choose(self, state: State, taken: Collection[str]) -> Place | None:
        """See `ReservationOwner`."""
        return _place_for(
            state.hosts,
            state.slots,
            state.reservations,
            _ANYWHERE,
            (self._wish(state),),
            taken=taken,
        )

    def suits(self, state: State, at: Place) -> bool:
        """See `ReservationOwner`."""
        return _suits(state.hosts, state.queue, at, (self._wish(state),))

    def is_suited(self, state: State, at: Place) -> bool:
        """See `ReservationOwner`."""
        return _are_suited(state.hosts, at)

    def settle(self, context: EventContext, at: Place) -> None:
        """See `ReservationOwner`."""
        state = context.state
        request = state.requests.at(self.number)
        context.state.moves.place([request], state.hosts[at.shares[0].host_id])
        self.line.placed(context.now_ms, state.starvation.placements)
        state.queue.served(self._shape, [request])

    def need_at_most(self, state: State) -> Amounts:
        """See `ReservationOwner`."""
        return state.quotas.largest_booking(self._shape)

    def _wish(self, state: State) -> MemberRequest:
        behind = state.slots.superseded.get(self.allocation_id, ())
        elsewhere = frozenset(slot.executor_id for slot in behind)
        return MemberRequest(
            self._shape.profile, self._shape.labels, 1, elsewhere, self._shape.cpus
        )


class GangOwner(ReservationOwner):
    """A gang, as a whole."""

    def __init__(self, waiting: WaitingGang) -> None:
        self.gang_id = waiting.gang.gang_id
        self.number = self.who = waiting.gang.arrival_number
        self.job_id = waiting.gang.job_id
        self.allocation_id = waiting.members[0].allocation_id

    def waits(self, state: State) -> bool:
        """See `ReservationOwner`."""
        return self.gang_id in state.gangs.waiting

    def choose(self, state: State, taken: Collection[str]) -> Place | None:
        """See `ReservationOwner`."""
        waiting = state.gangs.waiting[self.gang_id]
        wishes = state.gang_moves.current_requests(waiting)
        return _place_for(
            state.hosts, state.slots, state.reservations, waiting.kind.where, wishes, taken=taken
        )

    def suits(self, state: State, at: Place) -> bool:
        """See `ReservationOwner`."""
        return _suits(
            state.hosts,
            state.queue,
            at,
            state.gang_moves.current_requests(state.gangs.waiting[self.gang_id]),
        )

    def is_suited(self, state: State, at: Place) -> bool:
        """See `ReservationOwner`."""
        return _are_suited(state.hosts, at)

    def settle(self, context: EventContext, at: Place) -> None:
        """See `ReservationOwner`."""
        waiting = context.state.gangs.waiting[self.gang_id]
        context.state.gang_moves.place_together(waiting, at.wishes, at.shares)

    def need_at_most(self, state: State) -> Amounts:
        """See `ReservationOwner`."""
        return state.quotas.gang_need(state.gangs.waiting[self.gang_id])


class GrowthOwner(ReservationOwner):
    """A slot that is to grow, which it can only do where it is."""

    def __init__(self, slot: Slot, item: NonBatchable) -> None:
        self._slot = slot
        self.number = self.who = item.arrival_number
        self.job_id = slot.job_id
        self.allocation_id = slot.allocation_id

    @property
    def title(self) -> str:
        """See `ReservationOwner`."""
        return f"the growth of {self.allocation_id}"

    def waits(self, state: State) -> bool:
        """See `ReservationOwner`."""
        return self.number in state.queue.non_batchables

    def choose(self, state: State, taken: Collection[str]) -> Place | None:
        """See `ReservationOwner`."""
        host = state.hosts[self._slot.executor_id]
        if not host.eligible or host.host_id in taken:
            return None
        more, total = growth(host, self._slot), host.total
        stays = state.reservations.stays_booked(host)
        if (self._slot.allocation_id, self._slot.generation) in state.reservations.outlasted_by:
            stays = subtract(stays, self._slot.booked)
        whole = total_of((self._slot.booked, more, stays))
        if any(amount > total.get(name, 0) for name, amount in whole.items()):
            return None
        if self._slot.wanted is not None and state.resizes.unsuited(
            host, self._slot, self._slot.wanted
        ):
            return None
        return Place({host.host_id: Held(more, 0)})

    def suits(self, state: State, at: Place) -> bool:
        """See `ReservationOwner`."""
        host = state.hosts[self._slot.executor_id]
        return at.held == {host.host_id: Held(growth(host, self._slot), 0)}

    def is_suited(self, state: State, at: Place) -> bool:  # noqa: ARG002 -- there is one place only
        """See `ReservationOwner`."""
        host = state.hosts[self._slot.executor_id]
        return not isinstance(state.resizes.assignment_for(host, self._slot), CpuRefusal)

    def settle(self, context: EventContext, at: Place) -> None:  # noqa: ARG002 -- likewise
        """See `ReservationOwner`."""
        found = context.state.resizes.assignment_for(context.state.hosts.of(self._slot), self._slot)
        if isinstance(found, CpuRefusal):
            raise InvariantBroken(f"{self.title} was to be ordered, and {found.text}")
        context.state.resizes.order(self._slot, found)
        context.state.queue.non_batchables.remove(self.number)

    def need_at_most(self, state: State) -> Amounts:
        """See `ReservationOwner`."""
        return growth(state.hosts[self._slot.executor_id], self._slot)


def owner_of(made: Reservation) -> ReservationOwner:
    """Whom something is held for.

    Raises:
        InvariantBroken: it is none of the three kinds.
    """
    if not isinstance(made.holder, ReservationOwner):
        raise InvariantBroken(f"something is held for {made.holder.title}, which is no owner")
    return made.holder


def owner_waiting_as(slots: Slots, gangs: GangLedger, item: NonBatchable) -> ReservationOwner:
    """What waits by itself, as a holder."""
    if item.kind is Kind.GANG:
        return GangOwner(gangs.waiting[item.name])
    return GrowthOwner(slots[item.name, item.generation], item)


def _place_for(
    hosts: Hosts,
    slots: Slots,
    reservations: Reservations,
    where: Where,
    wishes: Sequence[MemberRequest],
    *,
    taken: Collection[str],
) -> Place | None:
    shares = where_to_hold(hosts, slots, reservations, where, wishes, taken=taken)
    return None if shares is None else Place(held_for(hosts, wishes, shares), wishes, shares)


def held_for(
    hosts: Hosts, wishes: Sequence[MemberRequest], shares: Sequence[Share]
) -> dict[str, Held]:
    """What these shares take on each host."""
    held: dict[str, Held] = {}
    for share in shares:
        wish, host = wishes[share.wish], hosts[share.host_id]
        booked = host.booking_for(wish)
        more = {name: amount * share.count for name, amount in booked.items()}
        before = held.get(share.host_id, Held({}, 0))
        held[share.host_id] = Held(total_of((before.amounts, more)), before.slots + share.count)
    return held


def _are_suited(hosts: Hosts, at: Place) -> bool:
    """True if on each host those that are to go there can go there now, in the order of shares."""
    trials = Trials()
    return all(trials.fits_all(wishes, hosts[name]) for name, wishes in _by_host(at).items())


def could_suit(hosts: Hosts, at: Place) -> bool:
    """True if they could if all else on these hosts ended."""
    trials = Trials(as_if_empty)
    return all(trials.fits_all(wishes, hosts[name]) for name, wishes in _by_host(at).items())


def _by_host(at: Place) -> dict[str, list[tuple[MemberRequest, int]]]:
    found: dict[str, list[tuple[MemberRequest, int]]] = {}
    for share in at.shares:
        found.setdefault(share.host_id, []).append((at.wishes[share.wish], share.count))
    return found


def _suits(hosts: Hosts, queue: WaitingQueue, at: Place, wishes: Sequence[MemberRequest]) -> bool:
    """True if those who wish for slots are the same, and none of the hosts refuses one, is one
    that he must not have, or has come to count otherwise what he asks for.
    """
    if tuple(wishes) != tuple(at.wishes):
        return False
    refusing = [hosts[name] for name in hosts.refusing if name in at.held]
    for wish in wishes if refusing else ():
        scheduling_class = queue.class_for(wish.key)
        if any(host.refuses(scheduling_class) for host in refusing):
            return False
    return True
