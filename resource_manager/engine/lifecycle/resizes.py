"""Slots that change their size: asked, in line, ordered, confirmed or refused.

The life of a change. It gets the slot's next number when it is asked for. What takes no more room
on the slot's executor than the slot has is ordered at once; what grows waits in line at its own
arrival number and is ordered when the growth fits there. From the order on, the larger of both
sizes is booked, in each dimension. What an executor reports is what it enforces: a state that shows
the number of the change confirms it, and only then is free for others what shrank. The order is
repeated until a state or an answer says what became of it.

A slot that has cpus of its own, or is bound to NUMA nodes, keeps them: what it grows by has to be
found beside them (`cpus/resizing.py`). Where that is, is decided with the order; until the executor
has confirmed, both are booked.

A change that is asked for replaces one that waits; behind one that is ordered it waits. One that
the executor could not carry out goes back to its old place in line after a pause, or ends.

Knows one slot and its executor; which one of those in line is tried when, the queue knows.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN
from finegrain.errors import InvariantBroken, Reason
from finegrain.resources import Amounts, ResourceProfile, fits, shortfall
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resizing import fits_alone, resized
from resource_manager.engine.fairness.starvation import StarvationClocks
from resource_manager.engine.hosts.cpu_allocator import NO_TOPOLOGY
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import ResizeBackoff
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Request, Resize, Slot, SlotKey
from resource_manager.engine.model.reported import ReportedSlot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.state_tables import ResizeInput
from resource_manager.engine.model.timers import Timer, Timers, backoff_ms
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.non_batchable import NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests

if TYPE_CHECKING:
    from resource_manager.engine.placement.placement_pass import PlacementPass


@dataclass(slots=True, eq=False)
class ResizeMoves:
    """Moves changes of size through their states."""

    journal: Journal
    changes: ChangeTracker
    hosts: Hosts
    outbox: dict[str, None]
    queue: WaitingQueue
    requests: Requests
    settings: EngineSettings
    slots: Slots
    starvation: StarvationClocks
    timers: Timers
    transitions: Transitions
    usage: UsageAccounting

    def try_growth(self, placing: PlacementPass, item: NonBatchable) -> bool:
        """Orders a change that waits in line if its growth fits now; False: it does not."""
        slot = self.slots[item.name, item.generation]
        host = self.hosts[slot.executor_id]
        needed = growth(host, slot)
        if needed and not (host.eligible and fits(needed, host.spare())):
            return False
        if needed and is_blocked_by_reservation(host, slot):
            return False
        found = self.assignment_for(host, slot)
        if isinstance(found, CpuRefusal):
            return False
        self.order(slot, found)
        if needed or found is not None:
            placing.follow([host])
        return True

    def assignment_for(self, host: Host, slot: Slot) -> CpuAssignment | CpuRefusal | None:
        """The cpus and NUMA nodes that a slot has with the change that waits, or why there are none
        now; None: it runs in the whole shared pool, and goes on to.
        """
        current, wanted = slot.assignment, slot.wanted
        if current is None or wanted is None:
            return current
        if host.cpus is None:
            return NO_TOPOLOGY if current.cpus or current.numa else current
        return resized(
            host.cpus,
            (slot.allocation_id, slot.generation),
            current,
            self.cpu_request_of(host, slot, wanted),
        )

    def unsuited(self, host: Host, slot: Slot, size: Resize) -> CpuRefusal | None:
        """Why a host's cpus and NUMA nodes could not suit a slot of this size, even if it were the
        only one there; None: they could.
        """
        current = slot.assignment
        if slot.ordered is not None:
            current = slot.ordered.assignment or current
        if current is None or host.cpus is None:
            return None
        key = (slot.allocation_id, slot.generation)
        return fits_alone(host.cpus, key, current, self.cpu_request_of(host, slot, size))

    def cpu_request_of(self, host: Host, slot: Slot, size: Resize) -> CpuRequest:
        """What a slot of this size needs of its host's cpus and NUMA nodes."""
        request = self.requests.get(slot.allocation_id)
        policy = request.spec.cpu_policy if request is not None else PLAIN
        booked = host.booking_of(size.profile, best_effort=slot.best_effort)
        return CpuRequest.of(policy, booked, size.cpu_limit_milli)

    def advance(self, slot: Slot) -> None:
        """Lets the change that a slot waits with, if any, take its next step: it is ordered, or
        stands in line.
        """
        wanted = slot.wanted
        if wanted is None or slot.ordered is not None or slot.state is not SlotState.ALLOCATED:
            return
        host = self.hosts.of(slot)
        backoff = host.resize_backoffs.get((slot.allocation_id, slot.generation))
        if backoff is not None and backoff.active:
            return
        if has_size(slot, wanted):  # since what was ordered before it was refused
            self.withdraw(host, slot)
            self.changes.slot(slot)
            self._report(slot, wanted.number)
            return
        found = self.assignment_for(host, slot)
        if not (growth(host, slot) or isinstance(found, CpuRefusal)):
            self.queue.non_batchables.remove(wanted.arrival_number)
            self.order(slot, found)
        elif wanted.arrival_number not in self.queue.non_batchables:
            self.queue.add_resize(slot)
        else:
            self.queue.non_batchables.unblock(
                wanted.arrival_number
            )  # it may grow by less than it was to

    def stop(self, slot: Slot) -> None:
        """A slot is being taken down: its size is changed no more.

        What it wants is kept, for the case that it is taken back; and what was ordered, since the
        executor may have done it.
        """
        host = self.hosts.of(slot)
        key = (slot.allocation_id, slot.generation)
        host.to_resize.pop(key, None)
        host.resize_backoffs.pop(key, None)
        if slot.wanted is not None:
            self.queue.non_batchables.remove(slot.wanted.arrival_number)

    def resume(self, slot: Slot) -> None:
        """A conversation with an executor began anew, or it came back with the slot: what was
        ordered and is not enforced is ordered again, and what waits stands in line.
        """
        if slot.state is not SlotState.ALLOCATED:
            return
        if slot.ordered is None:
            self.advance(slot)
            return
        host = self.hosts.of(slot)
        host.to_resize[slot.allocation_id, slot.generation] = None
        self.outbox[host.host_id] = None

    def adopt_reported_size(self, slot: Slot, seen: ReportedSlot) -> None:
        """Makes the books follow the size that an executor enforces, as a newer state shows it.

        If that is not what was ordered, it is the truth all the same. A number above the one that
        was ordered, or that waits, or that was ever given out here, is of a change that later books
        than these ordered before they were lost; so is one with another content. And an executor
        that crashed when its disk was full may do what it had refused, or take back what it had
        confirmed.
        """
        ordered, wanted, number = slot.ordered, slot.wanted, seen.resize_number
        if ordered is not None and number == ordered.number and _size(seen) == _size(ordered):
            self._adopt(slot, seen)
            return
        if ordered is not None:
            unknown_from = ordered.number
        else:
            unknown_from = wanted.number if wanted is not None else slot.resize_number + 1
        if number < unknown_from and _size(seen) == _size(slot):
            return
        slot.resize_number = max(slot.resize_number, number)
        if wanted is not None and wanted.number <= number:
            self.withdraw(self.hosts.of(slot), slot)
        self._adopt(slot, seen)
        self.hosts.of(slot).notice_shrinking()

    def _adopt(self, slot: Slot, seen: ReportedSlot) -> None:
        """The slot has this size. What is ordered stays so if it is newer."""
        host = self.hosts.of(slot)
        key = (slot.allocation_id, slot.generation)
        ordered, number = slot.ordered, seen.resize_number
        if ordered is not None and ordered.number <= number:
            ordered = None
            host.to_resize.pop(key, None)
        host.resize_backoffs.pop(key, None)
        slot.assignment = _assignment_seen(slot, seen)
        confirmed = slot.ordered is not None and ordered is None
        with (
            self.transitions.moving_resize(slot, ResizeInput.CONFIRM)
            if confirmed
            else nullcontext()
        ):
            self._set_size(host, slot, profile=seen.profile, ordered=ordered)
        _, slot.cpu_limit_milli = _size(seen)
        slot.cpus = seen.cpus  # of another size it may have others
        if seen.isolation is not None:
            slot.isolation = seen.isolation
        self.changes.slot(slot)
        if slot.wanted is not None and ordered is None and has_size(slot, slot.wanted):
            number = slot.wanted.number
            self.withdraw(host, slot)
        self._report(slot, number)
        self.advance(slot)

    def _report(self, slot: Slot, number: int) -> None:
        """The job master hears that a change is done, if it still has the slot."""
        request = self._granted(slot)
        if request is not None:
            message = f"change {number}: {size_text(slot)}"
            self.journal.slot_event("slot_resized", slot, message=message)
            self.journal.job_event(request, reason=Reason.RESIZED, message=message, slot=slot)

    def resize_answered(self, host: Host, key: SlotKey, number: int, outcome: ItemOutcome) -> None:
        """The executor has answered the order of a change, and the state that came along was taken
        in.

        If that has not confirmed the change, the executor has refused it.
        """
        slot = host.slots.get(key)
        if slot is None or slot.ordered is None or slot.ordered.number != number:
            return
        ordered = slot.ordered
        with self.transitions.moving_resize(slot, ResizeInput.REFUSE):
            self._set_size(host, slot, profile=slot.profile, ordered=None)
        self.hosts.touch(host)
        self.changes.slot(slot)
        request = self._granted(slot)
        if request is None:
            return
        message = outcome.message or f"executor {host.host_id} did not do what it said"
        reason = outcome.reason or Reason.RESIZE_REFUSED
        ends = _ends(outcome, ordered)
        if slot.wanted is None and not ends:
            with self.transitions.moving_resize(slot, ResizeInput.RETRY):
                slot.wanted = replace(ordered, assignment=None)  # others may be there by then
            self._back_off(host, slot, outcome, message)
            return
        text = f"change {number} to {size_text(ordered)}: {message}"
        self.journal.slot_event("slot_resize_refused", slot, reason=reason, message=text)
        host.resize_backoffs.pop(key, None)
        self.journal.job_event(request, reason=Reason.RESIZE_REFUSED, message=text, slot=slot)
        self.advance(slot)

    def _back_off(self, host: Host, slot: Slot, outcome: ItemOutcome, message: str) -> None:
        """Lets a change that could not be carried out pause; it keeps its place in the queue."""
        settings, key = self.settings, (slot.allocation_id, slot.generation)
        before = host.resize_backoffs.get(key)
        failures = before.failures if before is not None else 0
        delay = backoff_ms(failures, settings.resize_retry_min_ms, settings.resize_retry_max_ms)
        until_ms = self.journal.now_ms + delay
        below_use = outcome.reason == Reason.BELOW_USE  # which the state does not tell
        host.resize_backoffs[key] = ResizeBackoff(
            number=slot.wanted.number if slot.wanted is not None else 0,
            failures=failures + 1,
            until_ms=until_ms,
            reason=outcome.reason,
            message=message,
            state_seen=None if below_use else host.state_seen(),
        )
        self.timers.arm(Timer.RESIZE, slot.allocation_id, until_ms)

    def resize_timer_fired(self, allocation_id: str) -> None:
        """A change that could not be carried out may be tried again."""
        request = self.requests.get(allocation_id)
        slot = self.slots.of(request) if request is not None else None
        if slot is None:
            return
        backoff = self.hosts.of(slot).resize_backoffs.get((allocation_id, slot.generation))
        if backoff is None or not backoff.active:
            return
        if self.journal.now_ms < backoff.until_ms:
            self.timers.arm(Timer.RESIZE, allocation_id, backoff.until_ms)
            return
        backoff.active = False
        self.advance(slot)

    def end_backoffs(self, host: Host) -> None:
        """A new state of the host was taken in: who was refused on another one may try again."""
        present = host.state_seen()
        for key, backoff in list(host.resize_backoffs.items()):
            if backoff.active and backoff.state_seen is not None and backoff.state_seen != present:
                backoff.active = False
                self.advance(host.slots[key])

    def order(self, slot: Slot, assignment: CpuAssignment | None) -> None:
        """The change that waits is the executor's to carry out; its growth must fit there, and the
        slot has these cpus and NUMA nodes then (`assignment_for`).
        """
        host = self.hosts.of(slot)
        if slot.wanted is None:
            raise InvariantBroken(f"slot {slot.allocation_id} waits for no other size")
        ordered = replace(slot.wanted, assignment=assignment)
        self.starvation.placements += 1
        with self.transitions.moving_resize(slot, ResizeInput.ORDER):
            slot.wanted = None
            self._set_size(
                host,
                slot,
                profile=slot.profile,
                ordered=ordered,
            )
        host.to_resize[slot.allocation_id, slot.generation] = None
        self.outbox[host.host_id] = None
        self.changes.slot(slot)

    def _set_size(
        self,
        host: Host,
        slot: Slot,
        *,
        profile: ResourceProfile,
        ordered: Resize | None,
    ) -> None:
        before = slot.booked
        host.set_size(slot, profile, ordered)
        self.usage.rebooked([(slot, before)])

    def withdraw(self, host: Host, slot: Slot) -> None:
        """Strikes the change that a slot waits with, if any."""
        if slot.wanted is not None:
            self.queue.non_batchables.remove(slot.wanted.arrival_number)
            host.resize_backoffs.pop((slot.allocation_id, slot.generation), None)
            with self.transitions.moving_resize(slot, ResizeInput.WITHDRAW):
                slot.wanted = None

    def _granted(self, slot: Slot) -> Request | None:
        """The request that has been granted this slot; None: it was given up or replaced."""
        request = self.requests.served_by(slot)
        return request if request is not None and request.state is RequestState.GRANTED else None


