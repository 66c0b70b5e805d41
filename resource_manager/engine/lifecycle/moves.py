"""Moves requests and their slots through their states.

Every move uses the state tables, and updates the ledgers, the queue, the job's log and the
cluster's history. Event handlers decide when to call a move. A move of one member can affect its
whole gang. So if `GangMoves` (`gangs.py`) has a method with the same name, handlers must call the
method of `GangMoves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, CpuPolicy
from finegrain.errors import Reason
from finegrain.mapping.copies import copier
from finegrain.units import format_duration
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import NO_REPORT, ThreadReport
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.cpus.neighbors import conflicts
from resource_manager.engine.fairness import threads
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.members import MemberRows
from resource_manager.engine.lifecycle.resizes import ResizeMoves
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.changes import ChangeTracker, Numbers
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Job,
    Request,
    RequestSpec,
    Slot,
    SlotKey,
)
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.state_tables import RequestInput, SlotInput
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import RangeLedger
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.queue.requests import Requests

REVOKED = "the slot was taken back for a request that is not revocable"
"""The message of a request whose slot was revoked."""


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
    timers: Timers
    transitions: Transitions
    members: MemberRows
    resizes: ResizeMoves
    usage: UsageAccounting

    def place(
        self,
        requests: Sequence[Request],
        host: Host,
        chosen: Iterable[CpuAssignment] | None = None,
        *,
        charged: bool = False,
    ) -> None:
        """Books slots for queued requests on a host, and adds the slots to the next AllocateSlots
        command for its executor.

        The caller must have checked that all slots fit on the host. The caller must also remove the
        requests from the queue.

        Args:
            requests: requests of one scheduling class. If `charged` is False, all of them must
                belong to one job.
            host: the host.
            chosen: the cpus, NUMA nodes and devices of the slots; None if the host must choose
                them.
            charged: True if the caller has already charged the slots to their jobs.

        Raises:
            InvariantBroken: the host's cpus or NUMA nodes do not suffice for all requests; see
                `Host.suits`.
        """
        policy = requests[0].spec.cpu_policy
        profile = requests[0].spec.profile or host.executor.registration.default_profile
        booked = host.booking_of(profile, best_effort=policy.best_effort)
        # Equal slots have equal cost, so amounts and cost are computed once for all of them.
        cost = self.costs.of(booked)
        assignments: Iterable[CpuAssignment | None] = repeat(None)
        # Cpus and NUMA nodes are chosen for all slots before the loop changes the cpu ledger.
        if chosen is not None:
            assignments = chosen
        elif host.aligning or policy is not PLAIN or profile.devices:
            scheduling_class = self.queue.class_of(requests[0].spec)
            assignments = host.assignments(scheduling_class, len(requests))
        # A host that had no slots counts as in use from now on.
        self.hosts.in_use += not host.slots
        # `strict` is off, because `repeat` never ends.
        for request, assignment in zip(requests, assignments, strict=False):
            spec = request.spec
            # After an older backup was restored, `generation_floor` is higher than all generations
            # that were used since the backup.
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
            # If there are no ranges, this check saves a lookup for each slot.
            if self.ranges.by_job:
                self.members.materialize(request)
            # Add the slot to all ledgers.
            self.transitions.move_request(request, RequestInput.PLACE)
            request.reason = request.message = ""
            key = spec.allocation_id, request.generation
            self.slots[key] = slot
            self.jobs[slot.job_id].slot_keys.add(key)
            host.slots[key] = slot
            if policy.neighbor_job:
                slot.policy = policy
                host.labeled.add(host.host_id, policy)
            if slot.revocable:
                host.revocable[key] = None
            if host.cpus is not None:
                host.cpus.add(key, assignment, slot.policy)
            # Until the command is sent, the slot can be deleted without a command to the executor.
            host.to_allocate[key] = None
            # The row of the request is not written, because a restart computes its state from the
            # row of the slot.
            self.changes.slot(slot)
        # All slots are equal, so one call books all of them.
        host.book(booked, len(requests))
        # A reservation also keeps the amounts that its owner's job has given back. The new slots of
        # this job use these amounts, so other requests have more room than the pass has recorded.
        own_job = host.reserved.own_job if host.reserved is not None else ""
        if own_job and any(request.job_id == own_job for request in requests):
            self.hosts.touch(host)
        if policy.neighbor_job:
            self.neighbors_changed(host, policy)
        if not charged:
            self.flows.place(requests[0].job_id, booked, len(requests), cost)
        self.outbox[host.host_id] = None

    def confirm(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Records that the executor has carved the slot, and grants the slot to its request.

        The arguments are the same as for `carve`.
        """
        self.carve(slot, isolation=isolation, cpus=cpus)
        self.grant(slot)

    def carve(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Records that the executor has carved the slot.

        The method does not grant the slot, because the request possibly has to wait for other
        members of its gang.

        Args:
            slot: the slot.
            isolation: the isolation that the executor reports for the slot; None if the executor
                reports no isolation.
            cpus: the cpus of the slot; empty if the executor reports no cpus.
        """
        self.transitions.move_slot(slot, SlotInput.CONFIRM)
        slot.allocated_time_ms = self.journal.at.time_ms
        _describe(slot, isolation, cpus)
        self.changes.slot_moved(slot)

    def grant(self, slot: Slot) -> None:
        """Grants a carved slot to its request. The job event of this call is the slot offer."""
        request = self.requests[slot.allocation_id]
        self.transitions.move_request(request, RequestInput.CONFIRM)
        threads.begin(slot, self.journal.now_ms)
        self._end_refusal(self.hosts.of(slot), request)
        self.journal.job_event(request, slot=slot)
        self.journal.slot_event("slot_granted", slot)

    def _end_refusal(self, host: Host, request: Request) -> None:
        """Ends the host's refusal of the request's scheduling class. Other requests of the class
        can then be placed on the host again.
        """
        refusal = host.refusals.pop(scheduling_key(request.spec), None) if host.refusals else None
        # The capacity of the host is unchanged, but blocked requests of the class can now be placed
        # on this host.
        if refusal is not None and refusal.active:
            self.hosts.indexes.log_growth(host, self.queue)

    def reclaim(self, slot: Slot, *, isolation: Isolation | None = None, cpus: str = "") -> None:
        """Gives a slot back to its request when a lost executor returns with the slot.

        The request must still be queued, because otherwise the request could have two slots. For
        the arguments, see `carve`.
        """
        request = self.requests[slot.allocation_id]
        self.queue.remove(request)
        self.unmark_superseded(slot)
        self.transitions.move_slot(slot, SlotInput.RECLAIM)
        self.usage.resume_accruing(slot)
        self.transitions.move_request(request, RequestInput.RECLAIM)
        # A slot that was lost before its confirmation has no allocation time yet.
        slot.allocated_time_ms = slot.allocated_time_ms or self.journal.at.time_ms
        slot.grace_ms = None
        _describe(slot, isolation, cpus)
        # If no FreeSlots command with the slot was sent yet, drop the queued order to free the
        # slot.
        self.hosts.of(slot).to_free.pop(key_of(slot), None)
        self.resizes.resume(slot)
        self.changes.slot_moved(slot)
        self.members.keep_move(request)
        self.journal.job_event(request, slot=slot)
        self.journal.slot_event("slot_reclaimed", slot)

    def free(self, slot: Slot, grace_ms: int | None = None) -> None:
        """Starts to free a slot. If the slot was never sent to its executor, the slot is deleted at
        once.

        The row of the slot is not written. After a restart, each slot that is not the current slot
        of a live request is FREEING.

        Args:
            slot: the slot.
            grace_ms: the time that the slot's tasks have until they must end; None means the
                executor's default.
        """
        host = self.hosts.of(slot)
        key = key_of(slot)
        # The executor does not know the slot, so no report or answer about the slot will arrive.
        if key in host.to_allocate:
            self.vanish(slot)
            return
        # `free` can be called again for the same slot, for example with a shorter grace period. In
        # this case, the slot has already stopped accruing.
        if slot.state is not SlotState.FREEING:
            self.usage.stop_accruing(slot)
        self.transitions.move_slot(slot, SlotInput.FREE)
        self.mark_superseded(slot)
        self.resizes.stop(slot)
        # `give_up` has already recorded the duration of the thread of work, if this duration
        # counts.
        slot.thread_since_ms = None
        slot.grace_ms = grace_ms
        host.to_free[key] = None
        self.outbox[host.host_id] = None

    def vanish(self, slot: Slot) -> None:
        """Deletes a slot that no longer exists on its executor. The capacity of the slot is free
        again.
        """
        was_freeing = slot.state is SlotState.FREEING
        if not was_freeing:
            self.usage.stop_accruing(slot)
        self.transitions.move_slot(slot, SlotInput.VANISH)
        host = self.hosts.of(slot)
        key = key_of(slot)
        self.resizes.stop(slot)
        host.drop(key)
        if slot.revoked_for:
            # The slot of the request for which this slot was revoked can possibly be ordered now.
            self.outbox[host.host_id] = None
        self.hosts.in_use -= not host.slots
        self.unmark_superseded(slot)
        if slot.policy is not None:
            self.neighbors_changed(host, slot.policy)
        if slot.assignment is not None and (slot.assignment.cpus or slot.assignment.numa):
            # Some blocked requests possibly need exactly these cpus and nodes, even if other
            # capacity was free before.
            self.hosts.indexes.log_growth(host, self.queue)
        del self.slots[key]
        if slot.job_id in self.jobs:
            self.jobs[slot.job_id].slot_keys.discard(key)
        self.usage.remove_slot(slot)
        self.changes.delete_slot(slot)
        self.hosts.touch(host)
        for victim in [each for each, owner in host.revoked.items() if owner == key[0]]:
            self._end_revocation(host, host.slots[victim])
        # If the slot was not FREEING, it was lost or declined, and the caller writes the event.
        if was_freeing:
            self.journal.slot_event("slot_freed", slot)

    def neighbors_changed(self, host: Host, policy: CpuPolicy) -> None:
        """Unblocks requests of a job because their rules about neighbors are possibly met now.

        The caller has added or removed a slot of the job on the host.
        """
        self.hosts.indexes.log_growth(host, self.queue)
        # If the last slot that a rule `near` of the job selects has ended, requests that must be
        # near each other can start on any host again.
        self.queue.unblock_job(policy.neighbor_job)

    def take_back(self, slot: Slot, owner: Request, *, grace_ms: int) -> None:
        """Frees a revoked slot for another request, which is placed on the slot's host in the same
        step.

        The slot books nothing from now on: its capacity is booked for `owner`. The order for the
        owner's slot is sent when all slots that were revoked for the owner have ended.

        Args:
            slot: a slot that is revocable, without a resize in flight, and serves no request any
                more.
            owner: the request that gets the capacity.
            grace_ms: the time that the tasks of the slot have until they must end.
        """
        # If another slot of its gang was revoked before, the slot is being freed already.
        if slot.state is not SlotState.FREEING:
            self.free(slot, grace_ms)
        slot.revoked_for = owner.allocation_id
        slot.revoked_until_time_ms = self.journal.at.time_ms + grace_ms
        host = self.hosts.of(slot)
        host.revoked[key_of(slot)] = owner.allocation_id
        self._book_again(host, slot)
        # The owner possibly needs only a part of what the slot had. Blocked requests possibly need
        # the rest: its cpus, its nodes, or a place without it as a neighbor.
        if slot.policy is not None:
            host.labeled.remove(host.host_id, slot.policy)
            self.neighbors_changed(host, slot.policy)
        elif slot.assignment is not None:
            self.hosts.indexes.log_growth(host, self.queue)
        self.journal.slot_event(
            "slot_revoked",
            slot,
            reason=Reason.REVOKED,
            message=f"for request {owner.allocation_id} of job {owner.job_id}",
        )

    def _end_revocation(self, host: Host, slot: Slot) -> None:
        """Ends the revocation of a slot, because the request for which the slot was revoked does
        not need the capacity any more. If the executor has no order to free the slot yet, the slot
        serves its own request again. There is one exception: a gang returns to its slots only as a
        whole, so a member of a gang does not get its slot back.
        """
        key = key_of(slot)
        until_ms = slot.revoked_until_time_ms
        slot.revoked_for, slot.revoked_until_time_ms = "", None
        del host.revoked[key]
        self._book_again(host, slot)
        if slot.policy is not None:
            host.labeled.add(host.host_id, slot.policy)
        heirs = host.to_allocate or host.to_resize
        if heirs and host.cpus is not None and conflicts(host.cpus):
            # Slots that were placed or have grown in the meantime rely on the end of this slot:
            # they have its cpus or devices, or a rule keeps them apart from it. So it ends for one
            # of them.
            heir, _ = next(iter(heirs))
            slot.revoked_for, slot.revoked_until_time_ms = heir, until_ms
            host.revoked[key] = heir
            self._book_again(host, slot)
            if slot.policy is not None:
                host.labeled.remove(host.host_id, slot.policy)
            return
        if host.cpus is not None:
            # The host has possibly become smaller while the ledger did not contain the slot.
            host.cpus.tolerate()
        request = self.requests.get(slot.allocation_id)
        if (
            request is not None
            and request.state is RequestState.PENDING
            and request.generation == slot.generation
            and not request.spec.gang_id
            and request.job_id not in self.endings
            and host.eligible
            and key in host.to_free
            and host.reported.get(key) is SlotState.ALLOCATED
        ):
            self.reclaim(slot)

    def _book_again(self, host: Host, slot: Slot) -> None:
        before = slot.booked
        host.set_size(slot, slot.profile, slot.assignment, slot.ordered)
        self.usage.rebooked([(slot, before)])
        self.changes.slot_moved(slot)
        self.hosts.touch(host)

    def requeue(self, request: Request, slot: Slot, reason: str, message: str) -> None:
        """Queues a request again at its old place, unless its job has ended.

        This method does not queue a member of a gang, because `lifecycle/gangs.py` queues the whole
        gang. If the slot had been granted, the job master gets an event.

        Args:
            request: the request that has lost its slot.
            slot: the lost slot. The caller decides whether the slot is freed or deleted.
            reason: reason in the event.
            message: message in the event, for people.
        """
        was_granted = request.state is RequestState.GRANTED
        self.transitions.move_request(request, RequestInput.REQUEUE)
        if request.job_id not in self.endings and not request.spec.gang_id:
            self.queue.add(request)
            self._arm_timeout(request, again=was_granted)
            # The rejection clock concerns only requests that are not allowed to wait for a suitable
            # executor.
            if not request.spec.allow_pending:
                scheduling_class = self.queue.class_of(request.spec)
                self.rejection_clock.requeued(scheduling_class, self.journal.now_ms)
        self.members.keep_move(request)
        if was_granted:
            self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def _arm_timeout(self, request: Request, *, again: bool) -> None:
        """Arms the timer of a request that is queued again. If the request was granted, its timeout
        starts again. Otherwise its deadline stays the same, but the timer has possibly fired while
        the request was placed.
        """
        timeout_ms = request.spec.wait_timeout_ms
        if timeout_ms is None:
            return
        if again:
            request.waiting_until_ms = self.journal.now_ms + timeout_ms
        elif request.waiting_until_ms is None:
            # Until now, the request had no separate deadline. It is a member of a range, and the
            # timer of its part was enough. Or it was ALLOCATING when the manager was restarted.
            found = self.ranges.named(request.allocation_id)
            until_ms = found[0].waiting_until_ms if found is not None else None
            if until_ms is None:
                until_ms = self.journal.deadline_ms(timeout_ms, request.create_time_ms)
            request.waiting_until_ms = until_ms
        self.timers.arm(Timer.REQUEST, request.allocation_id, request.waiting_until_ms)

    def lose(self, slot: Slot, reason: str, message: str) -> None:
        """Handles the loss of a request's slot.

        The request is queued again in two cases: the slot was never granted, or the request has
        `restart_on_loss`. Otherwise the request ends. The caller decides whether the slot is freed
        or deleted.

        Args:
            slot: the slot.
            reason: reason in the events.
            message: message in the events, for people.
        """
        request = self.requests.served_by(slot)
        if request is None:  # the slot serves no request, so no request has to be moved
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
        """Ends a request, and reports the end to its job master.

        Args:
            request: a live request.
            how: the input of the state table; it must lead to an ended state.
            reason: reason in the job event.
            message: message in the job event, for people.
            slot: the former slot of the request; None if the request had no slot.
        """
        self.transitions.move_request(request, how)
        if request.state not in ENDED_REQUEST_STATES:
            raise AssertionError(f"{how} does not end a request")
        self.queue.remove(request)  # has no effect if the request is not queued
        request.reason = reason
        request.message = message
        request.end_time_ms = self.journal.at.time_ms
        self.members.keep_end(request)
        self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def reject(self, request: Request, reason: str, message: str) -> None:
        """Rejects a queued request, with an entry in the job's log and an entry in the cluster's
        history.

        Args:
            request: a queued request.
            reason: machine-readable reason.
            message: reason for people.
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
        report: ThreadReport = NO_REPORT,
    ) -> None:
        """Ends a live request on behalf of its job master or an administrator.

        A granted request is released, and any other request is cancelled. If the request has a
        slot, the slot is freed.

        Args:
            request: the request.
            reason: reason in the job event; empty if the request's own job master releases the
                slot.
            message: message in the job event, for people.
            grace_ms: time that the tasks of the slot have until they must end; None means the
                executor's default.
            report: the job master's report about the threads of work in the slot.
        """
        # The slot is looked up first, because an ended request has no slot.
        slot = self.slots.of(request)
        how = RequestInput.RELEASE if request.state is RequestState.GRANTED else RequestInput.CANCEL
        self.end_request(request, how, reason=reason, message=message, slot=slot)
        if slot is not None:
            # Without a reason, the job master has released the slot after the end of an attempt at
            # a thread of work. So this attempt is recorded. With a reason, the slot was taken away
            # before the attempt had ended.
            if how is RequestInput.RELEASE and not reason:
                key = scheduling_key(request.spec)
                threads.end(self.jobs[slot.job_id], slot, key, self.journal.now_ms, report)
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
        """Handles a slot that the executor offered directly, and that the job master did not
        accept.

        The request ends. The slot is deleted, because the executor has already freed it.
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

    def end_at_limit(self, slot: Slot) -> bool:
        """Handles a slot that its executor has ended, because the time limit of the slot was over.

        The request ends, even with `restart_on_loss`: another slot would only reach the limit
        again. The slot is deleted, because nothing of the slot is left on the executor.

        Returns:
            False if the slot was never granted. In this case, the request must get another slot, so
            the caller must handle the slot as lost.
        """
        request = self.requests.served_by(slot)
        if request is not None and request.state is not RequestState.GRANTED:
            return False
        if request is not None:
            reason, message = Reason.TIME_LIMIT, time_limit_text(slot.time_limit_ms)
            self.end_request(
                request, RequestInput.RELEASE, reason=reason, message=message, slot=slot
            )
            self.journal.slot_event("slot_timed_out", slot, reason=reason, message=message)
        self.vanish(slot)
        return True

    def mark_superseded(self, slot: Slot) -> None:
        """Marks a slot that is being freed although its request is live. The request waits for
        another slot.

        The request's next slot must not be placed on the host of a marked slot.
        """
        request = self.requests.get(slot.allocation_id)
        if request is not None and request.state not in ENDED_REQUEST_STATES:
            self.slots.mark_superseded(slot)

    def unmark_superseded(self, slot: Slot) -> None:
        """Removes the mark of `mark_superseded`, because the slot was deleted or belongs to its
        request again.
        """
        if not self.slots.unmark_superseded(slot):
            return
        # The request is None if it was a member of a range and has ended.
        request = self.requests.get(slot.allocation_id)
        gang = self.gangs.of(request) if request is not None else None
        if gang is not None:
            # Until now, the gang could not use the slot's host. Now it can, so the gang is tried
            # again.
            self.queue.non_batchables.unblock(gang.arrival_number)


def time_limit_text(limit_ms: int | None) -> str:
    """Returns the message of a request whose slot has reached its time limit."""
    limit = "" if limit_ms is None else f" of {format_duration(limit_ms / 1000)}"
    return f"its executor ended the slot, because the time limit{limit} was over"


def _describe(slot: Slot, isolation: Isolation | None, cpus: str) -> None:
    if isolation is not None:
        slot.isolation = isolation
    if cpus:
        slot.cpus = cpus
