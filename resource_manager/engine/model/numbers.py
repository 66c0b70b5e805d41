"""Stored counters: numbers that are used only once, and lower bounds that are still needed after
the entities were deleted.
"""

from __future__ import annotations

from resource_manager.engine.model.changes import ChangeTracker

GENERATION_FLOOR = "generation_floor"
"""Counter that is raised when an older backup is restored. New slots get generations above it. So
no new slot has the generation of a slot that was placed after the backup was taken.
"""

REGISTERED_WITH = "registered_with/"
"""Prefix of counters: the number of the report with which an executor last registered. With it, a
late copy of an earlier registration is recognized, also by the next leader.
"""

HOST_SETTING_NUMBER = "host_setting_number"
"""Number of the last change by an operator to the settings of any host."""

FORGOTTEN = "forgotten_registration_number"
"""Highest registration number of all deleted executors."""

ARRIVAL_NUMBER = "arrival_number"
"""The last used arrival number; jobs and requests share the numbers."""


class Numbers:
    """The current values of the counters.

    Attributes:
        arrival: last used arrival number; jobs and requests share the numbers.
        host_setting: number of the last change to the settings of any host.
        forgotten_registration: highest registration number of all deleted executors.
        generation_floor: new slots get generations above this.
    """

    def __init__(self, changes: ChangeTracker) -> None:
        self._changes = changes
        self.arrival = 0
        self.host_setting = 0
        self.forgotten_registration = 0
        self.generation_floor = 0

    def next_arrival(self, count: int = 1) -> int:
        """Takes `count` consecutive arrival numbers, and returns the first one."""
        self.arrival += count
        self._changes.counter(ARRIVAL_NUMBER, self.arrival)
        return self.arrival - count + 1

    def keep_registration(self, number: int) -> None:
        """Records the registration number of an executor that is deleted. If the executor registers
        again, it gets a higher number, so that new commands are not taken for old ones.
        """
        self.forgotten_registration = max(self.forgotten_registration, number)
        self._changes.counter(FORGOTTEN, self.forgotten_registration)
