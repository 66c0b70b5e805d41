"""All hosts, and the indexes that are derived from them: one capacity index of all hosts, and one
for each of some label selectors of requests.

The indexes follow the ledgers of the hosts. To build one for a selector, every host is read, and
job masters may use any number of selectors. So at most `label_indexes_max` of them have an index.
For others, the index of all hosts is searched, and the search checks the labels itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy

from finegrain.resources import Amounts
from resource_manager.engine.hosts.cpu_allocator import CpuKind
from resource_manager.engine.hosts.host import UNLIMITED, Host
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, EMPTY, IN_USE, SLOTS, Labels
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.columns import columns_of, score_columns_of
from resource_manager.engine.placement.gpu_hosts import GpuHosts
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.queue.queue import WaitingQueue

BUILT_AT_ONCE = 4
"""Indexes of selectors that are built in one pass, at most."""

_VERSIONS_APART = 1 << 40
"""First versions of two indexes differ by this much. So a class that searched an index which was
dropped and built again does not take the new one for the old one.
"""


UNREPORTED: CpuKind = ("unreported",)
"""The kind of hosts that do not report their cpus."""


class Indexes:
    """Indexes by label selector. That of the empty selector has every host and always exists.

    Attributes:
        main: the index of all hosts.
        selected: indexes of hosts that carry the labels of a selector.
        aligning: hosts that align every slot to NUMA nodes. There, amounts alone never decide.
        gpu_hosts: hosts with GPUs.
        kinds: hosts by everything that decides for which requests their cpus suit when they are
            empty. Those that do not report their cpus are one kind (`UNREPORTED`).
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.main = CapacityIndex()
        self._made = 0
        self._may_build = BUILT_AT_ONCE
        self.selected: dict[Labels, CapacityIndex] = {}
        self._labels: dict[str, dict[str, str]] = {}  # of hosts, as of the last refresh
        self._carriers: dict[tuple[str, str], dict[str, None]] = {}  # hosts by label and value
        self.aligning: dict[str, None] = {}
        self.gpu_hosts = GpuHosts()
        self.kinds: dict[CpuKind, dict[str, None]] = {}
        self._kind_of: dict[str, CpuKind] = {}

    def of(self, labels: Labels) -> CapacityIndex:
        """Returns the index of the hosts that carry these labels, or that of all hosts."""
        return self.selected.get(labels, self.main)

    def made_for(self, labels: Labels, hosts: Iterable[Host]) -> CapacityIndex:
        """Returns the same, but first builds an index for the labels from `hosts` if allowed."""
        full = len(self.selected) >= self._settings.label_indexes_max
        if not labels or labels in self.selected or full or not self._may_build:
            return self.of(labels)
        self._may_build -= 1
        self._made += 1
        index = self.selected[labels] = CapacityIndex(self._made * _VERSIONS_APART)
        for host in hosts:
            if host.carries(labels):
                index.put(host.host_id, columns_of(host, self._settings.strategy))
        index.freshen()
        for position in self.main.opened:  # these are in use only when the pass has ended
            if index.knows(name := self.main.ids[position]):
                index.write(index.position[name], IN_USE, 0)
                index.opened.append(index.position[name])
        return index

    def seen_as(self, prefix: str) -> Indexes:
        """Returns only the index of all hosts, with only the columns that have a prefix; see
        `CapacityIndex.seen_as`.
        """
        seen = copy(self)
        seen.main, seen.selected, seen._may_build = self.main.seen_as(prefix), {}, 0
        return seen

    def carriers(self, labels: Labels) -> Iterator[str]:
        """Yields ids of the hosts that carry all of one or more labels, as of the last refresh."""
        each = [self._carriers.get(label, {}) for label in labels]
        rarest = min(each, key=len)
        return (name for name in rarest if all(name in others for others in each))

    def carrier_count(self, labels: Labels) -> int:
        """Returns an upper bound of the number of hosts that carry all of one or more labels."""
        return min(len(self._carriers.get(label, {})) for label in labels)

    def refresh(self, dirty: Iterable[Host], queue: WaitingQueue) -> None:
        """Updates the indexes from the ledgers of changed hosts, and unblocks requests that may fit
        now.
        """
        grew = False
        # Update the numbers of each host, and find out what has grown.
        for host in dirty:
            vector = columns_of(host, self._settings.strategy)
            relabelled = self._label(host)
            self._sort_by_cpus(host)
            rose = self.main.put(host.host_id, vector)
            # Labels are no column, yet classes that searched before must check this host again.
            if relabelled and not rose:
                self.main.log_growth(host.host_id)
            if relabelled or rose:
                grew = True
                queue.non_batchables.grew(host.host_id, host.labels)
            # Classes with a dedicated index see only these hosts, so others do not unblock them.
            for labels, index in self.selected.items():
                if host.carries(labels):
                    if index.put(host.host_id, vector):
                        queue.unblock(labels)
                elif index.knows(host.host_id):
                    index.remove(host.host_id)
        # Rebuild once for all hosts, before classes search.
        self.main.freshen()
        for index in self.selected.values():
            index.freshen()
        if grew:
            self._wake_in_main(queue)
        # Below the limit unused indexes are kept, because building one reads every host.
        if len(self.selected) >= self._settings.label_indexes_max:
            for labels in [labels for labels in self.selected if not queue.is_required(labels)]:
                del self.selected[labels]
        self._may_build = BUILT_AT_ONCE

    def lower(
        self, host: Host, booked: Amounts, count: int, besides: CapacityIndex | None = None
    ) -> None:
        """Lowers what is free on a host in every index but one.

        Args:
            host: the host.
            booked: what one slot books.
            count: number of slots.
            besides: the index that is left out, because it is up to date.
        """
        for index in (self.main, *self.selected.values()):
            if index is not besides and index.knows(host.host_id):
                at = index.position[host.host_id]
                for name, amount in booked.items():
                    index.write(at, name, index.columns[name][0][at] - amount * count)
                if host.executor.registration.slots_max:
                    index.write(at, SLOTS, index.columns[SLOTS][0][at] - count)
                self._derive(index, host, at)

    def open(self, host: Host) -> None:
        """Records in every index that an empty host gets slots in the current pass."""
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                at = index.position[host.host_id]
                # A host that is in use, or was opened before in this pass, must not be listed
                # twice.
                if index.value(host.host_id, EMPTY):
                    index.open(at)

    def follow(self, host: Host) -> None:
        """Updates every index from the ledger of a host that was booked outside the pass."""
        if host.slots:
            self.open(host)
        vector = columns_of(host, self._settings.strategy)
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                at = index.position[host.host_id]
                for name, column in index.columns.items():
                    # `IN_USE` is set when the pass ends; until then searches find the host in
                    # `opened`.
                    if name != IN_USE and column[0][at] != (amount := vector.get(name, 0)):
                        index.write(at, name, amount)

    def settle(self, hosts: Mapping[str, Host]) -> None:
        """Updates derived columns where something was taken, and repairs the trees."""
        # Derived columns come first, so that the repair of the trees includes them.
        for index in (self.main, *self.selected.values()):
            for at in index.taken:
                self._derive(index, hosts[index.ids[at]], at)
            index.settle()

    def end_pass(self) -> None:
        """Clears the lists of hosts that got their first slots in the pass."""
        for index in (self.main, *self.selected.values()):
            index.opened.clear()

    def _derive(self, index: CapacityIndex, host: Host, at: int) -> None:
        columns = index.columns
        slots = columns[SLOTS][0][at]
        # If any host has a limit, a pass counts down the column on all. Here that is undone.
        if slots != UNLIMITED and not host.executor.registration.slots_max:
            slots = UNLIMITED
            index.write(at, SLOTS, slots)
        index.write(at, DEFAULT_SLOTS, min(slots, index.room(at, host.default_need)))
        if self._settings.strategy != "pack":
            names = (*host.dimensions, SLOTS)
            free = {name: columns[name][0][at] for name in names if name in columns}
            for name, score in score_columns_of(host, self._settings.strategy, free).items():
                if name in columns:
                    index.write(at, name, score)

    def log_growth(self, host: Host, queue: WaitingQueue) -> None:
        """Makes all pending requests check this host again."""
        self.main.log_growth(host.host_id)
        self._wake_in_main(queue)
        queue.non_batchables.grew(host.host_id, host.labels)
        for labels, index in self.selected.items():
            if host.carries(labels):
                index.log_growth(host.host_id)
                queue.unblock(labels)

    def remove(self, host: Host) -> None:
        """Removes a host."""
        for label in self._labels.pop(host.host_id, {}).items():
            self._forget_carrier(label, host.host_id)
        self._put_into_kind(host.host_id, None)
        self._set_aligning(host.host_id, aligning=False)
        self.gpu_hosts.remove(host.host_id)
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                index.remove(host.host_id)

    def all(self) -> dict[Labels, CapacityIndex]:
        """Returns every index by its selector."""
        return {(): self.main, **self.selected}

    def _wake_in_main(self, queue: WaitingQueue) -> None:
        """Unblocks the classes for which the index of all hosts is searched."""
        for labels in list(queue.blocked):
            # Labels with a dedicated index are unblocked where that index grows.
            if labels not in self.selected:
                queue.unblock(labels)

    def _sort_by_cpus(self, host: Host) -> None:
        """Updates whether a host is aligning or has GPUs, and its kind."""
        name = host.host_id
        self.gpu_hosts.update(host)
        if host.aligning != (name in self.aligning):
            self._set_aligning(name, aligning=host.aligning)
        kind = UNREPORTED if host.cpu_kind is None else host.cpu_kind
        if kind is not self._kind_of.get(name):
            self._put_into_kind(name, kind)

    def _set_aligning(self, host_id: str, *, aligning: bool) -> None:
        if aligning:
            self.aligning[host_id] = None
        elif host_id in self.aligning:
            del self.aligning[host_id]

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
        """Updates the labels of a host; returns True if they have changed."""
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


