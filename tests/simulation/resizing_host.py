"""A simulated executor that resizes slots. Each resize has these steps: save the intent, enforce
it, save again, report.

It follows `task_executor/service/resizing.py` and the helper, which sets all limits of a slot or
none. The memory use of a slot's tasks is drawn at random whenever it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason, Unavailable
from resource_manager.engine.model.entities import Resize
from task_executor.engine.slots import CarveState, SlotKey, SlotSpec
from tests.simulation.slot_host import SlotHost

Resized = Callable[[FinegrainError | None], None]
"""Called when a resize is done, or with the error."""


class ResizingHost(SlotHost):
    """A host whose slots can be resized."""

    # "written down" or "enforced": the front dies right after that step of the next resize
    dies_resizing = ""

    def _begin_sizes(self) -> None:
        self._sizing = False  # True while a resize is in progress; there is only one at a time
        self._sizes_to_come: deque[Callable[[], None]] = deque()

    def _change_size(self, key: SlotKey, resize: Resize, then: Resized) -> None:
        """Executes a resize, after all earlier resizes."""
        self._sizes_to_come.append(lambda: self._begin_change(key, resize, then))
        self._next_size()

    def _next_size(self) -> None:
        if not self._sizing and self._sizes_to_come:
            self._sizing = True
            self._sizes_to_come.popleft()()

    def _begin_change(self, key: SlotKey, resize: Resize, then: Resized) -> None:
        before = self.table.get(key)
        outcome = self.table.resize(
            key, resize.number, resize.profile, resize.cpu_limit_milli, resize.assignment
        )
        self.checks.host(self)

        def done(error: FinegrainError | None) -> None:
            self._sizing = False
            then(error)
            self._next_size()

        def kept(fine: bool) -> None:
            if self._dies("written down"):
                return None
            if fine:
                return self._enforce_size(key, done)
            if self.table.get(key) is not None:
                self.table.resize_failed(key)
            return done(FailedPrecondition("not written down", reason=Reason.CARVE_FAILED))

        if outcome.slot is None or outcome.slot.becoming is None:
            done(outcome.error)
        elif outcome.slot is before:  # already saved, and its outcome is unknown
            self._enforce_size(key, done)
        else:
            self._save(kept)

    def _settle_sizes(self, then: Callable[[], None] = lambda: None) -> None:
        """Completes the begun resizes, and reverts the resizes that are impossible now."""
        unsettled = [
            slot.key
            for slot in self.table
            if slot.becoming is not None and slot.state is CarveState.ALLOCATED
        ]

        def settle_next() -> None:
            if unsettled:
                self._enforce_size(unsettled.pop(), lambda _error: settle_next())
            else:
                self._align_sizes()
                self._sizing = False
                then()
                self._next_size()

        self._sizes_to_come.append(settle_next)
        self._next_size()

    def _align_sizes(self) -> None:
        for slot in self.table:
            if slot.state is CarveState.ALLOCATED and slot.becoming is None:
                self.on_host[slot.key] = slot.spec

    def _enforce_size(self, key: SlotKey, then: Resized) -> None:
        slot, helper = self.table.get(key), self.helper_lives
        wanted = slot.becoming if slot is not None else None
        if wanted is None:
            return then(NotFound("it went meanwhile"))
        if self.loop.now_ms < self.helper_until_ms:
            return then(self._unknown())

        def enforced() -> None:
            if helper == self.helper_lives:
                failure = self._set_limits(key, wanted)
                if self._dies("enforced"):
                    return None
                return self._enforced_size(key, wanted, failure, then)
            if self.rng.random() < 0.5:
                self._set_limits(key, wanted)  # it set the limits but could not report it
            return then(self._unknown())

        return self.after(self.rng.choice((1, 5, 40, 600)), enforced)

    def _dies(self, when: str) -> bool:
        """Kills the front after this step if the plan says so. Returns whether the front was
        killed.
        """
        if self.dies_resizing != when:
            return False
        self.dies_resizing = ""
        self.crash()
        return True

    def _unknown(self) -> FinegrainError:
        """Keeps the slot in the state `becoming` until the helper runs again."""
        self._by_helper(self._settle_sizes)
        return Unavailable("it is not known yet")

    def _set_limits(self, key: SlotKey, wanted: SlotSpec) -> FinegrainError | None:
        real = self.on_host.get(key)
        if real is None:
            return FailedPrecondition("its group is gone", reason=Reason.CARVE_FAILED)
        used_bytes = int(real.memory_bytes * self.rng.choice((0.1, self.troubles.use)))
        if wanted.memory_bytes < used_bytes:
            self.log(f"{self.name} cannot shrink {key.allocation_id}: {used_bytes} bytes in use")
            details = {"asked": wanted.memory_bytes, "used": used_bytes}
            return FailedPrecondition("it uses more", reason=Reason.BELOW_USE, details=details)
        self.on_host[key] = wanted
        self.checks.host(self)
        return None

    def _enforced_size(
        self, key: SlotKey, wanted: SlotSpec, failure: FinegrainError | None, then: Resized
    ) -> None:
        slot = self.table.get(key)
        if slot is None or slot.becoming != wanted:
            return then(NotFound("it went meanwhile"))
        if failure is None:
            self.table.resized(key)
        elif slot.is_moving:
            return then(failure)  # its processes must move back first
        else:
            self.table.resize_failed(key)
        self.checks.host(self)

        def kept(_fine: bool) -> None:
            self._change()
            then(failure)

        return self._save(kept)
