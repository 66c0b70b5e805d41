"""One capacity index over all hosts, and one more per label selector that somebody asks with.

Decides which indexes exist and keeps them equal to the hosts' books; knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrain.resources import Amounts
from resource_manager.engine.host import SCORE, UNLIMITED, Host
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
        self.selected: dict[Labels, CapacityIndex] = {}  # most recently used last

    def of(self, labels: Labels, hosts: Iterable[Host]) -> CapacityIndex:
        """The index of the hosts that carry these labels; built from `hosts` where it does not
        exist yet.
        """
        if not labels:
            return self.main
        index = self.selected.pop(labels, None)
        if index is None:
            self._made += 1
            index = CapacityIndex(self._made * _VERSIONS_APART)
            for host in hosts:
                if carries(host, labels):
                    index.put(host.host_id, host.vector(self._settings.strategy))
            index.freshen()
            if len(self.selected) >= self._settings.label_indexes_max:
                del self.selected[next(iter(self.selected))]
        self.selected[labels] = index
        return index

    def refresh(self, dirty: Iterable[Host], queue: WaitingQueue) -> None:
        """Takes in what became of these hosts' books, and wakes the shapes that may fit now."""
        for host in dirty:
            vector = host.vector(self._settings.strategy)
            if self.main.put(host.host_id, vector):
                queue.wake(())
            for labels, index in self.selected.items():
                if carries(host, labels):
                    if index.put(host.host_id, vector):
                        queue.wake(labels)
                elif index.knows(host.host_id):
                    index.remove(host.host_id)
        self.main.freshen()
        for index in self.selected.values():
            index.freshen()
        self._wake_evicted(queue)

    def lower(
        self, host: Host, booked: Amounts, count: int, besides: CapacityIndex | None = None
    ) -> None:
        """Takes in, in every index but one, that so many slots were booked on a host."""
        for index in (self.main, *self.selected.values()):
            if index is not besides and index.knows(host.host_id):
                at = index.position[host.host_id]
                for name, amount in booked.items():
                    index.write(at, name, index.columns[name][0][at] - amount * count)
                if host.executor.registration.slots_max:
                    index.write(at, SLOTS, index.columns[SLOTS][0][at] - count)
                self._derive(index, host, at)

    def settle(self, hosts: Mapping[str, Host]) -> None:
        """Brings what follows from other columns up to date wherever something was taken."""
        for index in (self.main, *self.selected.values()):
            for at in index.taken:
                self._derive(index, hosts[index.ids[at]], at)
            index.settle()

    def _derive(self, index: CapacityIndex, host: Host, at: int) -> None:
        columns = index.columns
        slots = columns[SLOTS][0][at]
        if slots != UNLIMITED and not host.executor.registration.slots_max:
            slots = UNLIMITED
            index.write(at, SLOTS, slots)
        index.write(at, DEFAULT_SLOTS, min(slots, index.room(at, host.default_need)))
        if self._settings.strategy == "spread":
            free = {name: columns[name][0][at] for name, _ in host.dimensions if name in columns}
            index.write(at, SCORE, host.free_share(free, slots))

    def log_growth(self, host: Host, queue: WaitingQueue) -> None:
        """Makes all who wait look at this host again."""
        self.main.log_growth(host.host_id)
        queue.wake(())
        for labels, index in self.selected.items():
            if carries(host, labels):
                index.log_growth(host.host_id)
                queue.wake(labels)

    def remove(self, host: Host) -> None:
        """Forgets a host."""
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                index.remove(host.host_id)

    def all(self) -> dict[Labels, CapacityIndex]:
        """Every index by its selector."""
        return {(): self.main, **self.selected}

    def _wake_evicted(self, queue: WaitingQueue) -> None:
        for labels in list(queue.sleeping):
            if labels and labels not in self.selected:
                queue.wake(labels)


def carries(host: Host, labels: Labels) -> bool:
    """True if an executor has all these labels with these values."""
    if not labels:
        return True
    return all(host.labels.get(name) == value for name, value in labels)
