"""One capacity index over all hosts, and one more for some of the label selectors that somebody
waits with.

Decides which indexes exist and keeps them equal to the hosts' books; knows nothing of requests. An
index costs a look at every host, and selectors are as many as job masters please: the others are
searched for in the index of all hosts, by whoever looks at labels itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from finegrain.resources import Amounts
from resource_manager.engine.hosts.cpu_allocator import CpuKind
from resource_manager.engine.hosts.host import SCORE, UNLIMITED, Host
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS, Labels
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.queue.queue import WaitingQueue

BUILT_AT_ONCE = 4
"""Indexes of selectors that are made in one pass at most."""

_VERSIONS_APART = 1 << 40
"""An index that was dropped and made anew must not pass for the old one with those who wait."""


class Positions(NamedTuple):
    """Positions in an index, in order and as a set."""

    ordered: tuple[int, ...]
    all: frozenset[int]


UNTOLD: CpuKind = ("untold",)
"""The kind of hosts that do not tell what their cpus are made of."""


class Indexes:
    """Indexes by label selector; the empty selector's holds every host and always exists.

    Attributes:
        main: the index of all hosts.
        selected: indexes of hosts that carry the labels of a selector.
        aligning: hosts where whoever asks for amounts alone is placed exactly as well.
        kinds: hosts by all that decides what their cpus suit when they are empty; those that do not
            tell what their cpus are made of are of one kind (`UNTOLD`).
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.main = CapacityIndex()
        self._made = 0
        self._may_build = BUILT_AT_ONCE
        self.selected: dict[Labels, CapacityIndex] = {}
        self._labels: dict[str, dict[str, str]] = {}  # of hosts, as last taken in
        self._carriers: dict[tuple[str, str], dict[str, None]] = {}  # hosts by label and value
        self.aligning: dict[str, None] = {}
        self.kinds: dict[CpuKind, dict[str, None]] = {}
        self._kind_of: dict[str, CpuKind] = {}
        self._aligning_version = 0
        # Where strict hosts are in an index, as of its version and theirs.
        self._aligning_at: dict[CapacityIndex, tuple[tuple[int, int], Positions]] = {}

    def of(self, labels: Labels) -> CapacityIndex:
        """The index of the hosts that carry these labels, or that of all hosts."""
        return self.selected.get(labels, self.main)

    def made_for(self, labels: Labels, hosts: Iterable[Host]) -> CapacityIndex:
        """The same; while there may be more, the selector gets its own index, from `hosts`."""
        full = len(self.selected) >= self._settings.label_indexes_max
        if not labels or labels in self.selected or full or not self._may_build:
            return self.of(labels)
        self._may_build -= 1
        self._made += 1
        index = self.selected[labels] = CapacityIndex(self._made * _VERSIONS_APART)
        for host in hosts:
            if carries(host, labels):
                index.put(host.host_id, host.vector(self._settings.strategy))
        index.freshen()
        return index

    def carriers(self, labels: Labels) -> Iterator[str]:
        """Ids of the hosts that carry all of one or more labels, as last taken in."""
        each = [self._carriers.get(label, {}) for label in labels]
        rarest = min(each, key=len)
        return (name for name in rarest if all(name in others for others in each))

    def carrier_count(self, labels: Labels) -> int:
        """How many hosts carry all of one or more labels, at most."""
        return min(len(self._carriers.get(label, {})) for label in labels)

    def refresh(self, dirty: Iterable[Host], queue: WaitingQueue) -> None:
        """Takes in what became of these hosts' books, and wakes those who may fit now."""
        grew = False
        for host in dirty:
            vector = host.vector(self._settings.strategy)
            relabelled = self._label(host)
            self._sort_by_cpus(host)
            rose = self.main.put(host.host_id, vector)
            if relabelled and not rose:
                self.main.log_growth(host.host_id)
            if relabelled or rose:
                grew = True
                queue.non_batchables.grew(host.host_id, host.labels)
            for labels, index in self.selected.items():
                if carries(host, labels):
                    if index.put(host.host_id, vector):
                        queue.unblock(labels)
                elif index.knows(host.host_id):
                    index.remove(host.host_id)
        self.main.freshen()
        for index in self.selected.values():
            index.freshen()
        if grew:
            self._wake_in_main(queue)
        if len(self.selected) >= self._settings.label_indexes_max:
            for labels in [labels for labels in self.selected if not queue.is_required(labels)]:
                self._aligning_at.pop(self.selected.pop(labels), None)
        self._may_build = BUILT_AT_ONCE

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

    def follow(self, host: Host) -> None:
        """Takes in, in every index, what was booked on a host beside the pass that is under way."""
        vector = host.vector(self._settings.strategy)
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                at = index.position[host.host_id]
                for name, column in index.columns.items():
                    if column[0][at] != (amount := vector.get(name, 0)):
                        index.write(at, name, amount)

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
        self._wake_in_main(queue)
        queue.non_batchables.grew(host.host_id, host.labels)
        for labels, index in self.selected.items():
            if carries(host, labels):
                index.log_growth(host.host_id)
                queue.unblock(labels)

    def remove(self, host: Host) -> None:
        """Forgets a host."""
        for label in self._labels.pop(host.host_id, {}).items():
            self._forget_carrier(label, host.host_id)
        self._put_into_kind(host.host_id, None)
        self._set_aligning(host.host_id, aligning=False)
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                index.remove(host.host_id)

    def aligning_at(self, index: CapacityIndex) -> Positions:
        """Positions of strict hosts in an index."""
        version = index.version, self._aligning_version
        known = self._aligning_at.get(index)
        if known is None or known[0] != version:
            found = sorted(index.position[name] for name in self.aligning if index.knows(name))
            known = self._aligning_at[index] = version, Positions(tuple(found), frozenset(found))
        return known[1]

    def all(self) -> dict[Labels, CapacityIndex]:
        """Every index by its selector."""
        return {(): self.main, **self.selected}

    def _wake_in_main(self, queue: WaitingQueue) -> None:
        """Wakes those who are searched for in the index of all hosts."""
        for labels in list(queue.blocked):
            if labels not in self.selected:
                queue.unblock(labels)

    def _sort_by_cpus(self, host: Host) -> None:
        """Takes in what kind of host it is, as far as its cpus go."""
        name = host.host_id
        if host.aligning != (name in self.aligning):
            self._set_aligning(name, aligning=host.aligning)
        kind = UNTOLD if host.cpu_kind is None else host.cpu_kind
        if kind is not self._kind_of.get(name):
            self._put_into_kind(name, kind)

    def _set_aligning(self, host_id: str, *, aligning: bool) -> None:
        if aligning:
            self.aligning[host_id] = None
        elif host_id in self.aligning:
            del self.aligning[host_id]
        self._aligning_version += 1

    def _put_into_kind(self, host_id: str, kind: CpuKind | None) -> None:
        before = self._kind_of.pop(host_id, None)
        if before is not None:
            del self.kinds[before][host_id]
            if not self.kinds[before]:
                del self.kinds[before]
        if kind is not None:
            self._kind_of[host_id] = kind
            self.kinds.setdefault(kind, {})[host_id] = None

    def _label(self, host: Host) -> bool:
        """Takes in what a host carries; True if that is not what it was."""
        name, before = host.host_id, self._labels.get(host.host_id, {})
        if before == host.labels:
            return False
        self._labels[name] = dict(host.labels)
        for label in before.items() - host.labels.items():
            self._forget_carrier(label, name)
        for label in host.labels.items() - before.items():
            self._carriers.setdefault(label, {})[name] = None
        return True

    def _forget_carrier(self, label: tuple[str, str], host_id: str) -> None:
        del self._carriers[label][host_id]
        if not self._carriers[label]:
            del self._carriers[label]


def carries(host: Host, labels: Labels) -> bool:
    """True if an executor has all these labels with these values."""
    if not labels:
        return True
    return all(host.labels.get(name) == value for name, value in labels)
