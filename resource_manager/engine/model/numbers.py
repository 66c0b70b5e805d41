"""Numbers that are given out once, and floors that outlive what they are about: durable."""

from __future__ import annotations

from resource_manager.engine.model.changes import ChangeTracker

GENERATION_FLOOR = "generation_floor"
"""Counter that a restore of older books raises, so that no placement of theirs is taken for one of
those they have lost."""

REGISTERED_WITH = "registered_with/"
"""Prefix of counters: the report that an executor registered with last. A late copy of an earlier
registration may reach whoever takes over, and is no news there either."""

HOST_SETTING_NUMBER = "host_setting_number"
"""Number of the last change that an operator has made to the settings of any host."""

FORGOTTEN = "forgotten_registration_number"
"""Highest registration number of all executors that were forgotten."""

ARRIVAL_NUMBER = "arrival_number"
"""The last place in line that was given out, to jobs and requests alike."""


class Numbers:
    """What was given out last.

    Attributes:
        arrival: to jobs and requests alike: their places in line.
        host_setting: to changes of the settings of hosts.
        forgotten_registration: highest registration number of all executors that were forgotten.
        generation_floor: placements of books that a restore has replaced end here.
    """

    def __init__(self, changes: ChangeTracker) -> None:
        self._changes = changes
        self.arrival = 0
        self.host_setting = 0
        self.forgotten_registration = 0
        self.generation_floor = 0

    def next_arrival(self, count: int = 1) -> int:
        """The first of so many places in line, one behind the other."""
        self.arrival += count
        self._changes.counter(ARRIVAL_NUMBER, self.arrival)
        return self.arrival - count + 1

    def keep_registration(self, number: int) -> None:
        """An executor is forgotten; should it come back, its commands must not pass for old
        ones.
        """
        self.forgotten_registration = max(self.forgotten_registration, number)
        self._changes.counter(FORGOTTEN, self.forgotten_registration)
