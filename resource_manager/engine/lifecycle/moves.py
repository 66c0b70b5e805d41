"""Moves a request together with its slot: placed, confirmed, given up, lost, deleted.

Every move goes through the state tables and keeps the ledgers, the queue and both logs in step. The
handlers decide when to move something. They call `lifecycle/gangs.py` first where it has a method
of the same name, because a move of one member may concern its whole gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN
from finegrain.errors import Reason
from finegrain.mapping.copies import copier
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.fairness import threads
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.members import MemberRows
from resource_manager.engine.lifecycle.resizes import ResizeMoves
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Job,
    Request,
    RequestSpec,
    Slot,
    SlotKey,
)
from resource_manager.engine.model.numbers import Numbers
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.state_tables import RequestInput, SlotInput
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import RangeLedger
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.queue.requests import Requests


def key_of(slot: Slot) -> SlotKey:
    """Returns the identity of a slot."""
    return slot.allocation_id, slot.generation


_slot_of = copier(
    Slot,
    RequestSpec,
    "generation job_id executor_id profile cpu_limit_milli assignment booked cost",
)


@dataclass(slots=True, eq=False)
class RequestMoves:
    """Moves requests and their slots through their states."""

    journal: Journal
    changes: ChangeTracker
    costs: Costs
    endings: dict[str, Ending]
    flows: FlowTree
    gangs: GangLedger
    hosts: Hosts
    jobs: dict[str, Job]
    numbers: Numbers
    outbox: dict[str, None]
    queue: WaitingQueue
    ranges: RangeLedger
    rejection_clock: RejectionClock
    requests: Requests
    slots: Slots
    transitions: Transitions
    members: MemberRows
    resizes: ResizeMoves
    usage: UsageAccounting

    def place(self, requests: Sequence[Request], host: Host) -> None:
        """Books slots for queued requests on a host, and queues the orders to its executor.

        The caller has made sure that the host has room for all of them, and takes the requests out
        of the queue.

        Args:
            requests: requests of one job and one scheduling class.
            host: the host; it also chooses the cpus and NUMA nodes of the slots.

        Raises:
            InvariantBroken: the host's cpus or NUMA nodes do not suit all of the requests; see
                `Host.suits`.
        """
        policy = requests[0].spec.cpu_policy
        profile = requests[0].spec.profile or host.executor.registration.default_profile
        booked = host.booking_of(profile, best_effort=policy.best_effort)
        # Equal slots have equal cost, so amounts and cost are computed once for all of them.
        cost = self.costs.of(booked)
        assignments: Iterable[CpuAssignment | None] = repeat(None)
        # Cpus and nodes are chosen for all slots together, before the loop changes the ledger of
        # cpus.
        if host.aligning or policy is not PLAIN or profile.devices:
            scheduling_class = self.queue.class_of(requests[0].spec)
            assignments = host.assignments(scheduling_class, len(requests))
        # The first slot makes an empty host one that is in use.
        self.hosts.in_use += not host.slots
        # `repeat` has no end, so strict would fail.
        for request, assignment in zip(requests, assignments, strict=False):
            spec = request.spec
            # The floor keeps generations rising across restarts.
            request.generation = max(request.generation, self.numbers.generation_floor) + 1
            slot = _slot_of(
                spec,
                generation=request.generation,
                job_id=request.job_id,
                executor_id=host.host_id,
                profile=profile,
                cpu_limit_milli=max(spec.cpu_limit_milli, profile.cpu_milli),
                assignment=assignment,
                booked=booked,
                cost=cost,
            )
            # Without ranges, this saves a lookup for each slot.
            if self.ranges:
                self.members.materialize(request)
            # All ledgers learn of the slot in this step, so that they agree after it.
            self.transitions.move_request(request, RequestInput.PLACE)
            request.reason = request.message = ""
            key = key_of(slot)
            self.slots[key] = slot
            self.jobs[slot.job_id].slot_keys.add(key)
            host.slots[key] = slot
            if host.cpus is not None:
                host.cpus.add(key, assignment)
            # Until the order is sent, the slot can still be deleted without asking the executor.
            host.to_allocate[key] = None
            # The request has no row of its own: a restart derives its state from its slot.
            self.changes.slot(slot)
        # Counted once for all of them, because they are equal.
        host.book(booked, len(requests))
        self.flows.place(requests[0].job_id, booked, len(requests), cost)
        self.outbox[host.host_id] = None

    def confirm(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Records that the executor has carved the slot, and grants it to its request.

        The arguments are those of `carve`.
        """
        self.carve(slot, isolation=isolation, cpus=cpus)
        self.grant(slot)

    def carve(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Records that the executor has carved the slot.

        Its request may still wait for others of its gang.

        Args:
            slot: the slot.
            isolation: how the executor isolates it; None: not reported.
            cpus: the cpus that it has; empty: not reported.
        """
        self.transitions.move_slot(slot, SlotInput.CONFIRM)
        slot.allocated_time_ms = self.journal.at.time_ms
        _describe(slot, isolation, cpus)
        self.changes.slot_moved(slot)

    def grant(self, slot: Slot) -> None:
        """Grants a carved slot to its request. This is the moment of the slot offer."""
        request = self.requests[slot.allocation_id]
        self.transitions.move_request(request, RequestInput.CONFIRM)
        threads.begin(slot, self.journal.now_ms)
        self._serves(self.hosts.of(slot), request)
        self.journal.job_event(request, slot=slot)
        self.journal.slot_event("slot_granted", slot)

    def _serves(self, host: Host, request: Request) -> None:
        """Ends the host's refusal of the request's scheduling class, so that others of the class
        may go there.
        """
        refusal = host.refusals.pop(scheduling_key(request.spec), None) if host.refusals else None
        # Nothing became free, but blocked requests of the class may go to this host now.
        if refusal is not None and refusal.active:
            self.hosts.indexes.log_growth(host, self.queue)

    def reclaim(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Gives a slot back to its request when the lost executor returns with it.

        The request must still be queued, so that it does not have another slot. The arguments are
        those of `carve`.
        """
        request = self.requests[slot.allocation_id]
        self.queue.remove(request)
        self.unmark_superseded(slot)
        self.transitions.move_slot(slot, SlotInput.RECLAIM)
        self.usage.resume_accruing(slot)
        self.transitions.move_request(request, RequestInput.RECLAIM)
        # A slot that was lost before it was confirmed has no such time yet.
        slot.allocated_time_ms = slot.allocated_time_ms or self.journal.at.time_ms
        slot.grace_ms = None
        _describe(slot, isolation, cpus)
        # The order to take it down may not have been sent yet.
        self.hosts.of(slot).to_free.pop(key_of(slot), None)
        self.resizes.resume(slot)
        self.changes.slot_moved(slot)
        self.members.keep_move(request)
        self.journal.job_event(request, slot=slot)
        self.journal.slot_event("slot_reclaimed", slot)

    def free(self, slot: Slot, grace_ms: int | None = None) -> None:
        """Starts to take a slot down. A slot whose order was never sent is deleted at once.

        The slot's row is not written. After a restart, a slot that is not the current one of a
        living request counts as one that is being taken down.

        Args:
            slot: the slot.
            grace_ms: how long the executor gives the slot's tasks to end; None: its default.
        """
        host = self.hosts.of(slot)
        key = key_of(slot)
        # Nothing was sent, so no report or answer needs to be waited for.
        if key in host.to_allocate:
            self.vanish(slot)
            return
        # A slot may be freed again, such as with a shorter grace period; it stops accruing once.
        if slot.state is not SlotState.FREEING:
            self.usage.stop_accruing(slot)
        self.transitions.move_slot(slot, SlotInput.FREE)
        self.mark_superseded(slot)
        self.resizes.stop(slot)
        # `give_up` has ended the thread before, if it counts. In all other cases it must not count.
        slot.thread_since_ms = None
        slot.grace_ms = grace_ms
        host.to_free[key] = None
        self.outbox[host.host_id] = None

    def vanish(self, slot: Slot) -> None:
        """Deletes a slot that is known not to exist on its executor. Its capacity is free again."""
        was_freeing = slot.state is SlotState.FREEING
        if not was_freeing:
            self.usage.stop_accruing(slot)
        self.transitions.move_slot(slot, SlotInput.VANISH)
        host = self.hosts.of(slot)
        key = key_of(slot)
        self.resizes.stop(slot)
        host.drop(key)
        self.hosts.in_use -= not host.slots
        self.unmark_superseded(slot)
        if slot.assignment is not None and (slot.assignment.cpus or slot.assignment.numa):
            # A request may wait for just these cpus and nodes, however much capacity is free.
            self.hosts.indexes.log_growth(host, self.queue)
        del self.slots[key]
        if slot.job_id in self.jobs:
            self.jobs[slot.job_id].slot_keys.discard(key)
        self.usage.remove_slot(slot)
        self.changes.delete_slot(slot)
        self.hosts.touch(host)
        # A slot that was not being freed was lost or declined, which the caller has recorded.
        if was_freeing:
            self.journal.slot_event("slot_freed", slot)

    def requeue(self, request: Request, slot: Slot, reason: str, message: str) -> None:
        """Sends a request back to its place in the queue, unless its job has ended.

        A member of a gang is not queued here: `lifecycle/gangs.py` queues the gang. The job master
        gets an event if it had been offered the slot.

        Args:
            request: the request that has lost its slot.
            slot: that slot; the caller decides what happens to it.
            reason: for the event.
            message: for the event, for people.
        """
        was_granted = request.state is RequestState.GRANTED
        self.transitions.move_request(request, RequestInput.REQUEUE)
        if request.job_id not in self.endings and not request.spec.gang_id:
            self.queue.add(request)
            # Only requests that may not wait for a suitable executor are rejected, so only they are
            # checked.
            if not request.spec.allow_pending:
                scheduling_class = self.queue.class_of(request.spec)
                self.rejection_clock.requeued(scheduling_class, self.journal.now_ms)
        self.members.keep_move(request)
        if was_granted:
            self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def lose(self, slot: Slot, reason: str, message: str) -> None:
        """Handles the loss of a request's slot.

        The request goes back to the queue if the slot was never granted, or if it asked for another
        one (`restart_on_loss`). Otherwise it ends. The caller decides what happens to the slot.

        Args:
            slot: the slot.
            reason: for the events.
            message: for the events, for people.
        """
        request = self.requests.served_by(slot)
        if request is None:  # the slot serves no request, so nothing is lost
            return
        self.journal.slot_event("slot_lost", slot, reason=reason, message=message)
        if request.state is RequestState.ALLOCATING or request.spec.restart_on_loss:
            self.requeue(request, slot, reason, message)
        else:
            self.end_request(request, RequestInput.LOSE, reason=reason, message=message, slot=slot)

    def end_request(
        self,
        request: Request,
        how: RequestInput,
        *,
        reason: str = "",
        message: str = "",
        slot: Slot | None = None,
    ) -> None:
        """Ends a request and reports that to its job master.

        Args:
            request: a living request.
            how: the input of the state table; it must lead to an ended state.
            reason: for the job event.
            message: for the job event, for people.
            slot: the slot that the request had, if any.
        """
        self.transitions.move_request(request, how)
        if request.state not in ENDED_REQUEST_STATES:
            raise AssertionError(f"{how} does not end a request")
        self.queue.remove(request)  # no effect if it was placed
        request.reason = reason
        request.message = message
        request.end_time_ms = self.journal.at.time_ms
        self.members.keep_end(request)
        self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def reject(self, request: Request, reason: str, message: str) -> None:
        """Ends a request that must not wait any longer, with an entry in both logs.

        Args:
            request: a queued request.
            reason: machine-readable reason.
            message: the same for people.
        """
        self.end_request(request, RequestInput.REJECT, reason=reason, message=message)
        self.journal.cluster_event(
            "request_rejected",
            job_id=request.job_id,
            allocation_id=request.allocation_id,
            reason=reason,
            message=message,
        )

    def give_up(
        self,
        request: Request,
        *,
        reason: str = "",
        message: str = "",
        grace_ms: int | None = None,
    ) -> None:
        """Ends a living request because its job master or an operator asked for it.

        A queued request is cancelled. A granted one is released and its slot taken down.

        Args:
            request: the request.
            reason: for the job event; empty when its own job master releases the slot.
            message: for the job event, for people.
            grace_ms: how long the slot's tasks have to end; None: the executor's default.
        """
        # Looked up first: an ended request has no slot.
        slot = self.slots.of(request)
        how = RequestInput.RELEASE if request.state is RequestState.GRANTED else RequestInput.CANCEL
        self.end_request(request, how, reason=reason, message=message, slot=slot)
        if slot is not None:
            # Without a reason it is the job master that releases the slot: its thread of work is
            # done, so its duration counts. A slot that was taken away says nothing about durations.
            if how is RequestInput.RELEASE and not reason:
                threads.end(self.jobs[slot.job_id], slot, self.journal.now_ms)
            self.free(slot, grace_ms)
        if how is RequestInput.CANCEL:
            self.journal.cluster_event(
                "request_cancelled",
                job_id=request.job_id,
                allocation_id=request.allocation_id,
                reason=reason,
                message=message,
            )

    def decline(self, slot: Slot) -> None:
        """Handles a direct offer of the executor that the job master did not accept.

        The request ends, and the slot is deleted: the executor has taken it down already.
        """
        request = self.requests.served_by(slot)
        if request is not None:
            message = "its job master did not accept the offered slot in time"
            reason = Reason.OFFER_NOT_ACCEPTED
            self.end_request(
                request, RequestInput.DECLINE, reason=reason, message=message, slot=slot
            )
            self.journal.slot_event("slot_declined", slot, reason=reason, message=message)
        self.vanish(slot)

    def mark_superseded(self, slot: Slot) -> None:
        """Marks a slot that is being taken down while its request lives on and will get another
        one.
        """
        request = self.requests.get(slot.allocation_id)
        # An ended request gets no other slot, so nothing needs to avoid this host.
        if request is not None and request.state not in ENDED_REQUEST_STATES:
            self.slots.mark_superseded(slot)

    def unmark_superseded(self, slot: Slot) -> None:
        """Removes that mark: the slot no longer exists, or belongs to its request again."""
        if not self.slots.unmark_superseded(slot):
            return
        # None: the request is an ended member of a range.
        request = self.requests.get(slot.allocation_id)
        gang = self.gangs.of(request) if request is not None else None
        if gang is not None:
            # The gang could not use the host of the old slot until now.
            self.queue.non_batchables.unblock(gang.arrival_number)


def _describe(slot: Slot, isolation: Isolation | None, cpus: str) -> None:
    if isolation is not None:
        slot.isolation = isolation
    if cpus:
        slot.cpus = cpus
