"""Moves resizes through their states: waiting, ordered, and then confirmed or refused.

A slot has at most one waiting resize (`slot.wanted`), and at most one ordered resize
(`slot.ordered`). An ordered resize was sent to the executor, or will be sent with its next command.
While a resize is ordered, the larger of the old and new amount is booked in each dimension.

The rules:
- A resize gets the slot's next number when the job master requests it.
- A resize that needs no more capacity than the slot has booked is ordered at once. A resize that
  needs more capacity is queued with its own arrival number. The resize is ordered when it fits on
  the slot's executor.
- A new resize replaces a waiting resize. While a resize is ordered, the new resize waits until the
  ordered resize is confirmed or refused.
- An executor reports the size that it enforces. A report with the resize's number confirms the
  resize. Other slots can use the capacity that this slot gave up only after the confirmation.
- The order is repeated until a report or an answer confirms or refuses the resize. If the executor
  could not carry out a resize, the resize either ends, or is queued again at its old place after a
  pause.
- A slot keeps its NUMA nodes, and a growing slot keeps its dedicated cpus. Additional cpus are
  chosen when the resize is ordered (`cpus/resizing.py`). Old and new cpus stay booked until the
  executor confirms the resize.
- A resize to the slot's profile without GPUs parks the slot. A resize back to the full profile
  unparks the slot (`devices/parking.py`). If parking or unparking takes long, the executor answers
  IN_PROGRESS. The order is sent again until a report or an answer has the outcome. If unparking
  fails, it is tried again until it succeeds.

Example: a host with 4 cpus has slot A with 1 cpu and slot B with 2 cpus, so 1 cpu is free. `booked`
is the number of cpus that A has booked.

  event                                     wanted    ordered   booked  free
  job master: resize 1 of A to 3 cpus       1: 3 cpu  -         1       1
      2 more cpus do not fit into 1 free cpu, so resize 1 is queued
  slot B ends, so resize 1 is ordered       -         1: 3 cpu  3       1
  job master: resize 2 of A to 2 cpus       2: 2 cpu  1: 3 cpu  3       1
      resize 2 waits until resize 1 is confirmed or refused
  report: number 1, 3 cpus                  -         2: 2 cpu  3       1
      resize 2 needs no growth, so it is ordered; 3 cpus stay booked until it is confirmed
  report: number 2, 2 cpus                  -         -         2       2
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import GPU
from finegrain.devices.parking import has_gpus
from finegrain.errors import InvariantBroken, Reason
from finegrain.resources import ResourceProfile
from finegrain.units import format_cpu
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import ResizeBackoff
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.growth import assignment_for, growth, growth_obstacles
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Request, Resize, Slot, SlotKey
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.reported import ReportedSlot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.state_tables import ResizeInput
from resource_manager.engine.model.texts import profile_text
from resource_manager.engine.model.timers import Timer, Timers, backoff_ms
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.non_batchable import NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests

if TYPE_CHECKING:
    from resource_manager.engine.placement.placer import Placer


@dataclass(slots=True, eq=False)
class ResizeMoves:
    """Moves the resizes of slots through their states."""

    journal: Journal
    changes: ChangeTracker
    hosts: Hosts
    outbox: dict[str, None]
    queue: WaitingQueue
    requests: Requests
    settings: EngineSettings
    slots: Slots
    timers: Timers
    transitions: Transitions
    usage: UsageAccounting

    def try_growth(self, placing: Placer, item: NonBatchable) -> bool:
        """Orders a queued resize if its growth fits on the slot's executor now.

        Args:
            placing: the current placement pass; this method updates the pass with the host's new
                booking.
            item: the queue entry of the resize.

        Returns:
            False if the growth does not fit. The resize stays queued.
        """
        slot = self.slots[item.name, item.generation]
        host = self.hosts[slot.executor_id]
        if growth_obstacles(host, slot):
            return False
        found = assignment_for(self.requests, host, slot)
        if isinstance(found, HostRefusal):
            return False
        needed = growth(host, slot)
        self.order(slot, found)
        # If neither amounts nor cpus have changed, the placement pass still knows the correct
        # capacity.
        if needed or found is not None:
            placing.follow([host])
        return True

    def advance(self, slot: Slot) -> None:
        """If a slot has a waiting resize, orders it or queues it.

        The method does nothing in three cases: another resize is ordered, a back-off runs, or the
        slot is not ALLOCATED.
        """
        wanted = slot.wanted
        if wanted is None or slot.ordered is not None or slot.state is not SlotState.ALLOCATED:
            return
        host = self.hosts.of(slot)
        backoff = host.resize_backoffs.get((slot.allocation_id, slot.generation))
        if backoff is not None and backoff.active:
            return
        # The slot already has this size. Example: a resize is ordered, a second resize back to the
        # old size waits, and the executor refuses the first resize.
        if has_size(slot, wanted):
            self.withdraw(host, slot)
            self.changes.slot(slot)
            self._report(slot, wanted.number)
            return
        found = assignment_for(self.requests, host, slot)
        if not (growth(host, slot) or isinstance(found, HostRefusal)):
            # If the resize needed more capacity before, it is possibly still queued.
            self.queue.non_batchables.remove(wanted.arrival_number)
            self.order(slot, found)
        elif wanted.arrival_number not in self.queue.non_batchables:
            self.queue.add_resize(slot)
        else:
            # The growth is possibly smaller than when the resize was last tried, so the resize is
            # tried again.
            self.queue.non_batchables.unblock(wanted.arrival_number)

    def stop(self, slot: Slot) -> None:
        """Stops resizing a slot that is being freed.

        `wanted` stays set, because the slot can be reclaimed. `ordered` stays set, because the
        executor has possibly carried out the resize.
        """
        host = self.hosts.of(slot)
        key = (slot.allocation_id, slot.generation)
        host.to_resize.pop(key, None)
        host.resize_backoffs.pop(key, None)
        if slot.wanted is not None:
            self.queue.non_batchables.remove(slot.wanted.arrival_number)

    def resume(self, slot: Slot) -> None:
        """Continues the resizes of a slot after its executor registered again or returned with the
        slot.

        An ordered resize is sent again. If no resize is ordered, the waiting resize is ordered or
        queued.
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
        """Sets the slot to the size in a newer report of its executor.

        A reported size is adopted even if it was not ordered. This happens in three cases:
        - A backup was restored, so the newer state of the resource manager was lost. The reported
          number is from the lost state: it is higher than all numbers known now, or belongs to
          another size.
        - The disk of an executor was full. The executor refused a resize and crashed, but had
          carried out the resize.
        - The disk of an executor was full. The executor confirmed a resize, crashed, and returned
          to the old size.

        Args:
            slot: the slot as this resource manager knows it.
            seen: the slot as the executor reports it.
        """
        ordered, wanted, number = slot.ordered, slot.wanted, seen.resize_number
        if ordered is not None and number == ordered.number and _size(seen) == _size(ordered):
            self._adopt(slot, seen)
            return
        # Numbers below `unknown_from` belong to resizes that were confirmed or that have ended
        # without success. A report with such a number and the known size changes nothing.
        if ordered is not None:
            unknown_from = ordered.number
        else:
            unknown_from = wanted.number if wanted is not None else slot.resize_number + 1
        # Most reports only repeat the known size.
        if number < unknown_from and _size(seen) == _size(slot):
            return
        # The next number must also be above numbers from a lost state of the resource manager.
        slot.resize_number = max(slot.resize_number, number)
        # If the number of the waiting resize is not higher than the reported number, the waiting
        # resize is outdated.
        if wanted is not None and wanted.number <= number:
            self.withdraw(self.hosts.of(slot), slot)
        self._adopt(slot, seen)
        # The reported size is possibly larger than the free capacity of the host.
        self.hosts.of(slot).notice_shrinking()

    def _adopt(self, slot: Slot, seen: ReportedSlot) -> None:
        """Gives the slot the reported size. If an ordered resize has a higher number than the
        reported resize, the ordered resize stays ordered.
        """
        host = self.hosts.of(slot)
        key = (slot.allocation_id, slot.generation)
        ordered, number = slot.ordered, seen.resize_number
        # The report does not show the outcome of an ordered resize with a higher number.
        if ordered is not None and ordered.number <= number:
            ordered = None
            host.to_resize.pop(key, None)
        # The size has changed, so the reason for an earlier refusal is possibly no longer valid.
        host.resize_backoffs.pop(key, None)
        was_parked, before = slot.is_parked, slot.assignment
        assignment = _assignment_seen(slot, seen)
        confirmed = slot.ordered is not None and ordered is None
        with (
            self.transitions.moving_resize(slot, ResizeInput.CONFIRM)
            if confirmed
            else nullcontext()
        ):
            self._set_size(host, slot, seen.profile, assignment, ordered)
        _, slot.cpu_limit_milli = _size(seen)
        slot.cpus = seen.cpus  # a change of size can also change the cpus
        if seen.isolation is not None:
            slot.isolation = seen.isolation
        self.changes.slot(slot)
        if slot.is_parked != was_parked:
            kind = "slot_parked" if slot.is_parked else "slot_unparked"
            self.journal.slot_event(kind, slot, message=_gpus_text(host, slot, before))
        # The slot already has the size of the waiting resize, so no order is needed.
        if slot.wanted is not None and ordered is None and has_size(slot, slot.wanted):
            number = slot.wanted.number
            self.withdraw(host, slot)
        self._report(slot, number)
        self.advance(slot)

    def _report(self, slot: Slot, number: int) -> None:
        """Sends the job master an event about a finished resize, if the slot is still granted."""
        request = self._granted(slot)
        if request is not None:
            message = f"resize {number}: {size_text(slot)}"
            self.journal.slot_event("slot_resized", slot, message=message)
            self.journal.job_event(request, reason=Reason.RESIZED, message=message, slot=slot)

    def resize_answered(self, host: Host, key: SlotKey, number: int, outcome: ItemOutcome) -> None:
        """Handles the executor's answer to a resize order, after the report in the answer was
        adopted.

        If this report did not confirm the resize, the executor has refused it.

        Args:
            host: the slot's executor.
            key: the slot.
            number: the number of the resize in the answered command. If another resize is ordered
                now, the answer is ignored.
            outcome: the executor's result for this slot.
        """
        slot = host.slots.get(key)
        if slot is None or slot.ordered is None or slot.ordered.number != number:
            return
        ordered = slot.ordered
        if outcome.reason == Reason.IN_PROGRESS:
            self._order_again(host, slot, outcome)
            return
        with self.transitions.moving_resize(slot, ResizeInput.REFUSE):
            self._set_size(host, slot, slot.profile, slot.assignment, None)
        # Capacity that was booked for the larger size is free again.
        self.hosts.touch(host)
        self.changes.slot(slot)
        request = self._granted(slot)
        if request is None:  # the slot is not granted any more, so there is no job master to inform
            return
        message = outcome.message or f"executor {host.host_id} did not carry out the resize"
        reason = outcome.reason or Reason.RESIZE_REFUSED
        ends = _ends(outcome, ordered)
        # If there is no newer resize, the refused resize waits again. Otherwise the newer resize
        # replaces the refused resize, and the following code tries the newer resize.
        if slot.wanted is None and not ends:
            with self.transitions.moving_resize(slot, ResizeInput.RETRY):
                # the assignment is dropped, because other cpus are possibly free at the next
                # attempt
                slot.wanted = replace(ordered, assignment=None)
            self._back_off(host, slot, outcome, message)
            return
        text = f"resize {number} to {size_text(ordered)}: {message}"
        self.journal.slot_event("slot_resize_refused", slot, reason=reason, message=text)
        # The back-off belongs to the refused resize, so the next resize must not wait for its end.
        host.resize_backoffs.pop(key, None)
        self.journal.job_event(request, reason=Reason.RESIZE_REFUSED, message=text, slot=slot)
        self.advance(slot)

    def _order_again(self, host: Host, slot: Slot, outcome: ItemOutcome) -> None:
        """Orders a resize again after a pause, because the executor still works on the resize. A
        report would show that the resize succeeded, but only the answer to an order shows that the
        resize failed.
        """
        if slot.state is not SlotState.ALLOCATED:
            return  # no order is repeated for a slot in another state; see `stop`
        key = (slot.allocation_id, slot.generation)
        before = host.resize_backoffs.get(key)
        until_ms = self.journal.now_ms + self.settings.resize_retry_min_ms
        host.resize_backoffs[key] = ResizeBackoff(
            number=slot.ordered.number if slot.ordered is not None else 0,
            failures=before.failures if before is not None else 0,
            until_ms=until_ms,
            reason=outcome.reason,
            message=outcome.message,
            state_seen=None,
        )
        self.timers.arm(Timer.RESIZE, slot.allocation_id, until_ms)

    def _back_off(self, host: Host, slot: Slot, outcome: ItemOutcome, message: str) -> None:
        """Pauses a resize that the executor could not carry out. The resize keeps its arrival
        number.
        """
        settings, key = self.settings, (slot.allocation_id, slot.generation)
        before = host.resize_backoffs.get(key)
        failures = before.failures if before is not None else 0
        delay = backoff_ms(failures, settings.resize_retry_min_ms, settings.resize_retry_max_ms)
        until_ms = self.journal.now_ms + delay
        # Most back-offs end early if a report shows a change. A back-off after BELOW_USE (the tasks
        # use more than the new size) does not end early, because reports do not show how much a
        # slot uses.
        below_use = outcome.reason == Reason.BELOW_USE
        host.resize_backoffs[key] = ResizeBackoff(
            number=slot.wanted.number if slot.wanted is not None else 0,
            failures=failures + 1,
            until_ms=until_ms,
            reason=outcome.reason,
            message=message,
            # with None, only the timer ends the pause
            state_seen=None if below_use else host.state_seen(),
        )
        self.timers.arm(Timer.RESIZE, slot.allocation_id, until_ms)

    def resize_timer_fired(self, allocation_id: str) -> None:
        """If the back-off of the slot's resize is over, tries the resize again. An ordered resize
        is sent again.
        """
        request = self.requests.get(allocation_id)
        slot = self.slots.of(request) if request is not None else None
        if slot is None:
            return
        backoff = self.hosts.of(slot).resize_backoffs.get((allocation_id, slot.generation))
        if backoff is None or not backoff.active:
            return  # a newer report has ended the back-off early
        if self.journal.now_ms < backoff.until_ms:
            self.timers.arm(Timer.RESIZE, allocation_id, backoff.until_ms)
            return
        backoff.active = False
        if slot.ordered is not None:
            self.resume(slot)
        else:
            self.advance(slot)

    def end_backoffs(self, host: Host) -> None:
        """Ends the back-offs of resizes early if the host's reported state has changed since the
        refusal.
        """
        present = host.state_seen()
        for key, backoff in list(host.resize_backoffs.items()):
            if backoff.active and backoff.state_seen is not None and backoff.state_seen != present:
                backoff.active = False
                self.advance(host.slots[key])

    def order(self, slot: Slot, assignment: CpuAssignment | None) -> None:
        """Orders the waiting resize: the next command to the executor contains it.

        The caller must have checked that the growth fits on the host, and that `assignment` is
        available there (see `assignment_for`).

        Args:
            slot: the slot. Its `wanted` becomes `ordered`.
            assignment: the cpus and NUMA nodes that the slot gets with the resize.

        Raises:
            InvariantBroken: no resize waits.
        """
        host = self.hosts.of(slot)
        if slot.wanted is None:
            raise InvariantBroken(f"slot {slot.allocation_id} has no waiting resize")
        ordered = replace(slot.wanted, assignment=assignment)
        # Growth counts as a placement: a request is starved only if other requests were placed
        # while it waited.
        self.usage.flows.placements += 1
        with self.transitions.moving_resize(slot, ResizeInput.ORDER):
            slot.wanted = None
            self._set_size(host, slot, slot.profile, slot.assignment, ordered)
        host.to_resize[slot.allocation_id, slot.generation] = None
        self.outbox[host.host_id] = None
        self.changes.slot(slot)

    def _set_size(
        self,
        host: Host,
        slot: Slot,
        profile: ResourceProfile,
        assignment: CpuAssignment | None,
        ordered: Resize | None,
    ) -> None:
        # `set_size` replaces `slot.booked`, so the old amounts are kept for the usage accounting.
        before = slot.booked
        host.set_size(slot, profile, assignment, ordered)
        self.usage.rebooked([(slot, before)])

    def withdraw(self, host: Host, slot: Slot) -> None:
        """Withdraws the waiting resize. Does nothing if no resize waits."""
        if slot.wanted is not None:
            self.queue.non_batchables.remove(slot.wanted.arrival_number)
            # While a resize is ordered, the pause belongs to the ordered resize.
            if slot.ordered is None:
                host.resize_backoffs.pop((slot.allocation_id, slot.generation), None)
            with self.transitions.moving_resize(slot, ResizeInput.WITHDRAW):
                slot.wanted = None

    def _granted(self, slot: Slot) -> Request | None:
        """Returns the request to which this slot is granted; None: the slot is granted to no
        request.
        """
        request = self.requests.served_by(slot)
        return request if request is not None and request.state is RequestState.GRANTED else None