Heard = dict[str, tuple[str, int]]
"""Instance id and number of the last report that was processed, by executor."""


class Hosts(dict[str, Host]):
    """Hosts by the executor's id.

    Attributes:
        settings: of the engine.
        indexes: find hosts with room; up to date after `refresh`.
        version: rises when the capacity of hosts when empty, or which hosts there are, changes.
        in_use: number of hosts that have slots.
        refusing: hosts that refused a slot at some time; the refusal may have ended.
        touched: hosts whose free capacity may have changed since the last `refresh`, or that were
            removed; empty: the indexes are up to date.
    """

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__()
        self.settings = settings
        self.indexes = Indexes(settings)
        self.version = 0
        self.in_use = 0
        self.refusing: dict[str, None] = {}
        self.touched: dict[str, None] = {}

    def of(self, slot: Slot) -> Host:
        """Returns the host of a slot."""
        return self[slot.executor_id]

    def touch(self, host: Host) -> None:
        """Notes that a host's free capacity may have changed."""
        self.touched[host.host_id] = None

    def refresh(self, queue: WaitingQueue) -> None:
        """Updates the indexes from the hosts that were touched, and unblocks requests that may fit
        now.
        """
        # `touched` may contain hosts that were removed. `refresh` is called even if only these are
        # left, because their removal requires the trees of the indexes to be rebuilt.
        touched = [self[name] for name in sorted(self.touched) if name in self]
        self.touched.clear()
        self.indexes.refresh(touched, queue)

    def forget(self, host: Host) -> None:
        """Deletes a host."""
        del self[host.host_id]
        self.indexes.remove(host)
        self.touch(host)  # `refresh` has to rebuild the indexes
        # Cached verdicts about empty hosts may depend on the host. The new version makes them
        # invalid.
        self.version += 1

    def heard(self) -> Heard:
        """Returns the number of the last report of each executor; for `remember`."""
        return {
            name: (host.executor.registration.instance_id, host.executor.report_number)
            for name, host in self.items()
            if host.executor.report_number
        }

    def remember(self, heard: Heard) -> None:
        """Carries report numbers across a reload, so that a registration superseded before the
        reload is still rejected.

        Otherwise a late copy of a registration would count as a new one, and delete slots that were
        made after it.
        """
        for name, (instance_id, report_number) in heard.items():
            host = self.get(name)
            # Another instance of the executor numbers its reports from 1 again.
            if host is not None and host.executor.registration.instance_id == instance_id:
                host.executor.report_number = report_number
