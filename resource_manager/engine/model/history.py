"""Limits the cluster's history to a maximum number of events and a maximum age.

The events are in the store; this module has only sequence numbers and times. The age of an event is
computed from a few marks. A mark is a pair of time and sequence number. Marks are stored, so that
the age is known after a restart. Some events are kept for longer than the maximum age, by at most
the time between two marks.
"""

from __future__ import annotations

from collections.abc import Mapping

from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.settings import EngineSettings

_MARKS = 8
"""Number of marks within the maximum age. The ring buffer has two more places."""


class History:
    """The sequence numbers of the last event and of the last trimmed event in the cluster's
    history.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.mark_interval_ms = max(1, settings.cluster_events_age_ms // _MARKS)
        self.last_sequence = 0
        self.trimmed_sequence = 0
        self._marks: dict[int, tuple[int, int]] = {}  # (time_ms, sequence) by position in the ring

    def restore(self, counters: Mapping[str, int]) -> None:
        """Restores numbers and marks from stored counters."""
        self.last_sequence = counters.get("cluster_sequence", 0)
        self.trimmed_sequence = counters.get("cluster_trimmed", 0)
        for position in range(_MARKS + 2):
            time_ms = counters.get(f"cluster_mark.{position}.time_ms")
            if time_ms is not None:
                sequence = counters.get(f"cluster_mark.{position}.sequence", 0)
                self._marks[position] = (time_ms, sequence)

    def next_sequence(self, changes: ChangeTracker) -> int:
        """Returns the number of the next event. Trims the oldest tenth if there are too many
        events.
        """
        self.last_sequence += 1
        changes.counter("cluster_sequence", self.last_sequence)
        most = self._settings.cluster_events_max
        if self.last_sequence - self.trimmed_sequence > most:
            self._trim(self.last_sequence - most + most // 10, changes)
        return self.last_sequence

    def mark(self, time_ms: int, changes: ChangeTracker) -> None:
        """Adds a mark for the current interval, unless the interval already has one. Then trims
        events that are too old.
        """
        number = time_ms // self.mark_interval_ms
        position = number % (_MARKS + 2)
        known = self._marks.get(position)
        if known is None or known[0] // self.mark_interval_ms != number:
            self._marks[position] = (time_ms, self.last_sequence)
            changes.counter(f"cluster_mark.{position}.time_ms", time_ms)
            changes.counter(f"cluster_mark.{position}.sequence", self.last_sequence)
        oldest_kept = time_ms - self._settings.cluster_events_age_ms
        old = [sequence for at, sequence in self._marks.values() if at <= oldest_kept]
        if old and max(old) > self.trimmed_sequence:
            self._trim(max(old), changes)

    def _trim(self, sequence: int, changes: ChangeTracker) -> None:
        self.trimmed_sequence = sequence
        changes.counter("cluster_trimmed", sequence)
        changes.trim_cluster_events(sequence)
