"""Moves a gang through its states. A gang as a whole is placed, granted, queued again, or ended.

All live members of a gang are in the same state until the gang is granted. A queued gang has one
place in the queue, with the arrival number of its first member. Either all members are placed in
one cycle, or no member is placed. The members stay ALLOCATING until executors have confirmed all of
them. So a job master never gets only a part of a gang. Two gangs also never block each other,
because no gang books capacity for only some of its members.

After the grant, the slots are independent. There is one exception: if a member with
`restart_on_loss` loses its slot, the whole gang is queued again. A revoked slot of a member counts
as lost.

`GangMoves` and `RequestMoves` (`moves.py`) have some methods with the same names. The method of
`GangMoves` moves one request, and also the other members of its gang if needed. For a request
without a gang, the method of `GangMoves` only calls the method of `RequestMoves`.

Example: gang "g" has the members m1 and m2, both with `restart_on_loss`.

  event                                m1          m2          gang        unconfirmed
  submitted                            PENDING     PENDING     WAITING     -
  try_gang: m1 on host A, m2 on B      ALLOCATING  ALLOCATING  ALLOCATING  2
  A carved m1 (`confirm`)              ALLOCATING  ALLOCATING  ALLOCATING  1
      m1's slot is ALLOCATED, but the job master gets no event yet
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

from finegrain.cpu_assignment import CpuAssignment
from finegrain.errors import Reason
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import NO_REPORT, ThreadReport
from finegrain.values.states import RequestState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import REVOKED, RequestMoves
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import Gang, Request, Slot
from resource_manager.engine.model.scheduling_key import SchedulingKey, scheduling_key
from resource_manager.engine.model.state_tables import GangInput, RequestInput
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.gangs import find_together, search_would_fail
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


@dataclass(slots=True, eq=False)
class GangMoves:
    """Moves gangs through their states, and requests with or without a gang."""

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
        """Returns the requests of a queued gang, with the hosts that members must avoid now.

        A member must avoid a host where its previous slot is still being freed.
        """
        # Few gangs have a member that must avoid a host. All other gangs with equal members share
        # one list of requests.
        if any(each.allocation_id in self.slots.superseded for each in waiting.members):
            return tuple(self.by_request(waiting))
        return waiting.kind.member_requests

    def begin_to_wait(self, gang: Gang) -> None:
        """Queues a new gang and starts its timeout."""
        if gang.spec.timeout_ms is not None:
            gang.waiting_until_ms = self.journal.now_ms + gang.spec.timeout_ms
        self.queue_gang(gang)

    def queue_gang(self, gang: Gang, *, tried: bool = False) -> None:
        """Queues a gang at its arrival number. `tried` is True if hosts were already searched for
        the gang.
        """
        members = list(living(self.requests, gang))
        self.gangs.begin_to_wait(gang, members, self.queue.non_batchables, tried=tried)
        # A gang that is queued again keeps its deadline.
        if gang.waiting_until_ms is not None:
            self.timers.arm(Timer.GANG, gang.gang_id, gang.waiting_until_ms)

    def try_gang(self, placing: Placer, item: NonBatchable) -> bool:
        """Places all members of a queued gang if all members fit.

        Args:
            placing: the current placement pass; this method updates the pass with the bookings.
            item: the queue entry of the gang.

        Returns:
            False if not all members fit. The gang stays queued.
        """
        waiting = self.gangs.waiting[item.name]
        waiting.tried, waiting.steps = True, 0
        # This check is much cheaper than another search without result.
        if search_would_fail(self.hosts, waiting.kind):
            return False
        requests = self.current_requests(waiting)
        found = find_together(self.hosts, waiting, requests)
        if found is None:
            return False
        self.place_together(waiting, requests, found)
        # The placement pass has copies of the hosts' free capacity, and must subtract the new
        # bookings from them.
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
            requests: the requests of its members, as `current_requests` returned them.
            found: the result of the search. Each share has a host, the position of a request in
                `requests`, and a number of members. The caller must have checked that all members
                fit.
        """
        # Members with equal requests are interchangeable, so each share takes the next members.
        groups = self.by_request(waiting)
        members = [iter(groups[request_kind]) for request_kind in requests]
        shares = list(found)
        chosen = self._chosen_together(requests, shares)
        for share in shares:
            some = list(islice(members[share.request_index], share.count))
            here = chosen.get(share.host_id)
            its = list(islice(here, share.count)) if here is not None else None
            self.moves.place(some, self.hosts[share.host_id], its)
        self.transitions.move_gang(waiting.gang, GangInput.PLACE)
        self.gangs.unconfirmed[waiting.gang.gang_id] = len(waiting.members)
        self.gangs.stop_waiting(waiting.gang, self.queue.non_batchables)

    def _chosen_together(
        self, requests: Sequence[MemberRequest], shares: Iterable[Share]
    ) -> dict[str, Iterator[CpuAssignment]]:
        """Returns, by host, the assignments of members whose GPUs must be chosen together on the
        host. The assignments are in the order of the shares.
        """
        by_host: dict[str, list[tuple[MemberRequest, int]]] = {}
        for share in shares:
            by_host.setdefault(share.host_id, []).append(
                (requests[share.request_index], share.count)
            )
        found = {
            host_id: self.hosts[host_id].assignments_together(here)
            for host_id, here in by_host.items()
        }
        return {host_id: iter(each) for host_id, each in found.items() if each is not None}

    def confirm(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Records that the executor has carved the slot. The last slot of a gang grants the gang.

        Args:
            slot: the slot.
            isolation: the isolation that the executor reports for the slot; None if the executor
                reports no isolation.
            cpus: the cpus of the slot; empty if the executor reports no cpus.
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
        # Grant all members in one step. The job master then receives all slot offers together.
        for request in living(self.requests, gang):
            self.moves.grant(self.slots[request.allocation_id, request.generation])

    def requeue(self, request: Request, slot: Slot, reason: str, message: str) -> None:
        """Queues a request again at its old place. If the request belongs to a gang, the whole gang
        is queued again.

        The arguments are the same as for `RequestMoves.requeue`.
        """
        gang = self.gangs.of(request)
        if gang is None:
            self.moves.requeue(request, slot, reason, message)
        else:
            self._break_up(gang, request, reason, message)

    def lose(self, slot: Slot, reason: str, message: str) -> None:
        """Handles the loss of a request's slot.

        The whole gang of the member is queued again in two cases: the member was not granted yet,
        or it has `restart_on_loss`. For the arguments, see `RequestMoves.lose`.
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

    def revoke(self, slot: Slot, owner: Request, *, grace_ms: int) -> None:
        """Takes a granted slot back for another request, which is placed on the slot's host in the
        same step.

        If the slot belongs to no gang, its request returns to its place in the queue. A member of a
        gang follows the rules of its gang for a lost slot: with `restart_on_loss`, the whole gang
        returns to its place in the queue, and all its slots are freed. Without `restart_on_loss`,
        only the member ends.

        Args:
            slot: a slot that is revocable, without a resize in flight. Its request is granted, or
                was queued again because another slot of its gang was revoked.
            owner: the request that gets the capacity.
            grace_ms: the time that the tasks of the slot have until they must end.
        """
        request = self.requests.served_by(slot)
        gang = self.gangs.of(request) if request is not None else None
        if request is not None and gang is None:
            self.moves.requeue(request, slot, Reason.REVOKED, REVOKED)
        elif request is not None and gang is not None and request.spec.restart_on_loss:
            self._break_up(gang, request, Reason.REVOKED, REVOKED, grace_ms)
        elif request is not None:
            self.moves.end_request(
                request, RequestInput.LOSE, reason=Reason.REVOKED, message=REVOKED, slot=slot
            )
        self.moves.take_back(slot, owner, grace_ms=grace_ms)

    def decline(self, slot: Slot) -> None:
        """Handles a slot that the executor offered directly, and that the job master did not
        accept.

        Executors must not offer members of gangs directly. If an executor does this before the gang
        is granted, the gang is queued again.
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
        self.moves.vanish(slot)  # the executor has already freed the slot

    def give_up(
        self,
        request: Request,
        *,
        alone: bool = False,
        reason: str = "",
        message: str = "",
        grace_ms: int | None = None,
        report: ThreadReport = NO_REPORT,
    ) -> None:
        """Ends a live request on behalf of its job master or an administrator. If the request is a
        member of a gang that is not granted, all members of the gang end.

        Args:
            request: the request.
            alone: True if the caller named a granted slot. If the gang was queued again before the
                call arrived, only this member ends, and the other members stay queued.
            reason: see `RequestMoves.give_up`.
            message: see `RequestMoves.give_up`.
            grace_ms: see `RequestMoves.give_up`.
            report: see `RequestMoves.give_up`.
        """
        gang = self.gangs.of(request)
        if gang is None or request.state is RequestState.GRANTED:
            self.moves.give_up(
                request, reason=reason, message=message, grace_ms=grace_ms, report=report
            )
            return
        waiting = self.gangs.waiting.get(gang.gang_id)
        # The other members stay queued. If there is no other member, the following code ends the
        # gang.
        if alone and waiting is not None and len(waiting.members) > 1:
            self.gangs.stop_waiting(gang, self.queue.non_batchables)
            self.moves.give_up(request, reason=reason, message=message, grace_ms=grace_ms)
            # The gang is queued again, because its kind depends on its members.
            self.queue_gang(gang, tried=waiting.tried)
            return
        self._leave(gang, GangInput.END)
        gang.waiting_until_ms = None
        for member in list(living(self.requests, gang)):  # a copy, because members end in the loop
            self.moves.give_up(member, reason=reason, message=message, grace_ms=grace_ms)

    def gang_timer_fired(self, gang_id: str) -> None:
        """Ends a gang whose timeout has expired."""
        waiting = self.gangs.waiting.get(gang_id)
        # The gang does not wait: it was placed or has ended. Its timer still fires, because timers
        # are not disarmed.
        if waiting is None or waiting.gang.waiting_until_ms is None:
            return
        gang = waiting.gang
        # If the gang was queued again after a grant, its deadline is later than this timer.
        if self.journal.now_ms < (gang.waiting_until_ms or 0):
            self.timers.arm(Timer.GANG, gang_id, gang.waiting_until_ms or 0)
            return
        message = f"gang {gang_id} could not be placed as a whole within {gang.spec.timeout_ms} ms"
        why = (Reason.GANG_TIMEOUT, message)
        self.reject_gang(waiting, {member.allocation_id: why for member in waiting.members})

    def reject_gang(self, waiting: WaitingGang, outcomes: Mapping[str, tuple[str, str]]) -> None:
        """Rejects a queued gang.

        Args:
            waiting: the gang.
            outcomes: reason and message of every member, by allocation id. Job events are written
                in the order of this mapping.
        """
        self._leave(waiting.gang, GangInput.END)
        waiting.gang.waiting_until_ms = None
        for allocation_id, (reason, message) in outcomes.items():
            self.moves.reject(self.requests[allocation_id], reason, message)

    def _leave(self, gang: Gang, what: GangInput) -> None:
        """Removes a gang from the queue, and stops counting its confirmations."""
        self.transitions.move_gang(gang, what)
        self.gangs.stop_waiting(gang, self.queue.non_batchables)
        self.gangs.unconfirmed.pop(gang.gang_id, None)

    def by_request(self, waiting: WaitingGang) -> dict[MemberRequest, list[Request]]:
        """Groups the members of a gang by their requests and by the hosts that they must avoid."""
        alike: dict[tuple[SchedulingKey, frozenset[str]], list[Request]] = {}
        for request in waiting.members:
            superseded = self.slots.superseded.get(request.allocation_id, ())
            elsewhere = frozenset(slot.executor_id for slot in superseded)
            alike.setdefault((scheduling_key(request.spec), elsewhere), []).append(request)
        return {
            MemberRequest(profile, labels, len(some), elsewhere, cpus): some
            for ((profile, labels, cpus), elsewhere), some in alike.items()
        }

    def _break_up(
        self,
        gang: Gang,
        lost_member: Request,
        reason: str,
        message: str,
        grace_ms: int | None = None,
    ) -> None:
        """Queues the whole gang again, and frees the slots of all live members except
        `lost_member`.

        If the gang was granted before, its timeout starts again. If the gang was not granted, its
        deadline stays the same.

        Args:
            gang: the gang.
            lost_member: the member that lost its slot.
            reason: reason in the events.
            message: message in the events, for people.
            grace_ms: time that the tasks of the freed slots have until they must end; None means
                the executor's default.
        """
        was_granted = lost_member.state is RequestState.GRANTED
        members = list(living(self.requests, gang))
        others = f"{lost_member.allocation_id} of the same gang was lost: {message}"
        self.journal.cluster_event(
            "gang_broken",
            job_id=gang.job_id,
            allocation_id=lost_member.allocation_id,
            reason=reason,
            message=f"gang {gang.gang_id} is queued again: {message}",
        )
        # Confirmations are not counted from now on, because the following loop frees the slots.
        self._leave(gang, GangInput.BREAK)
        for member in members:
            slot = self.slots[member.allocation_id, member.generation]
            if member is lost_member:
                # The caller decides whether this slot is freed or deleted.
                self.moves.requeue(member, slot, reason, message)
            else:
                self.moves.requeue(member, slot, Reason.GANG_BROKEN, others)
                self.moves.free(slot, grace_ms)
        if was_granted:
            gang.waiting_since_time_ms = self.journal.at.time_ms
            # The gang is stored, because its starvation clock needs `waiting_since_time_ms` after a
            # restart.
            self.changes.gang(gang)
            if gang.spec.timeout_ms is not None:
                gang.waiting_until_ms = self.journal.now_ms + gang.spec.timeout_ms
        # If the job has ended, the next `Decide` ends the members, so the gang must not be queued.
        if gang.job_id not in self.endings:
            self.queue_gang(gang)
            self.rejection_clock.gang_requeued(gang.gang_id, self.journal.now_ms)
