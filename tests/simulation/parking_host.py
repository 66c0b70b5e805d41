"""Simulated executor: parks and unparks slots in the background, as `service/parking.py` does.

The host answers the command with IN_PROGRESS. The resource manager repeats the command until a
report shows the new size, or until an answer has the failure. While processes move, both sizes stay
booked. The host undoes a failed move, in several attempts if needed.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from resource_manager.engine.model.entities import Resize
from task_executor.engine.slots import CarveState, Slot, SlotKey, SlotSpec
from task_executor.service.failures import not_moved, still_moving
from tests.simulation.resizing_host import Resized, ResizingHost

MOVE_MS = (5, 60, 300, 1_500)


class ParkingHost(ResizingHost):
    """A host that can park and unpark slots."""

    def _begin_sizes(self) -> None:
        super()._begin_sizes()
        self._moves: dict[SlotKey, bool] = {}  # for each slot, whether its processes have arrived
        self._not_moved: dict[SlotKey, tuple[int, FinegrainError]] = {}

    def _begin_change(self, key: SlotKey, resize: Resize, then: Resized) -> None:
        known = self._outcome(key, resize.number)
        if known is None:
            return super()._begin_change(key, resize, then)
        self._sizing = False
        then(known)
        return self._next_size()

    def _outcome(self, key: SlotKey, number: int) -> FinegrainError | None:
        """Returns IN_PROGRESS, or once the reason why a move failed; None: there was no move."""
        slot = self.table.get(key)
        wanted = slot.becoming if slot is not None else None
        if key in self._moves and wanted is not None and wanted.resize_number == number:
            return still_moving(wanted, "")
        failed, failure = self._not_moved.get(key, (0, None))
        if failure is None or failed != number:
            return None
        del self._not_moved[key]
        return failure

    def _enforce_size(self, key: SlotKey, then: Resized) -> None:
        slot = self.table.get(key)
        if slot is None or slot.becoming is None or not slot.is_moving or self._moves.get(key):
            return super()._enforce_size(key, then)
        if key not in self._moves:
            self._moves[key] = False
            self._not_moved.pop(key, None)
            self._by_helper(lambda: self._move(slot))
        return then(still_moving(slot.becoming, ""))

    def _move(self, slot: Slot) -> None:
        """Moves the processes of a slot. If the slot is unparked, first opens its device files."""
        wanted = slot.becoming
        if wanted is None or not self._may_move(slot):
            return
        doing, key = "parks" if wanted.is_parked else "unparks", slot.key
        self.log(f"{self.name} {doing} {key.allocation_id}/{key.generation}")
        if not wanted.is_parked:
            self._open(slot, wanted)
        helper = self.helper_lives

        def arrived() -> None:
            if not self._may_move(slot):
                return
            if helper != self.helper_lives or self.rng.random() < self.troubles.move_fails:
                self._undo(slot, FailedPrecondition("a process did not move"))
            else:
                self._moves[slot.key] = True
                self._sizes_to_come.append(lambda: self._finish_move(slot))
                self._next_size()

        self.after(self.rng.choice(MOVE_MS), arrived)

    def _may_move(self, slot: Slot) -> bool:
        """Returns whether a move continues. A move ends if the slot is freed or vanishes."""
        now = self.table.get(slot.key)
        if now is not None and now.state is CarveState.ALLOCATED and now.becoming == slot.becoming:
            return True
        self._moves.pop(slot.key, None)
        return False

    def _finish_move(self, slot: Slot) -> None:
        def done(error: FinegrainError | None) -> None:
            self._sizing = False
            if error is not None and error.reason is not Reason.UNREACHABLE and slot.becoming:
                self._undo(slot, error)
            # The move is done, or its result is not known and will be repeated by the next steps.
            else:
                self.checks.did["moves"] += error is None
                self._moves.pop(slot.key, None)
            self._next_size()

        self._enforce_size(slot.key, done)

    def _undo(self, slot: Slot, error: FinegrainError) -> None:
        """Moves the processes back, and tries again until this succeeds."""

        def attempt() -> None:
            now = self.table.get(slot.key)
            if now is None or now.state is not CarveState.ALLOCATED:
                self._moves.pop(slot.key, None)
            elif self.rng.random() < self.troubles.move_fails:
                self.after(1_000, lambda: self._by_helper(attempt))
            else:
                self._undone(slot, error)

        self.after(self.rng.choice(MOVE_MS), lambda: self._by_helper(attempt))

    def _undone(self, slot: Slot, error: FinegrainError) -> None:
        wanted = slot.becoming
        self._moves.pop(slot.key, None)
        if wanted is None:
            return
        self._open(slot, slot.spec)
        self.table.resize_failed(slot.key)
        self._not_moved[slot.key] = wanted.resize_number, not_moved(wanted, error)
        self.checks.did["moves undone"] += 1
        self.log(f"{self.name} could not move {slot.key.allocation_id}: {error}")
        self.checks.host(self)
        self._change()
        self._save()

    def _open(self, slot: Slot, size: SlotSpec) -> None:
        """Opens the device files of one of a slot's sizes, and closes all others."""
        real = self.on_host.get(slot.key)
        if real is None or real.assignment is None or size.assignment is None:
            return
        self.on_host[slot.key] = replace(
            real,
            profile=replace(real.profile, devices=size.profile.devices),
            assignment=replace(
                real.assignment,
                devices=size.assignment.devices,
                parked_devices=size.assignment.parked_devices,
            ),
        )
        self.checks.host(self)