def _assignment_seen(slot: Slot, seen: ReportedSlot) -> CpuAssignment | None:
    """Returns the slot's cpus and NUMA nodes with the reported size."""
    if seen.assignment is not None:
        return seen.assignment
    ordered = slot.ordered
    if ordered is not None and ordered.number == seen.resize_number and ordered.assignment:
        return ordered.assignment
    # If the report has no cpus and is not about the ordered resize, the assignment is unchanged.
    return slot.assignment


def _ends(outcome: ItemOutcome, ordered: Resize) -> bool:
    """Returns True if a refused resize ends. Returns False if the resize is tried again after a
    pause.
    """
    if outcome.reason == Reason.BELOW_USE:
        return not ordered.wait_for_use
    if outcome.reason == Reason.PARK_FAILED:
        # The tasks of the slot need their GPUs back, so unparking is tried again.
        return not has_gpus(ordered.profile.devices)
    # These reasons mean that the executor or its kernel rejected the resize itself. A retry would
    # rarely succeed, so the job master must decide what to do.
    return outcome.reason in (
        Reason.STALE_RESIZE,
        Reason.VERSION_MISMATCH,
        Reason.CARVE_FAILED,
        Reason.INVALID_ARGUMENT,
    )


def _size(of: ReportedSlot | Slot | Resize) -> tuple[ResourceProfile, int]:
    """Returns the values by which sizes are compared. If there is no cpu limit, the cpu of the
    profile counts as the limit.
    """
    return of.profile, max(of.cpu_limit_milli, of.profile.cpu_milli)


def has_size(slot: Slot, target: Resize) -> bool:
    """Returns True if the slot's confirmed size equals the size of `target`."""
    return _size(slot) == _size(target)


def _gpus_text(host: Host, slot: Slot, before: CpuAssignment | None) -> str:
    """Returns "gave up host-a/gpu0" for a slot that was parked, and "has host-a/gpu0" for a slot
    that was unparked.
    """
    its = before if slot.is_parked else slot.assignment
    gpus = (
        [f"{host.host_id}/{each.type}{each.minor}" for each in its.devices if each.type == GPU]
        if its is not None
        else []
    )
    return f"{'gave up' if slot.is_parked else 'has'} {', '.join(gpus)}"


def size_text(size: Slot | Resize) -> str:
    """Formats a size for people."""
    profile, limit_milli = size.profile, size.cpu_limit_milli
    more = limit_milli > profile.cpu_milli
    limit = f" (at most {format_cpu(limit_milli)} cpu)" if more else ""
    return profile_text(profile) + limit
