"""Moves a gang as a whole: placed, granted, broken up, ended.

All living members of a gang are in the same state until the gang is granted. A queued gang has one
place in the queue, that of its first member. It is placed in one decision or not at all, and its
members stay ALLOCATING until the executors have confirmed all of them. So a job master never sees
part of a gang, and no two gangs each hold half of the capacity they need.

After the grant, each slot goes its own way, with one exception: members that want a new slot after
a loss (`restart_on_loss`) go back to the queue together.

`GangMoves` has the methods of `lifecycle/moves.py` that concern a whole gang, under the same names.
For a request without a gang they do the same as there.

Example: gang "g" has the members m1 and m2, both with `restart_on_loss`.

  event                                m1          m2          gang        unconfirmed
  submitted                            PENDING     PENDING     WAITING     -
  try_gang: m1 on host A, m2 on B      ALLOCATING  ALLOCATING  ALLOCATING  2
  A carved m1 (`confirm`)              ALLOCATING  ALLOCATING  ALLOCATING  1
      m1's slot is ALLOCATED, but its job master does not know
  B refused m2 (`requeue`)             PENDING     PENDING     WAITING     -
      the slot of m1 is freed; the gang is queued at its old place
  try_gang: m1 on A, m2 on C           ALLOCATING  ALLOCATING  ALLOCATING  2
  both carved                          GRANTED     GRANTED     GRANTED     -
      two job events in one batch: the slot offers
  C lost (`lose` of m2)                PENDING     PENDING     WAITING     -
      without `restart_on_loss`, m2 would end, and m1 would keep its slot
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from finegrain.errors import Reason
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import Gang, Request, Slot
from resource_manager.engine.model.scheduling_key import SchedulingKey, scheduling_key
from resource_manager.engine.model.state_tables import GangInput
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.gangs import find_together, passed_by
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.queue.gangs import (
    GangLedger,
    MemberRequest,
    Share,
    WaitingGang,
    living,
)
from resource_manager.engine.queue.non_batchable import NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.queue.requests import Requests


def waiting_gangs(gangs: GangLedger) -> Iterator[tuple[Gang, list[Request]]]:
    """Yields the queued gangs in queue order, each with its living members in order of arrival."""
    for waiting in gangs.in_order():
        yield waiting.gang, waiting.members


@dataclass(slots=True, eq=False)
class GangMoves:
    """Moves gangs, and requests that may belong to one, through their states."""

    journal: Journal
    changes: ChangeTracker
    endings: dict[str, Ending]
    gangs: GangLedger
    hosts: Hosts
    queue: WaitingQueue
    rejection_clock: RejectionClock
    requests: Requests
    slots: Slots
    timers: Timers
    transitions: Transitions
    moves: RequestMoves

    def current_requests(self, waiting: WaitingGang) -> tuple[MemberRequest, ...]:
        """Returns what a queued gang asks for, with the hosts that members must avoid now.

        A member avoids a host where its previous slot is still being taken down.
        """
        # Few gangs have such members. All others use the answer that all gangs of the kind share.
        if any(each.allocation_id in self.slots.superseded for each in waiting.members):
            return tuple(self._by_request(waiting))
        return waiting.kind.member_requests

    def begin_to_wait(self, gang: Gang) -> None:
        """Queues a new gang and starts its timeout."""
        if gang.spec.timeout_ms is not None:
            gang.waiting_until_ms = self.journal.now_ms + gang.spec.timeout_ms
        self.queue_gang(gang)

    def queue_gang(self, gang: Gang, *, tried: bool = False) -> None:
        """Queues a gang at its place. `tried` says that a search for room was made before."""
        members = list(living(self.requests, gang))
        self.gangs.begin_to_wait(gang, members, self.queue.non_batchables, tried=tried)
        # A gang that is queued again keeps its deadline, so its timer is armed for what is left.
        if gang.waiting_until_ms is not None:
            self.timers.arm(Timer.GANG, gang.gang_id, gang.waiting_until_ms)

    def try_gang(self, placing: Placer, item: NonBatchable) -> bool:
        """Places all members of a queued gang if there is room for all of them.

        Args:
            placing: the placement pass that is running; its view of the booked hosts is updated.
            item: the queue entry of the gang.

        Returns:
            False if there is no room; the gang stays queued.
        """
        waiting = self.gangs.waiting[item.name]
        waiting.tried, waiting.steps = True, 0
        # A search costs much more than this check, and would find nothing again.
        if passed_by(self.hosts, waiting.kind):
            return False
        requests = self.current_requests(waiting)
        found = find_together(self.hosts, waiting, requests)
        if found is None:
            return False
        self.place_together(waiting, requests, found)
        # The pass has its own view of free capacity, and did not book these slots itself.
        placing.follow(
            [self.hosts[name] for name in dict.fromkeys(share.host_id for share in found)]
        )
        return True

    def place_together(
        self,
        waiting: WaitingGang,
        requests: Sequence[MemberRequest],
        found: Iterable[Share],
    ) -> None:
        """Books slots for all members of a queued gang.

        Args:
            waiting: the gang.
            requests: what its members ask for, from `current_requests`.
            found: how many members of each entry of `requests` go to which host; the hosts have
                room.
        """
        # Members that ask for the same are interchangeable, so each share takes the next ones.
        groups = self._by_request(waiting)
        members = [iter(groups[request_kind]) for request_kind in requests]
        for share in found:
            some = list(islice(members[share.request_index], share.count))
            self.moves.place(some, self.hosts[share.host_id])
        self.transitions.move_gang(waiting.gang, GangInput.PLACE)
        self.gangs.unconfirmed[waiting.gang.gang_id] = len(waiting.members)
        self.gangs.stop_waiting(waiting.gang, self.queue.non_batchables)

    def confirm(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Records that the executor has carved the slot. The last one grants the whole gang.

        Args:
            slot: the slot.
            isolation: how the executor isolates it; None: not reported.
            cpus: the cpus that it has; empty: not reported.
        """
        gang = self.gangs.of(self.requests[slot.allocation_id])
        if gang is None:
            self.moves.confirm(slot, isolation=isolation, cpus=cpus)
            return
        self.moves.carve(slot, isolation=isolation, cpus=cpus)
        self.gangs.unconfirmed[gang.gang_id] -= 1
        if self.gangs.unconfirmed[gang.gang_id]:
            return
        del self.gangs.unconfirmed[gang.gang_id]
        self.transitions.move_gang(gang, GangInput.GRANT)
        gang.waiting_until_ms = None
        # All in one step, so that the job master receives all slot offers of the gang together.
        for request in living(self.requests, gang):
            self.moves.grant(self.slots[request.allocation_id, request.generation])

    def requeue(self, request: Request, slot: Slot, reason: str, message: str) -> None:
        """Sends a request back to its place in the queue; a gang goes back as a whole.

        The arguments are those of `RequestMoves.requeue`.
        """
        gang = self.gangs.of(request)
        if gang is None:
            self.moves.requeue(request, slot, reason, message)
        else:
            self._break_up(gang, request, reason, message)

    def lose(self, slot: Slot, reason: str, message: str) -> None:
        """Handles the loss of a request's slot.

        A member that was not granted yet, or that has `restart_on_loss`, sends its whole gang back
        to the queue. The arguments are those of `RequestMoves.lose`.
        """
        request = self.requests.served_by(slot)
        gang = self.gangs.of(request) if request is not None else None
        if request is None or gang is None:
            self.moves.lose(slot, reason, message)
            return
        if request.state is RequestState.GRANTED and not request.spec.restart_on_loss:
            self.moves.lose(slot, reason, message)
            return
        self.journal.slot_event("slot_lost", slot, reason=reason, message=message)
        self._break_up(gang, request, reason, message)

    def decline(self, slot: Slot) -> None:
        """Handles a direct offer of the executor that the job master did not accept.

        Members of a gang are not offered directly. If an executor does it all the same, a gang that
        is not granted yet goes back to the queue.
        """
        request = self.requests.served_by(slot)
        if (
            request is None
            or not request.spec.gang_id
            or request.state is not RequestState.ALLOCATING
        ):
            self.moves.decline(slot)
            return
        self.lose(
            slot, Reason.OFFER_NOT_ACCEPTED, "its executor reports that no job master accepted it"
        )
        self.moves.vanish(slot)  # the executor has taken it down already

    def give_up(
        self,
        request: Request,
        *,
        alone: bool = False,
        reason: str = "",
        message: str = "",
        grace_ms: int | None = None,
    ) -> None:
        """Ends a living request on demand. With a member of a gang that is not granted, all members
        end.

        Args:
            request: the request.
            alone: the caller named a granted slot. If its gang went back to the queue while the
                call was on its way, only this member ends, and the others stay queued.
            reason: as for `RequestMoves.give_up`.
            message: as for `RequestMoves.give_up`.
            grace_ms: as for `RequestMoves.give_up`.
        """
        gang = self.gangs.of(request)
        if gang is None or request.state is RequestState.GRANTED:
            self.moves.give_up(request, reason=reason, message=message, grace_ms=grace_ms)
            return
        waiting = self.gangs.waiting.get(gang.gang_id)
        # The others stay queued. With the last member, the gang itself ends below.
        if alone and waiting is not None and len(waiting.members) > 1:
            self.gangs.stop_waiting(gang, self.queue.non_batchables)
            self.moves.give_up(request, reason=reason, message=message, grace_ms=grace_ms)
            # Queued again, because its kind, and so the search for room, depends on its members.
            self.queue_gang(gang, tried=waiting.tried)
            return
        self._leave(gang, GangInput.END)
        gang.waiting_until_ms = None
        for member in list(living(self.requests, gang)):  # a copy: members stop living in the loop
            self.moves.give_up(member, reason=reason, message=message, grace_ms=grace_ms)

    def gang_timer_fired(self, gang_id: str) -> None:
        """Ends a gang whose timeout is over."""
        waiting = self.gangs.waiting.get(gang_id)
        # It was placed or has ended; timers are not disarmed.
        if waiting is None or waiting.gang.waiting_until_ms is None:
            return
        gang = waiting.gang
        # A gang that was granted and lost since has a later deadline than the timer.
        if self.journal.now_ms < (gang.waiting_until_ms or 0):
            self.timers.arm(Timer.GANG, gang_id, gang.waiting_until_ms or 0)
            return
        message = f"gang {gang_id} could not be placed as a whole within {gang.spec.timeout_ms} ms"
        why = (Reason.GANG_TIMEOUT, message)
        self.reject_gang(waiting, {member.allocation_id: why for member in waiting.members})

    def reject_gang(self, waiting: WaitingGang, outcomes: Mapping[str, tuple[str, str]]) -> None:
        """Ends a gang that must not wait any longer.

        Args:
            waiting: the gang.
            outcomes: reason and message of every member, by allocation id; the job events are
                written in this order.
        """
        self._leave(waiting.gang, GangInput.END)
        waiting.gang.waiting_until_ms = None
        for allocation_id, (reason, message) in outcomes.items():
            self.moves.reject(self.requests[allocation_id], reason, message)

    def _leave(self, gang: Gang, what: GangInput) -> None:
        """Takes a gang out of placement: it is not queued, and no confirmations are counted."""
        self.transitions.move_gang(gang, what)
        self.gangs.stop_waiting(gang, self.queue.non_batchables)
        self.gangs.unconfirmed.pop(gang.gang_id, None)

    def _by_request(self, waiting: WaitingGang) -> dict[MemberRequest, list[Request]]:
        """Groups the members by what they ask for and which hosts they must avoid."""
        alike: dict[tuple[SchedulingKey, frozenset[str]], list[Request]] = {}
        for request in waiting.members:
            superseded = self.slots.superseded.get(request.allocation_id, ())
            elsewhere = frozenset(slot.executor_id for slot in superseded)
            alike.setdefault((scheduling_key(request.spec), elsewhere), []).append(request)
        return {
            MemberRequest(profile, labels, len(some), elsewhere, cpus): some
            for ((profile, labels, cpus), elsewhere), some in alike.items()
        }

    def _break_up(self, gang: Gang, culprit: Request, reason: str, message: str) -> None:
        """Sends all living members back to their place in the queue, and frees all slots but the
        culprit's.

        The timeout starts again only if the gang had been granted. A gang that was never granted
        goes on with what is left of its time.
        """
        was_granted = culprit.state is RequestState.GRANTED
        members = list(living(self.requests, gang))
        others = f"{culprit.allocation_id} of the same gang was lost: {message}"
        self.journal.cluster_event(
            "gang_broken",
            job_id=gang.job_id,
            allocation_id=culprit.allocation_id,
            reason=reason,
            message=f"gang {gang.gang_id} is queued again: {message}",
        )
        # Confirmations of its slots count no more: these slots are freed below.
        self._leave(gang, GangInput.BREAK)
        for member in members:
            slot = self.slots[member.allocation_id, member.generation]
            if member is culprit:
                # The caller knows what happened to this slot, and decides whether it is freed or
                # deleted.
                self.moves.requeue(member, slot, reason, message)
            else:
                self.moves.requeue(member, slot, Reason.GANG_BROKEN, others)
                self.moves.free(slot)
        if was_granted:
            gang.waiting_since_time_ms = self.journal.at.time_ms
            # Stored, because after a restart the starvation clock of the gang starts from it.
            self.changes.gang(gang)
            if gang.spec.timeout_ms is not None:
                gang.waiting_until_ms = self.journal.now_ms + gang.spec.timeout_ms
        # The members of an ended job are given up by the next decisions, and must get no slots.
        if gang.job_id not in self.endings:
            self.queue_gang(gang)
            self.rejection_clock.gang_requeued(gang.gang_id, self.journal.now_ms)
