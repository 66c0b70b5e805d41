"""Decides when infeasible requests are rejected, and which requests must be checked at that time.

The clock restarts whenever an infeasible request has possibly become feasible, for example when an
executor registers. The clock is not stored: after a restart of the resource manager, the clock
starts with the first registration. `scheduling/rejecting.py` checks and rejects the requests.
"""

from __future__ import annotations

from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


class RejectionClock:
    """Measures the time since the last change of executors. Collects the requests that must be
    checked when this time reaches `after_ms`.

    Attributes:
        since_ms: the time of the last restart of the clock (monotonic). It is None if no executor
            has registered since the resource manager started.
        everything: True if every pending request and gang must be checked.
        scheduling_classes: the classes to check if `everything` is False. The value is the arrival
            number of the first request to check, because earlier requests were already checked.
        gangs: the ids of the gangs to check if `everything` is False.
    """

    def __init__(self, timers: Timers, after_ms: int) -> None:
        self.after_ms = after_ms
        self.since_ms: int | None = None
        self.everything = False
        self.scheduling_classes: dict[SchedulingClass, int] = {}
        self.gangs: dict[str, None] = {}
        self._timers = timers

    @property
    def due_ms(self) -> int | None:
        """The time at which infeasible requests are rejected. It is None if an executor must
        register first.

        During a stall, the resource manager cannot receive registrations. So after a stall, the
        clock starts again at the end of the stall.
        """
        if self.since_ms is None:
            return None
        return max(self.since_ms, self._timers.listening_since_ms) + self.after_ms

    def restart(self, now_ms: int) -> None:
        """Restarts the clock, because executors have changed."""
        self.since_ms = now_ms
        self.everything = True
        # `everything` includes these classes and gangs.
        self.scheduling_classes.clear()
        self.gangs.clear()
        self._arm(now_ms)

    def requeued(self, scheduling_class: SchedulingClass, now_ms: int) -> None:
        """Records that a request of this class had a slot and is now pending again."""
        if not self.everything:
            # The request keeps its old arrival number, and the check has possibly passed this
            # number already. So the check begins at 0 again.
            self.scheduling_classes[scheduling_class] = 0
            self._arm(now_ms)

    def gang_requeued(self, gang_id: str, now_ms: int) -> None:
        """Records that a gang had slots and is now pending again."""
        if not self.everything:
            self.gangs[gang_id] = None
            self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
        if (due_ms := self.due_ms) is not None:
            self._timers.arm(Timer.INFEASIBLE, "", max(now_ms, due_ms))
