"""One capacity index over all hosts, and one more per label selector that somebody asks with.

Decides which indexes exist and keeps them equal to the hosts' books; knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from resource_manager.engine.entities import Slot
from resource_manager.engine.host import SCORE, Host
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.queue import DEFAULT_SLOTS, SLOTS, Labels, WaitingQueue
from resource_manager.engine.settings import EngineSettings

_VERSIONS_APART = 1 << 40
"""An index that was dropped and made anew must not pass for the old one with those who wait."""


class Indexes:
    """Indexes by label selector; the empty selector's holds every host and always exists."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.main = CapacityIndex()
        self._made = 0
        self._selected: dict[Labels, CapacityIndex] = {}  # most recently used last

    def of(self, labels: Labels, hosts: Iterable[Host]) -> CapacityIndex:
        """The index of the hosts that carry these labels; built from `hosts` where it does not
        exist yet.
        """
        if not labels:
            return self.main
        index = self._selected.pop(labels, None)
        if index is None:
            self._made += 1
            index = CapacityIndex(self._made * _VERSIONS_APART)
            for host in hosts:
                if carries(host, labels):
                    index.put(host.host_id, host.vector(self._settings.strategy))
            index.freshen()
            if len(self._selected) >= self._settings.label_indexes_max:
                del self._selected[next(iter(self._selected))]
        self._selected[labels] = index
        return index

    def refresh(self, dirty: Iterable[Host], queue: WaitingQueue) -> None:
        """Takes in what became of these hosts' books, and wakes the shapes that may fit now."""
        for host in dirty:
            vector = host.vector(self._settings.strategy)
            if self.main.put(host.host_id, vector):
                queue.wake(())
            for labels, index in self._selected.items():
                if carries(host, labels):
                    if index.put(host.host_id, vector):
                        queue.wake(labels)
                elif index.knows(host.host_id):
                    index.remove(host.host_id)
        self.main.freshen()
        for index in self._selected.values():
            index.freshen()
        self._wake_evicted(queue)

    def placed(self, host: Host, slot: Slot) -> None:
        """Takes in that a slot was booked on a host that had room for it."""
        values = {
            name: self.main.value(host.host_id, name) - amount
            for name, amount in slot.booked.items()
        }
        values[SLOTS] = host.slots_left()
        values[DEFAULT_SLOTS] = min(
            values[SLOTS],
            *(
                values.get(name, self.main.value(host.host_id, name)) // need
                for name, need in host.default_booking.items()
            ),
        )
        if self._settings.strategy == "spread":
            values[SCORE] = host.free_share(host.free())
        for index in (self.main, *self._selected.values()):
            if index.knows(host.host_id):
                for name, value in values.items():
                    index.write(host.host_id, name, value)

    def log_growth(self, host: Host, queue: WaitingQueue) -> None:
        """Makes all who wait look at this host again."""
        self.main.log_growth(host.host_id)
        queue.wake(())
        for labels, index in self._selected.items():
            if carries(host, labels):
                index.log_growth(host.host_id)
                queue.wake(labels)

    def remove(self, host: Host) -> None:
        """Forgets a host."""
        for index in (self.main, *self._selected.values()):
            if index.knows(host.host_id):
                index.remove(host.host_id)

    def all(self) -> dict[Labels, CapacityIndex]:
        """Every index by its selector."""
        return {(): self.main, **self._selected}

    def _wake_evicted(self, queue: WaitingQueue) -> None:
        for labels in list(queue.sleeping):
            if labels and labels not in self._selected:
                queue.wake(labels)


def carries(host: Host, labels: Labels) -> bool:
    """True if an executor has all these labels with these values."""
    if not labels:
        return True
    return all(host.labels.get(name) == value for name, value in labels)