def growth(host: Host, slot: Slot) -> Amounts:
    """What a slot has to have more than it has booked for the change that waits; empty: nothing."""
    if slot.wanted is None:
        return {}
    need = host.booking_of(slot.wanted.profile, best_effort=slot.best_effort)
    return shortfall(need, slot.booked)


def is_blocked_by_reservation(host: Host, slot: Slot) -> bool:
    """True if a host is held for somebody, and the slot would grow by cpus or NUMA shares there:
    which of them he needs, amounts do not say. (Whom it is held for does not ask.)
    """
    current = slot.assignment
    return host.reserved is not None and current is not None and bool(current.cpus or current.numa)


def _assignment_seen(slot: Slot, seen: ReportedSlot) -> CpuAssignment | None:
    """What a slot has of its host's cpus with the change that was confirmed."""
    if seen.assignment is not None:
        return seen.assignment
    ordered = slot.ordered
    if ordered is not None and ordered.number == seen.resize_number and ordered.assignment:
        return ordered.assignment
    return slot.assignment


def _ends(outcome: ItemOutcome, ordered: Resize) -> bool:
    if outcome.reason == Reason.BELOW_USE:
        return not ordered.wait_for_use
    # What makes no sense to an executor or its kernel, hardly will later; whoever asked decides.
    return outcome.reason in (
        Reason.STALE_RESIZE,
        Reason.VERSION_MISMATCH,
        Reason.CARVE_FAILED,
        Reason.INVALID_ARGUMENT,
    )


def _size(of: ReportedSlot | Slot | Resize) -> tuple[ResourceProfile, int]:
    """What makes two sizes equal; a cap that is not told is what is booked."""
    return of.profile, max(of.cpu_limit_milli, of.profile.cpu_milli)


def has_size(slot: Slot, target: Resize) -> bool:
    """True if a slot has this size, as its executor has confirmed."""
    return _size(slot) == _size(target)


def size_text(size: Slot | Resize) -> str:
    """A size for people."""
    profile, limit_milli = size.profile, size.cpu_limit_milli
    limit = f" (at most {limit_milli})" if limit_milli > profile.cpu_milli else ""
    extended = "".join(f", {name} {amount}" for name, amount in profile.extended)
    memory = profile.booked_memory_bytes
    return f"cpu_milli {profile.cpu_milli}{limit}, memory_bytes {memory}{extended}"
