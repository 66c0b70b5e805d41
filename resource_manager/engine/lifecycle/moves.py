"""What happens to a request and its slot together: placed, confirmed, given up, lost, gone.

Every move goes through the state tables and keeps the books, the queue and both logs in step. Why
something moves, the handlers decide. They call those of `lifecycle/gangs.py` where there are any:
what is done to a member of a gang may be done to all.
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
from resource_manager.engine.fairness.starvation import StarvationClocks
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
    """Identity of a slot."""
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
    starvation: StarvationClocks
    transitions: Transitions
    members: MemberRows
    resizes: ResizeMoves
    usage: UsageAccounting

    def place(self, requests: Sequence[Request], host: Host) -> None:
        """Books slots for waiting requests of one job and one shape on a host that has room for all
        of them, with the cpus and NUMA nodes that the host gives them, and queues the orders. The
        caller takes the requests out of the queue.

        Raises:
            InvariantBroken: cpus or NUMA nodes there do not suit all of them; see `Host.suits`.
        """
        policy = requests[0].spec.cpu_policy
        profile = requests[0].spec.profile or host.executor.registration.default_profile
        booked = host.booking_of(profile, best_effort=policy.best_effort)
        cost = self.costs.of(booked)
        assignments: Iterable[CpuAssignment | None] = repeat(None)
        if host.aligning or policy is not PLAIN:
            scheduling_class = self.queue.class_of(requests[0].spec)
            assignments = host.assignments(scheduling_class, len(requests))
        self.hosts.in_use += not host.slots
        for request, assignment in zip(requests, assignments, strict=False):
            spec = request.spec
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
            if self.ranges:
                self.members.materialize(request)
            self.transitions.move_request(request, RequestInput.PLACE)
            request.reason = request.message = ""
            key = key_of(slot)
            self.slots[key] = slot
            self.jobs[slot.job_id].slot_keys.add(key)
            host.slots[key] = slot
            if host.cpus is not None:
                host.cpus.add(key, assignment)
            host.to_allocate[key] = None
            self.changes.slot(slot)  # a restart reads the request's state off its slot
        host.book(booked, len(requests))
        self.flows.place(requests[0].job_id, booked, len(requests), cost)
        self.starvation.placements += len(requests)
        self.outbox[host.host_id] = None

    def confirm(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """The executor carved the slot: its request is granted."""
        self.carve(slot, isolation=isolation, cpus=cpus)
        self.grant(slot)

    def carve(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """The executor carved the slot; its request may still have to wait for others."""
        self.transitions.move_slot(slot, SlotInput.CONFIRM)
        slot.allocated_time_ms = self.journal.at.time_ms
        _describe(slot, isolation, cpus)
        self.changes.slot_moved(slot)

    def grant(self, slot: Slot) -> None:
        """A slot that was carved goes to its request."""
        request = self.requests[slot.allocation_id]
        self.transitions.move_request(request, RequestInput.CONFIRM)
        threads.begin(slot, self.journal.now_ms)
        self._serves(self.hosts.of(slot), request)
        self.journal.job_event(request, slot=slot)
        self.journal.slot_event("slot_granted", slot)

    def _serves(self, host: Host, request: Request) -> None:
        """Whatever the host refused of this shape is over, and others of the shape may come."""
        refusal = host.refusals.pop(scheduling_key(request.spec), None) if host.refusals else None
        if refusal is not None and refusal.active:
            self.hosts.indexes.log_growth(host, self.queue)

    def reclaim(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """A lost executor came back with a slot that its request still waits for."""
        request = self.requests[slot.allocation_id]
        self.queue.remove(request)
        self.unmark_superseded(slot)
        self.transitions.move_slot(slot, SlotInput.RECLAIM)
        self.usage.resume_accruing(slot)
        self.transitions.move_request(request, RequestInput.RECLAIM)
        slot.allocated_time_ms = slot.allocated_time_ms or self.journal.at.time_ms
        slot.grace_ms = None
        _describe(slot, isolation, cpus)
        self.hosts.of(slot).to_free.pop(key_of(slot), None)
        self.resizes.resume(slot)
        self.changes.slot_moved(slot)
        self.members.keep_move(request)
        self.journal.job_event(request, slot=slot)
        self.journal.slot_event("slot_reclaimed", slot)

    def free(self, slot: Slot, grace_ms: int | None = None) -> None:
        """Begins to take a slot down; one that was never ordered is gone at once.

        Its row is not touched: a slot that no living request has is one that is being taken down,
        also after a restart.
        """
        host = self.hosts.of(slot)
        key = key_of(slot)
        if key in host.to_allocate:
            self.vanish(slot)
            return
        if slot.state is not SlotState.FREEING:
            self.usage.stop_accruing(slot)
        self.transitions.move_slot(slot, SlotInput.FREE)
        self.mark_superseded(slot)
        self.resizes.stop(slot)
        slot.thread_since_ms = None
        slot.grace_ms = grace_ms
        host.to_free[key] = None
        self.outbox[host.host_id] = None

    def vanish(self, slot: Slot) -> None:
        """The slot is known not to exist: its capacity is free again."""
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
            # Its cpus and nodes may be all that somebody waits for, whatever amounts have grown.
            self.hosts.indexes.log_growth(host, self.queue)
        del self.slots[key]
        if slot.job_id in self.jobs:
            self.jobs[slot.job_id].slot_keys.discard(key)
        self.usage.remove_slot(slot)
        self.changes.delete_slot(slot)
        self.hosts.touch(host)
        if was_freeing:
            self.journal.slot_event("slot_freed", slot)

    def requeue(self, request: Request, slot: Slot, reason: str, message: str) -> None:
        """Back to the old place in line, unless its job has ended. (The place of a gang's member is
        that of its gang, which `lifecycle/gangs.py` puts there.)

        The job master is told if it had been offered the slot.
        """
        was_granted = request.state is RequestState.GRANTED
        self.transitions.move_request(request, RequestInput.REQUEUE)
        if request.job_id not in self.endings and not request.spec.gang_id:
            self.queue.add(request)
            if not request.spec.allow_pending:
                scheduling_class = self.queue.class_of(request.spec)
                self.rejection_clock.requeued(scheduling_class, self.journal.now_ms)
        self.members.keep_move(request)
        if was_granted:
            self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def lose(self, slot: Slot, reason: str, message: str) -> None:
        """The slot's request has lost it: back in line if it was never granted or wants another
        one, else ended.

        What becomes of the slot itself is the caller's next move.
        """
        request = self.requests.served_by(slot)
        if request is None:
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
        """Ends a request and tells its job master."""
        self.transitions.move_request(request, how)
        if request.state not in ENDED_REQUEST_STATES:
            raise AssertionError(f"{how} does not end a request")
        self.queue.remove(request)
        request.reason = reason
        request.message = message
        request.end_time_ms = self.journal.at.time_ms
        self.members.keep_end(request)
        self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def reject(self, request: Request, reason: str, message: str) -> None:
        """Ends a request that may not wait any longer."""
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
        """Ends a living request on somebody's wish: a waiting one is cancelled, a slot is taken
        down.
        """
        slot = self.slots.of(request)
        how = RequestInput.RELEASE if request.state is RequestState.GRANTED else RequestInput.CANCEL
        self.end_request(request, how, reason=reason, message=message, slot=slot)
        if slot is not None:
            if how is RequestInput.RELEASE and not reason:  # by its job master, not taken away
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
        """The job master did not take the executor's direct offer: the request ends, the slot is
        gone.
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
        """A slot is being taken down; its request, if it lives on, is to have another one."""
        request = self.requests.get(slot.allocation_id)
        if request is not None and request.state not in ENDED_REQUEST_STATES:
            self.slots.mark_superseded(slot)

    def unmark_superseded(self, slot: Slot) -> None:
        """A slot that may have been left behind is gone, or its request's again."""
        if not self.slots.unmark_superseded(slot):
            return
        request = self.requests.get(slot.allocation_id)  # none: a member that has ended
        gang = self.gangs.of(request) if request is not None else None
        if gang is not None:
            self.queue.non_batchables.unblock(gang.arrival_number)  # it may go there now


def _describe(slot: Slot, isolation: Isolation | None, cpus: str) -> None:
    if isolation is not None:
        slot.isolation = isolation
    if cpus:
        slot.cpus = cpus
