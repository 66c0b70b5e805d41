"""Decides when infeasible requests are rejected, and which requests must be checked then.

The clock restarts whenever something changes what the executors could host when empty, or whether
all of them are known. Nothing of it is durable: after a restart of the resource manager it starts
with the first registration. `scheduling/rejecting.py` checks and rejects.
"""

from __future__ import annotations

from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


class RejectionClock:
    """Runs since the last change of executors, and collects what must be checked when it is over.

    Attributes:
        since_ms: when it restarted last (monotonic); None: no executor has registered since the
            resource manager started.
        everything: everything that is pending must be checked.
        scheduling_classes: otherwise only these, each from an arrival number on; earlier requests
            have been checked.
        gangs: the same for gangs, by id.
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
        """When infeasible requests are rejected; None: an executor must register first.

        Time in which the resource manager was stalled and could not receive anything does not
        count.
        """
        if self.since_ms is None:
            return None
        return max(self.since_ms, self._timers.listening_since_ms) + self.after_ms

    def restart(self, now_ms: int) -> None:
        """Restarts the clock, because executors have changed."""
        self.since_ms = now_ms
        self.everything = True
        # `everything` includes these.
        self.scheduling_classes.clear()
        self.gangs.clear()
        self._arm(now_ms)

    def requeued(self, scheduling_class: SchedulingClass, now_ms: int) -> None:
        """Notes that a request of this class is pending again after it had a slot."""
        if not self.everything:
            # From the first number on, because the request is back at its old place.
            self.scheduling_classes[scheduling_class] = 0
            self._arm(now_ms)

    def gang_requeued(self, gang_id: str, now_ms: int) -> None:
        """Notes that a gang is pending again after it had slots."""
        if not self.everything:
            self.gangs[gang_id] = None
            self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
        if (due_ms := self.due_ms) is not None:
            self._timers.arm(Timer.INFEASIBLE, "", max(now_ms, due_ms))
