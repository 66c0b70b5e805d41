"""Durable counters: numbers that are given out once, and lower bounds that outlive what they are
about.
"""

from __future__ import annotations

from resource_manager.engine.model.changes import ChangeTracker

GENERATION_FLOOR = "generation_floor"
"""Counter that a restore of an older backup raises. New placements get generations above it, so
none is mistaken for one that was made after the backup was taken.
"""

REGISTERED_WITH = "registered_with/"
"""Prefix of counters: number of the report that an executor registered with last. So a late copy of
an earlier registration is recognized, also by the next leader.
"""

HOST_SETTING_NUMBER = "host_setting_number"
"""Number of the last change by an operator to the settings of any host."""

FORGOTTEN = "forgotten_registration_number"
"""Highest registration number of all executors that were deleted."""

ARRIVAL_NUMBER = "arrival_number"
"""The last arrival number that was given out, to jobs and requests alike."""


class Numbers:
    """The counters.

    Attributes:
        arrival: last arrival number, of jobs and requests alike.
        host_setting: last number of a change to the settings of hosts.
        forgotten_registration: highest registration number of all executors that were deleted.
        generation_floor: new placements get generations above this.
    """

    def __init__(self, changes: ChangeTracker) -> None:
        self._changes = changes
        self.arrival = 0
        self.host_setting = 0
        self.forgotten_registration = 0
        self.generation_floor = 0

    def next_arrival(self, count: int = 1) -> int:
        """Gives out `count` consecutive arrival numbers, and returns the first one."""
        self.arrival += count
        self._changes.counter(ARRIVAL_NUMBER, self.arrival)
        return self.arrival - count + 1

    def keep_registration(self, number: int) -> None:
        """Notes the registration number of an executor that is deleted. If the executor comes back,
        its commands must not look like old ones.
        """
        self.forgotten_registration = max(self.forgotten_registration, number)
        self._changes.counter(FORGOTTEN, self.forgotten_registration)
